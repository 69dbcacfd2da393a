"""The loader that ``create_dataloader`` returns: a torch DataLoader with epochs and state."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader

from headrace.errors import OptionError
from headrace.loader._agreement import Agreement, InStep, RankComparison
from headrace.loader._epoch import EpochPass
from headrace.loader._workers import WorkerPool, torch_arguments
from headrace.options import LoaderOptions
from headrace.plan import State, known_batches

if TYPE_CHECKING:
    from headrace.loader._dataset import TabularDataset
    from headrace.loader._epoch import EpochReader

logger = logging.getLogger(__name__)


class StatefulLoader(DataLoader[Any]):
    """Gives the batches of a dataset, read ahead by threads or by worker processes.

    ``iter`` starts the current epoch at its first batch, also after a ``break``; when an epoch was
    read to its end, the next one follows. ``state_dict`` may be called between any two batches, and
    ``load_state_dict`` makes the next ``iter`` go on from there, once.

    It is made by ``create_dataloader`` of a dataset, or by ``loader``.

    Examples:
        >>> import pyarrow as pa
        >>> from headrace import ArrowDataset
        >>> loader, _ = ArrowDataset.create_dataloader(pa.table({"x": range(6)}), batch_size=2)
        >>> next(iter(loader))["x"].tolist()
        [0, 1]
        >>> loader.load_state_dict(loader.state_dict())
        >>> [batch["x"].tolist() for batch in loader]
        [[2, 3], [4, 5]]
    """

    dataset: TabularDataset
    _is_accelerate_prepared = True  # or Accelerate would shard it again, or read on rank 0 only

    def __init__(
        self,
        dataset: TabularDataset,
        options: LoaderOptions,
        *,
        sampler: None = None,
        batch_sampler: None = None,
    ) -> None:
        """Make a loader, which starts nothing before its first iteration.

        Args:
            dataset: The dataset.
            options: All keywords of the loader.
            sampler: None; Lightning passes it when it makes a loader from the attributes of another
                that have the names of these arguments.
            batch_sampler: None, for the same reason.
        """
        self.options = options
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=dataset.collate,
            pin_memory=options["pin_memory"],
            worker_init_fn=options["worker_init_fn"],
            **torch_arguments(options) if options["num_workers"] else {},
        )
        self._pool = WorkerPool(dataset, options) if options["num_workers"] else None
        self._pin = options["pin_memory"] and torch.cuda.is_available()
        if options["pin_memory"] and not self._pin:
            logger.warning("pin_memory has no effect: there is no CUDA device")
        self._lanes: int | None = None  # of a loaded state; kept for the following epochs
        self._chosen_epoch: int | None = None  # by set_epoch, since the last iteration began
        self._pass: EpochPass | None = None
        planner = dataset.epochs.planner
        self._began: State = planner.start(dataset.epoch)
        self._epochs = dataset.epochs  # that the running pass reads
        self._resume: State | None = None
        self._in_step: InStep | None = None
        self._agreement = Agreement(dataset.ranks) if planner.must_agree else None
        self._compared: EpochReader | None = (
            None  # the data that was compared with that of other ranks
        )
        if dataset.ranks.size > 1:
            self._compare_ranks()

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, also after a state was loaded.

        Raises:
            TypeError: The number is not known without reading the data.
        """
        planner = self.dataset.epochs.planner
        return known_batches(planner.batches_left(planner.start(self.dataset.epoch, self._lanes)))

    @property
    def remaining(self) -> int:
        """Number of batches still to come in the running or resumed epoch, of this rank.

        It is 0 after the last batch, and the length of the next epoch once the iteration has ended.

        Raises:
            TypeError: The number is not known without reading the data, as for ``len``.
        """
        running = self._pass
        if running is None or running.epoch != self.dataset.epoch:
            return known_batches(self.dataset.epochs.planner.batches_left(self._position()))
        return known_batches(self._epochs.planner.batches_left(self._began.after(running)))

    def __repr__(self) -> str:
        workers = f"{self.num_workers} workers" if self.num_workers else "threads"
        return f"<{type(self).__name__}: {self.dataset.summary}; epoch {self.epoch}, {workers}>"

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or the next one after its end."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a state of another epoch is forgotten."""
        self.dataset.set_epoch(epoch)
        self._chosen_epoch = epoch
        if self._resume is not None and self._resume.epoch != epoch:
            self._resume = None

    # --- state

    def state_dict(self, *, unused_batches: Literal[0, 1] = 0) -> dict[str, Any]:
        """Return the position after the last batch that was handed out, as a small JSON-safe dict.

        unused_batches: 1 if the last batch was fetched ahead and is not used yet: the state is then
        the one before this batch.
        """
        check_unused(unused_batches)
        position = self._position(without_last=unused_batches == 1)
        # A pass goes on as it began; the epochs after it read the data that the dataset has by now.
        began = self._began
        goes_on = (position.epoch, position.plan_key) == (began.epoch, began.plan_key)
        epochs = self._epochs if self._pass is not None and goes_on else self.dataset.epochs
        return position.as_json(epochs.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on from a state, unless another epoch is set before.

        Ranks, workers and the batch size may differ from those with which it was taken.
        """
        position = State.from_json(state)
        self.dataset.move_to(position)
        epochs = self.dataset.epochs
        epochs.fingerprint.check(position)
        mine = epochs.planner.resume(position, epochs)
        self._lanes = mine.lanes if mine.before is None else None
        self._resume = mine
        self._pass = None
        self.dataset.set_epoch(mine.epoch)

    def _position(self, *, without_last: bool = False) -> State:
        epoch, planner = self.dataset.epoch, self.dataset.epochs.planner
        if self._resume is not None and self._resume.epoch == epoch:
            return self._resume
        if self._pass is None or self._pass.epoch != epoch:
            return planner.start(epoch, self._lanes)
        repeated = 0 if self._in_step is None else self._in_step.repeated
        if without_last and not self._pass.finished:
            if repeated:
                return self._began.after(self._pass, repeated - 1)
            with self._pass.before_last_batch():
                return self._began.after(self._pass)
        now = self._began.after(self._pass, repeated)
        return planner.start(epoch + 1, self._lanes) if self._is_over(now, self._pass) else now

    def _is_over(self, position: State, running: EpochPass) -> bool:
        if self._in_step is not None:
            return self._in_step.is_over()
        return self._epochs.has_ended(position, running)

    # --- other ranks

    def _compare_ranks(self) -> None:
        """Tell the other ranks what this one is about to read."""
        dataset = self.dataset
        self._compared = dataset.epochs
        self._comparison = RankComparison(
            dataset.ranks, dataset.compared_files, self._shared_by_ranks
        )

    def _shared_by_ranks(self) -> dict[str, Any]:
        """Return what must be the same on all ranks, apart from the files."""
        fingerprint, planner = self.dataset.epochs.fingerprint, self.dataset.epochs.planner
        start = planner.start(self.dataset.epoch)
        return {
            "the snapshot of the table": fingerprint.version,
            "shuffle, split_bytes, split_rows, split_strategy, mix or interleave": (
                fingerprint.order
            ),
            "shuffle_seed": fingerprint.seed,
            "batch_size, lanes, num_workers, a row group or a split of split_strategy": (
                planner.plan(start, shared=False).digest()
            ),
            "even or drop_last": planner.batches_left(start) if self.dataset.even else None,
            "filters": fingerprint.filters,
        }

    # --- iterating

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._pass is not None:
            self._leave(self._pass)
        self._chosen_epoch = None
        epoch = self.dataset.epoch
        position, self._resume = self._resume, None
        if position is not None and position.epoch == epoch:
            self.dataset.move_to(position)  # an epoch keeps its data, even after a refresh
        else:
            position = self.dataset.epochs.planner.start(epoch, self._lanes)
        if self._compared is not None:
            if self._compared.fingerprint != self.dataset.epochs.fingerprint:  # of another snapshot
                self._compare_ranks()
            self._comparison.check()
        epochs = self.dataset.epochs
        if self._pool is not None:
            running = self._pool.begin(epochs.planner.plan(position), position, pin=self._pin)
        else:
            running = epochs.begin(position, replace(epochs.pipeline, pin_memory=self._pin))
        self._epochs, self._began, self._pass, self._in_step = epochs, position, running, None
        return self._deliver(running)

    def _leave(self, running: EpochPass) -> None:
        """Begin the next epoch if the last batch of a pass is out, though no other was asked for.

        Where batches are not counted, an epoch ends only when the next batch is asked for.
        """
        goes_on = not running.finished and self._chosen_epoch is None
        if goes_on and self._epochs.planner.batches_left(self._began.after(running)) == 0:
            self.dataset.end_epoch(self._began.epoch)
        if running.ended:
            running.end()  # it may still hold resources

    def _deliver(self, running: EpochPass) -> Generator[Any, None, None]:
        """Yield the rest of an epoch, for as long as all ranks go on together."""
        planner, began = self._epochs.planner, self._began
        ranks, counters = self.dataset.ranks, self._epochs.counters
        if planner.must_agree:
            self._in_step = in_step = self._with_other_ranks(running)
            yield from in_step
            counters.count(padded=in_step.padded_rows)
        else:
            yield from running
            counters.count(padded=planner.plan(began).repeated_rows(ranks.rank, ranks.size))
        self.dataset.end_epoch(running.epoch)

    def _with_other_ranks(self, running: EpochPass) -> InStep:
        """Return the batches of a pass on which all ranks agree."""
        if self._agreement is None:  # rows were counted before a refresh, and are not any more
            self._agreement = Agreement(self.dataset.ranks)
        first = partial(self._epochs.first_batch, self._began)
        pad = self.dataset.even == "pad"
        whole = not self._began.begun
        return InStep(
            running, self._agreement.agree, read_first=first if pad else None, whole=whole
        )

    def stats(self) -> dict[str, Any]:
        """Return counts of the work done since the loader was made.

        ``rows`` and ``batches`` handed out, ``bytes`` decoded, ``seconds`` by stage (summed over
        threads and processes), ``padded`` rows that were repeated so that ranks stay in step,
        ``skipped_chunks`` with the reason of each, ``retries``.
        """
        if self._pass is not None and self._pass.ended:
            self._pass.end()
        counted = self.dataset.epochs.counters.as_dict()
        if self._pass is not None and not self._pass.ended:
            for name, value in self._pass.handed_over.items():
                counted[name] += value
        return counted


def check_unused(unused_batches: object) -> None:
    """Raise an OptionError unless a number of unused batches is 0 or 1."""
    if isinstance(unused_batches, bool) or unused_batches not in (0, 1):
        raise OptionError(
            f"unused_batches must be 0, or 1 if the last batch is not used yet, not "
            f"{unused_batches!r}"
        )
