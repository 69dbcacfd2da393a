"""``TarDataset``: samples of tar shards, streamed, or in batches of images of one shape each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, Unpack

from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from headrace.access import BucketBatchSampler, RowDataset
from headrace.convert.packing import BufferLayout, Call, unpack
from headrace.convert.shared import ByteArray
from headrace.errors import OptionError, ReadError
from headrace.loader._agreement import RankComparison
from headrace.loader._dataloader import StatefulLoader, check_unused
from headrace.loader._dataset import TabularDataset, found_in, rows_of, store_access
from headrace.loader._feed import Failure, pack_batches
from headrace.loader._pipeline import Finish
from headrace.loader._workers import Workers, start_workers, torch_arguments, worker_context
from headrace.loader.start import Sealed
from headrace.options import (
    BucketOptions,
    LoaderOptions,
    Paths,
    TarOptions,
    arguments,
    check_buckets_together,
    documented,
    resolve,
    split_options,
)
from headrace.plan import State
from headrace.process import run_aside
from headrace.sources.tar.buckets import aspect_buckets
from headrace.sources.tar.grouping import LeftOut
from headrace.sources.tar.source import TarBackend

logger = logging.getLogger(__name__)


class BucketedLoader(DataLoader[Any]):
    """Batches of one shape each, with epochs and states as in every loader here.

    ``iter`` starts the current epoch at its first batch, also after a ``break``; when an epoch was
    read to its end, the next one follows. ``state_dict`` may be called between any two batches, and
    counts the batches handed out, even if workers have read ahead. A batch whose samples were all
    skipped is not handed out, but counts. ``len`` is the number of batches of a whole epoch, also
    after a state was loaded.
    """

    batch_sampler: BucketBatchSampler
    _is_accelerate_prepared = True  # or Accelerate would share out its batches once more

    def __init__(
        self,
        tars: TarDataset,
        rows: RowDataset,
        batch_sampler: BucketBatchSampler,
        options: LoaderOptions,
    ) -> None:
        if options["num_workers"]:
            worker_context(options, fork_safe=tars.fork_safe)  # refuse invalid options now
        finish, init = tars.epochs.finish, options["worker_init_fn"]
        collate = partial(_collated, finish)
        super().__init__(
            rows.with_empty_batches(),
            batch_sampler=batch_sampler,
            collate_fn=collate,
            pin_memory=options["pin_memory"],
            **torch_arguments(options) if options["num_workers"] else {},
        )
        functions = {} if finish is None else finish.functions
        user_code = {**tars.backend.given, **functions, "worker_init_fn": init}
        self._start_workers = partial(
            start_workers,
            _Sending((self.dataset, collate, init)),
            user_code,
            options,
            fork_safe=tars.fork_safe,
            batch_sampler=batch_sampler,
            pin_memory=options["pin_memory"],
        )
        order = batch_sampler.fingerprint.order
        self._fingerprint = replace(tars.epochs.fingerprint, order=order, seed=batch_sampler.seed)
        self._comparison = RankComparison(
            tars.ranks,
            tars.compared_files,
            lambda: {"batch_size, shuffle, drop_last or a bucket": order},
        )
        self._workers: Workers | None = None
        self._running: _BucketedPass | None = None

    def __repr__(self) -> str:
        sampler = self.batch_sampler
        mine = f", rank {sampler.rank} of {sampler.world_size}" * (sampler.world_size > 1)
        order = "shuffled" if sampler.shuffle else "in order"
        return (
            f"<BucketedLoader: {sampler.num_samples:,} samples in {len(self):,} batches of one "
            f"shape each{mine}; {order}; epoch {self.epoch}, {self.num_workers} workers>"
        )

    @property
    def epoch(self) -> int:
        """The epoch of the running or next iteration."""
        return self._position().epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a state of another epoch is forgotten."""
        if epoch != self.epoch:
            self._running = None
        self.batch_sampler.set_epoch(epoch)

    @property
    def remaining(self) -> int:
        """Number of batches still to come in the running or resumed epoch, of this rank."""
        return self.batch_sampler.remaining(self._position())

    def state_dict(self, *, unused_batches: Literal[0, 1] = 0) -> dict[str, Any]:
        """Return where the loader is, as ``StatefulLoader.state_dict`` does."""
        check_unused(unused_batches)
        return self.batch_sampler.as_json(self._position(unused_batches), self._fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on from a state; the number of ranks may be another."""
        self.batch_sampler.load_state_dict(state, self._fingerprint)
        self._running = None

    def _position(self, unused_batches: int = 0) -> State:
        sampler, running = self.batch_sampler, self._running
        if running is None:
            return sampler.next_start
        return sampler.after(running.began, max(running.delivered - unused_batches, 0))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._comparison.check()
        # A pass that was left begins its epoch again, unless all batches were handed out.
        self.set_epoch(self.batch_sampler.or_next_epoch(self._position()).epoch)
        running = self._running = _BucketedPass(self.batch_sampler.next_start)
        return self._deliver(running, self._batches())

    def _batches(self) -> Iterator[Any]:
        if not self.num_workers:
            return super().__iter__()
        workers = self._workers
        if workers is None or workers.have_failed or not self.persistent_workers:
            workers = self._workers = self._start_workers()
        return _received(workers)

    def _deliver(
        self, running: _BucketedPass, batches: Iterator[Any]
    ) -> Generator[Any, None, None]:
        """Yield batches; pass over empty ones, or repeat the one before if ranks are in step."""
        in_step, last = self.batch_sampler.world_size > 1, None
        for batch in batches:
            running.delivered += 1
            if isinstance(batch, _AllSkipped):
                if not in_step:
                    continue
                if last is None:
                    raise ReadError(
                        "no sample of the first batch of this rank can be read (warnings name "
                        "them all), and other ranks wait for one"
                    )
                batch = last
            if in_step:
                last = copy(batch)
            yield batch
        if self._running is running:
            self._running = None


@dataclass(slots=True)
class _BucketedPass:
    """An iteration: where it began, and the number of batches that it has handed out."""

    began: State
    delivered: int = 0


@dataclass(frozen=True, slots=True)
class _AllSkipped:
    """The mark for a batch whose samples were all skipped."""


def _received(workers: Workers) -> Generator[Any, None, None]:
    """Yield the batches that workers send."""
    received = iter(workers)
    try:
        yield from iter(partial(workers.next_of, received), None)
    finally:
        if not workers.persistent_workers:
            run_aside(workers.end)


class _Sending(Dataset[Any]):
    """The dataset in a worker: it reads, collates and packs batches by their indices."""

    def __init__(
        self, work: tuple[Any, Callable[[Any], Any], Callable[[int], None] | None]
    ) -> None:
        self._work = work
        self._sent: Sealed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        self._sent = Sealed(self._work)
        return _Sending, (self._sent,)

    def __getitems__(self, indices: Sequence[Any]) -> Call | Failure:
        rows, collate, init = self._work
        try:
            if init is not None:
                self._work = rows, collate, None  # once in a process
                init(get_worker_info().id)  # type: ignore[union-attr]
            return Call(_unpacked, pack_batches([collate(rows.__getitems__(indices))]))
        except Exception as error:
            return Failure.of(error)


def _unpacked(buffer: ByteArray, layout: BufferLayout) -> Any:
    return unpack(buffer, layout)[0]


def _collated(finish: Finish | None, rows: Any) -> Any:
    """Collate the rows of a batch, and call the user's functions with it."""
    if not len(rows):
        return _AllSkipped()
    batch = default_collate(rows)
    return batch if finish is None else finish(batch)


class TarLoaderOptions(TarOptions, BucketOptions, LoaderOptions, total=False):
    """Keywords of ``TarDataset.create_dataloader``."""


class TarDataset(TabularDataset):
    """Samples of tars: members that share a key, with a column for each field, and their keys.

    Tars that have no index are scanned once. Payloads are bytes unless ``decode`` says otherwise;
    see ``TarBackend``.

    Examples:
        ```python
        from headrace import TarDataset, TarWriter

        with TarWriter("tars/", shard_samples=50) as writer:
            for number in range(100):
                writer.write({"__key__": f"{number:04d}", "txt": "text", "cls": number % 3})
        loader, dataset = TarDataset.create_dataloader(
            "tars/", decode={"cls": int}, batch_size=10, shuffle=True
        )
        assert len(loader) == 10
        ```
    """

    backend: TarBackend
    """The backend that gives samples by number."""

    @documented(TarOptions)
    def __init__(self, source: Paths, **options: Unpack[TarOptions]) -> None:
        """Find the tars and their indexes.

        Args:
            source: A tar, a directory, a glob, a URL, or a list of them.

        Raises:
            NothingFoundError: There is no tar.
            ReadError: A tar or an index is damaged.
            OptionError: A keyword has a wrong value.
        """
        chosen = resolve(TarOptions, options)
        backend = TarBackend(
            source,
            required=chosen["columns"],
            access=store_access(chosen),
            **arguments(TarBackend, chosen),
        )
        if chosen["output_format"] == "arrow" and any(
            name.startswith("decode") for name in backend.given
        ):
            raise OptionError(
                'what functions in decode= return has no place in output_format="arrow"; choose '
                "torch, numpy or dict"
            )
        backend = _with_room_for_none(backend, chosen)
        if any(backend.left_out):
            logger.info("%s: left out %s", source, backend.left_out)
        super().__init__(found_in(backend, chosen), chosen)

    @classmethod
    @documented(TarOptions, BucketOptions, LoaderOptions)
    def create_dataloader(
        cls, source: Paths, **options: Unpack[TarLoaderOptions]
    ) -> tuple[StatefulLoader | BucketedLoader, Self]:
        """Return a DataLoader over the samples, and the dataset behind it.

        With ``bucketed=True`` its batches hold images of one shape each, in the order of
        ``BucketBatchSampler``; ``batch_size`` may then be a function of (width, height).

        Args:
            source: A tar, a directory, a glob, a URL, or a list of them.

        Returns:
            The loader and the dataset.
        """
        of_buckets, others = split_options(options, BucketOptions)
        buckets = resolve(BucketOptions, of_buckets)
        check_buckets_together(of_buckets, others)
        if buckets["bucketed"]:
            return cls._create_bucketed(source, buckets, others)
        return cls._create(source, **others)

    @classmethod
    def _create_bucketed(
        cls, source: Paths, buckets: BucketOptions, options: dict[str, Any]
    ) -> tuple[BucketedLoader, Self]:
        batch_size = options.pop("batch_size", 1024)
        of_loader, of_dataset = split_options(options, LoaderOptions)
        chosen = resolve(LoaderOptions, of_loader)  # before the dataset is opened
        dataset = cls(source, **of_dataset)
        dataset._prepare(chosen)
        settings, ranks = dataset._options, dataset.ranks
        by_index = settings.copy()  # the loader applies the user's functions to whole batches
        for name in ("row_transform", "transform", "collate_fn"):
            by_index[name] = None
        sampler = BucketBatchSampler(
            dataset.backend.aspect_buckets(**arguments(aspect_buckets, buckets)),
            batch_size,
            shuffle=settings["shuffle"],
            seed=settings["shuffle_seed"],
            drop_last=settings["drop_last"],
            rank=ranks.rank,
            world_size=ranks.size,
            unknown=settings["on_error"],
        )
        rows = rows_of(dataset.epochs.found, by_index)
        return BucketedLoader(dataset, rows, sampler, chosen), dataset

    @property
    def left_out(self) -> LeftOut:
        """Counts of files that belong to no sample, and of samples that are left out."""
        return self.backend.left_out


def _with_room_for_none(backend: TarBackend, options: TarOptions) -> TarBackend:
    """Let fields that samples may lack be None in batches, unless ``nulls`` names them."""
    nulls = options["nulls"]
    is_converted = options["output_format"] in ("torch", "numpy")
    if nulls == "mask" or not is_converted or not options["load_file_data"]:
        return backend
    named = nulls if isinstance(nulls, Mapping) else {}
    read = backend.projected(options["columns"]).names
    left = [name for name in backend.optional_columns if name in read and name not in named]
    if left:
        options["nulls"] = {**dict.fromkeys(left), **named}
    return backend.with_objects(left)
