"""The base of every dataset: plans the discovered files, and turns them into batches."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import FrameType
from typing import Any, Literal, Self, Unpack

import numpy as np
import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from headrace.access import Backend, RowDataset
from headrace.convert import Converter
from headrace.convert.device import DeviceCache, parse_device
from headrace.convert.images import check_decoder_on
from headrace.convert.kinds import Kind
from headrace.convert.packing import Batch
from headrace.convert.shared import is_shared, shared_integers
from headrace.errors import OptionError, SkippedDataWarning, WorkerError
from headrace.loader._agreement import ComparedFiles
from headrace.loader._dataloader import StatefulLoader
from headrace.loader._epoch import EpochPass, EpochReader
from headrace.loader._fingerprint import fingerprint_of
from headrace.loader._order import budget_bytes, describe_order, order_of
from headrace.loader._pipeline import Finish, Pipeline, Stats
from headrace.loader.ranks import Ranks, find_ranks, given_ranks
from headrace.model import DataFileInfo, FileList, Split
from headrace.options import (
    DatasetOptions,
    LoaderOptions,
    arguments,
    check_count,
    documented,
    parse_bytes,
    resolve,
    split_options,
)
from headrace.plan import (
    Chunks,
    Plan,
    Planner,
    RankShare,
    State,
    cut_chunks,
    decode_factor,
    known_batches,
)
from headrace.process import end_with_parent, usable_cores
from headrace.sources.source import Discovered, TabularReader
from headrace.storage import (
    Access,
    DiskCache,
    Options,
    Requests,
    RetryPolicy,
    save_manifest,
    shown_location,
)

logger = logging.getLogger(__name__)

_EPOCH, _READ_BY_WORKERS = 0, 1
"""Places of the values in the memory that a dataset shares with workers."""
_FRAMES_TO_FETCHER = 3
"""Number of calls between torch and a dataset that is wrapped in another dataset."""
_FEW_CHUNKS = 8
"""Number of chunks below which permuting them leaves rows nearly in file order."""
_WASTEFUL = 1.5
"""Number of rows decoded for each row wanted from which on decoded row groups are kept."""


class TabularDataset(IterableDataset[Any]):
    """Gives batches of the rows of files.

    Iterating gives every row exactly once, in one process or in any number of workers of a plain
    ``DataLoader(dataset, batch_size=None, num_workers=n)``.
    """

    def __init__(self, found: Discovered, options: DatasetOptions) -> None:
        super().__init__()
        self._options = options
        device = options["device"]
        self._device = None if device is None else parse_device(device)
        self.ranks = given_ranks(options["rank"], options["world_size"])
        """The rank of this process, and the number of ranks that share the data."""
        self._workers = 1
        self._has_loader = False
        self._warned_of_ranks = False
        self._adopted_order = ""  # order of the state that was loaded last
        self._counters = Stats()
        # The epoch, and a flag set if workers read, in memory that parent and workers share.
        self._shared = shared_integers(2)
        self._position: State | None = None  # from which the next iteration goes on
        self._read: tuple[EpochReader, State, EpochPass] | None = None  # the last iteration
        self._read_from(found)
        for reason in found.broken:
            self._counters.skip(reason)
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=4)

    def _read_from(self, found: Discovered) -> None:
        """Make ``found`` the data of later iterations; running ones go on with theirs."""
        options, kinds = self._options, found.reader.source.kinds
        budget = budget_bytes(options)
        if Kind.JPEG in kinds.values():
            check_decoder_on(self._device)
        planner = self._planner_for(found, self._adopted_order)
        order = planner.order
        pipeline = Pipeline(
            found.reader,
            Converter(
                found.reader.schema,
                options["output_format"],
                kinds=kinds,
                **arguments(Converter, options),
            ),
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            seed=order.seed,
            grouping=order.grouping,
            counted=planner.counted,
            skip_broken=options["on_error"] == "skip",
            prefetch_bytes=budget,
            device=self._device,
            device_cache=DeviceCache(budget) if options["device_cache"] else None,
        )
        if order.split_strategy is None:
            pipeline = self._for_chunks(found, planner, pipeline)
        finish = Finish.of(options)
        self.epochs = EpochReader(found, planner, pipeline, finish, self._counters)
        """Reads what the dataset has now, until a refresh or a state changes it."""
        if found.counts:
            self._counters.count(**found.counts)
        if order.automatic:
            logger.info("%s", describe_order(order, found.files, planner.origin.lanes))

    def _planner_for(self, found: Discovered, adopted_order: str) -> Planner:
        """Return the plans of some data for the ranks and workers of this dataset.

        A state may have chosen the order: ``adopted_order``, as it describes it, or "".
        """
        ranks, options = self.ranks, self._options
        lanes = options["lanes"] or ranks.size * self._workers
        order = order_of(options, found, lanes=lanes, lanes_each=max(lanes // ranks.size, 1))
        if adopted_order:
            order = order.as_in(adopted_order)
        counted = found.counted and options["on_error"] != "skip"
        adaptive = options["balance"] == "adaptive" and self._workers > 1
        even = ""
        if self.even and ranks.size > 1 and counted and not adaptive:
            even = "full" if order.drop_last else self.even
        share = RankShare(0, ranks.size, even)
        origin = State(0, order.batch_size, lanes, (share,), ranks.rank, adaptive=adaptive)
        planner = Planner(found.files, order, counted, origin, self._workers, bool(self.even))
        if ranks.size == 1:
            return planner
        if order.lanes is not None and order.lanes % ranks.size:
            raise OptionError(
                f"lanes={order.lanes} cannot be shared evenly by {ranks.size} ranks; "
                "choose a multiple of their number"
            )
        rows = planner.num_rows
        if rows is not None and rows < ranks.size and self.even != "pad":
            raise OptionError(
                f"{rows} rows cannot be shared by {ranks.size} ranks; use fewer ranks, or "
                'even="pad", which repeats rows'
            )
        return planner

    # --- loaders

    @documented(LoaderOptions)
    def loader(self, **options: Unpack[LoaderOptions]) -> StatefulLoader:
        """Return a DataLoader over the dataset, for this rank.

        In a distributed job each rank gets its share; see ``create_dataloader``. The first loader
        of a dataset shares its epoch with the dataset. Every other loader works on a copy, so that
        both may run at the same time.
        """
        return self._loader(resolve(LoaderOptions, options))

    @classmethod
    def _create(cls, *source: Any, **options: Any) -> tuple[StatefulLoader, Self]:
        """Return a loader and its dataset; ``source`` are the dataset's own arguments."""
        of_loader, of_dataset = split_options(options, LoaderOptions)
        chosen = resolve(LoaderOptions, of_loader)  # before anything is looked for
        dataset = cls(*source, **of_dataset)
        return dataset._loader(chosen), dataset

    def _loader(self, options: LoaderOptions) -> StatefulLoader:
        dataset = self
        if self._has_loader:
            dataset = copy(self)
            dataset._shared, dataset._position = shared_integers(2), None
            dataset.set_epoch(self.epoch)  # its own epoch, which the copy would share
        dataset._prepare(options)
        planner = dataset.epochs.planner
        planner.plan(planner.start(dataset.epoch))  # raise errors of the plan now
        dataset._has_loader = True
        accelerate = sys.modules.get("accelerate")  # only users of Accelerate have imported it
        if accelerate is None or not isinstance(options["accelerator"], accelerate.Accelerator):
            return StatefulLoader(dataset, options)
        from headrace.loader._accelerated import AcceleratedLoader

        return AcceleratedLoader(dataset, options)

    def _prepare(self, options: LoaderOptions) -> None:
        """Share the data with the ranks and workers of a loader, and set the number of workers."""
        ranks = find_ranks(
            self._options["rank"],
            self._options["world_size"],
            accelerator=options["accelerator"],
            process_group=options["process_group"],
            device_mesh=options["device_mesh"],
        )
        if ranks != self.ranks:
            self._join(ranks)
        if options["num_workers"] is None:
            options["num_workers"] = self._fitting_workers()
        self._workers = options["num_workers"] or 1
        found, before = self.epochs.found, self.epochs.planner
        planner = self._planner_for(found, self._adopted_order)
        if planner.order != before.order:
            self._read_from(found)  # windows are smaller where more lanes share the memory
        else:
            self.epochs = replace(self.epochs, planner=planner)

    def _join(self, ranks: Ranks) -> None:
        """Share the data with other ranks."""
        self.ranks = ranks

    def _fitting_workers(self) -> int:
        """Return 0, because threads suffice to decode, or a number of cores if user code runs."""
        if self.epochs.finish is None:
            logger.info("num_workers=0: batches are made by threads of this process")
            return 0
        beside = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # processes that share these cores
        workers = max(1, usable_cores() // beside)
        logger.info("num_workers=%d: functions of the user run in worker processes", workers)
        return workers

    # --- what there is

    @property
    def files(self) -> Sequence[DataFileInfo]:
        """The files that are read, sorted by path."""
        return self.epochs.found.files

    @property
    def schema(self) -> pa.Schema:
        """Columns and Arrow types of the rows that come out."""
        return self.epochs.found.reader.schema

    @property
    def reader(self) -> TabularReader:
        """Reads chunks of the files into tables that hold all of their values."""
        return self.epochs.found.reader

    @property
    def format(self) -> str:
        """Name of the file format."""
        return self.epochs.found.reader.source.name

    @property
    def num_rows(self) -> int | None:
        """Number of rows of an epoch; None if it is not known without reading them."""
        return self.epochs.planner.num_rows

    @property
    def batch_size(self) -> int:
        """Number of rows in a batch."""
        return self.epochs.planner.order.batch_size

    @property
    def even(self) -> Literal["drop", "pad", False]:
        """Method by which ranks get the same number of batches; False if they do not."""
        even = self._options["even"]
        if even is None:
            return "drop" if self.ranks.size > 1 else False
        return even

    @property
    def splits(self) -> list[Split]:
        """The lanes of the current epoch, as Splits."""
        return list(self.plan())

    def __len__(self) -> int:
        """Return the number of batches of an epoch, of this rank.

        Raises:
            TypeError: The number is not known without reading the data.
        """
        planner = self.epochs.planner
        return known_batches(planner.batches_left(planner.start(self.epoch)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    @property
    def summary(self) -> str:
        """The source, its rows, the batches of this rank, the lanes and the order, in a line."""
        found, planner, ranks = self.epochs.found, self.epochs.planner, self.ranks
        paths = found.files.paths
        roots = found.roots or [path.rpartition("/")[0] or path for path in paths[:1]]
        place = f" of {shown_location(roots[0])}" if roots else ""
        more = f" and {len(roots) - 1:,} more" if len(roots) > 1 else ""
        rows = "rows not counted" if self.num_rows is None else _several(self.num_rows, "row")
        try:
            batches = _several(len(self), "batch", "es")
        except TypeError:
            batches = "batches"
        mine = f"rank {ranks.rank} of {ranks.size}: " if ranks.size > 1 else ""
        lanes = planner.origin.lanes
        return (
            f"{_several(len(paths), f'{self.format} file')}{place}{more}, {rows}; {mine}{batches} "
            f"of {self.batch_size:,}; {_several(lanes, 'lane')}; "
            f"{describe_order(planner.order, found.files, lanes)}"
        )

    def save_manifest(self, path: str | os.PathLike[str]) -> None:
        """Write a list of the files, for ``manifest=`` in other processes and later runs.

        These processes list no directory and open no file: the manifest has all that they need.
        """
        listing = self.epochs.found.listing
        if listing is None:
            raise OptionError("a table has its own lists of files: there is no manifest to save")
        save_manifest(listing, path)

    # --- rows by index

    @property
    def backend(self) -> Backend:
        """The backend that gives rows by index; raises an OptionError if there is none."""
        return self.epochs.found.reader.source.by_index(self.schema)

    @property
    def rows(self) -> RowDataset:
        """The same rows as a map-style dataset, for samplers and ``rows[i]``."""
        return rows_of(self.epochs.found, self._options)

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; running workers see it too."""
        check_count("epoch", epoch, least=0)
        self._shared[_EPOCH] = epoch
        if self._position is not None and self._position.epoch != epoch:
            self._position = None

    def end_epoch(self, epoch: int) -> None:
        """Go on to the next epoch, unless another was chosen in the meantime."""
        if self.epoch == epoch:
            self._shared[_EPOCH] = epoch + 1

    # --- iterating by hand

    def __iter__(self) -> Iterator[Any]:
        _refuse_batches_of_batches(sys._getframe(1))
        self._warn_of_other_ranks()
        if self.epochs.planner.must_agree:
            raise OptionError(
                "the ranks of a loader of your own cannot agree on their steps, and how many there "
                "are is not known beforehand: use create_dataloader, or even=False"
            )
        position, self._position = self._position, None  # it counts once
        if position is not None:  # an epoch goes on as it began, refreshed or not
            self.move_to(position)
        info = get_worker_info()
        if info is not None:
            end_with_parent()
            if self._device is not None:
                raise OptionError(
                    "device= moves batches in the process that trains; make the loader with "
                    "dataset.loader(), or use num_workers=0"
                )
        self._shared[_READ_BY_WORKERS] = info is not None
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epochs, planner = self.epochs, self.epochs.planner.by_hand(worker, workers)
        if position is not None and position.epoch == self.epoch:
            began = planner.resume(position, epochs)
        else:
            began = planner.start(self.epoch)
        running = epochs.begin(began, epochs.pipeline.sharing(workers))
        self._read = epochs, began, running
        return self._batches(running)

    def _batches(self, running: EpochPass) -> Iterator[Any]:
        in_worker = get_worker_info() is not None
        for batch in running:
            # A dict of many tensors leaves a worker in one piece.
            yield Batch(batch) if in_worker and type(batch) is dict else batch
        if not in_worker:  # workers see the epochs that their parent sets
            self.end_epoch(running.epoch)

    def _warn_of_other_ranks(self) -> None:
        """Warn once if this is one of several ranks that all read all data."""
        chosen = self._options["rank"] is not None or self.ranks.size > 1
        worker = get_worker_info()
        if chosen or self._warned_of_ranks or (worker is not None and worker.id > 0):
            return
        self._warned_of_ranks = True
        try:
            job = find_ranks()
        except OptionError:  # invalid variables of a launcher, which a loader refuses
            return
        if job.size > 1:
            warnings.warn(
                f"each of the {job.size} ranks of this job (from {job.source}) reads all rows of "
                f"this {type(self).__name__}: use dataset.loader() or create_dataloader, or give "
                "rank= and world_size=",
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last iteration of this process, or of this worker.

        With workers, the parent of the user's own loader cannot know what was handed out. There it
        is an error; use ``StatefulDataLoader`` or ``create_dataloader``.
        """
        in_worker = get_worker_info() is not None
        if self._shared[_READ_BY_WORKERS] and not in_worker:
            raise WorkerError(
                "worker processes read this dataset, and what of it was handed out is not known "
                "here: use torchdata's StatefulDataLoader, or the loader of create_dataloader"
            )
        epochs, start = self.epochs, self.epochs.planner.by_hand(0, 1).start
        if self._read is None or (self._read[2].epoch != self.epoch and not in_worker):
            return (self._position or start(self.epoch)).as_json(epochs.fingerprint)
        epochs, began, running = self._read
        now = began.after(running)
        if not in_worker and epochs.has_ended(now, running):
            now = start(now.epoch + 1)
        return now.as_json(epochs.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on from a state, in this process or in workers."""
        position = State.from_json(state)
        self.move_to(position)
        self.epochs.fingerprint.check(position)
        self._read = None
        self.set_epoch(position.epoch)
        self._position = position

    @staticmethod
    def collate(batch: Any) -> Any:
        """Return a batch as it is: the ``collate_fn`` for the user's own DataLoader."""
        return batch

    # --- for loaders

    def move_to(self, state: State) -> None:
        """Change to the data and the order of which a state was taken.

        Data may have versions, and sizes of chunks may have been chosen on another machine.
        """
        assert state.data is not None
        order = self.epochs.planner.order
        if order.as_in(state.data.order) != order:
            self._adopted_order = state.data.order
            self._read_from(self.epochs.found)

    def _check_state_of(self, found: Discovered, state: State) -> None:
        """Raise an error if a state was not taken of this data, before anything changes."""
        assert state.data is not None
        fingerprint_of(found, self._planner_for(found, state.data.order)).check(state)

    @property
    def compared_files(self) -> ComparedFiles:
        """The files, for a comparison with those of other ranks."""
        found = self.epochs.found
        return ComparedFiles(found.files, found.roots, found.reader.store.local)

    @property
    def fork_safe(self) -> bool:
        """True if workers may be forked off a process that has used the store."""
        return self.epochs.found.reader.store.fork_safe

    @property
    def stored(self) -> tuple[int, int]:
        """Number of counted rows of the files, and of the bytes that they take in the files."""
        return _stored(self.epochs.found.files)

    def plan(self, lanes: int | None = None, epoch: int | None = None) -> Plan:
        """Return the lanes of an epoch from its start, for all ranks."""
        epoch = self.epoch if epoch is None else epoch
        planner = self.epochs.planner
        return planner.plan(planner.start(epoch, lanes), shared=False)

    def _for_chunks(self, found: Discovered, planner: Planner, pipeline: Pipeline) -> Pipeline:
        """Keep decoded row groups if chunks are parts of them; warn of costs and poor orders."""
        order = planner.order
        size, rows = order.split_bytes, order.split_rows
        chunks = cut_chunks(found.files, split_bytes=size, split_rows=rows)
        factor = self._decode_factor(found.files, chunks)
        if factor >= _WASTEFUL:
            half = pipeline.prefetch_bytes // 2
            pipeline = replace(pipeline, reader=found.reader.keeping(half), prefetch_bytes=half)
            if order.shuffle and _stored(found.files)[1] > half:
                logger.warning(
                    "chunks are much smaller than row groups, which are decoded whole: up to %.0f "
                    "times the work; larger chunks, a larger prefetch_bytes, or files with smaller "
                    "row groups avoid it",
                    factor,
                )
        few = order.shuffle and not order.grouping.reorders and len(chunks) < _FEW_CHUNKS
        if few and (planner.num_rows is None or planner.num_rows > order.batch_size):
            logger.warning(
                "shuffle=True permutes %d chunks whose rows stay in file order, as mix=1, "
                "split_rows or split_bytes say; leave these out, or give a larger mix and "
                "smaller chunks, to permute rows",
                len(chunks),
            )
        return pipeline

    def _decode_factor(self, files: FileList, chunks: Chunks) -> float:
        """Return the number of rows decoded for each row wanted, if no decoded group is kept."""
        return decode_factor(files, chunks)

    def __getstate__(self) -> dict[str, Any]:
        # Counters belong to this process. Any copy, also a shallow one, has its own.
        counters, planner = Stats(), replace(self.epochs.planner, kept={})
        epochs = replace(self.epochs, planner=planner, counters=counters)
        own = {"_counters": counters, "epochs": epochs, "_read": None, "_has_loader": False}
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not is_shared(self._shared):  # a copy that was not sent to a worker
            self._shared = shared_integers(2).copy_(self._shared)


def _stored(files: FileList) -> tuple[int, int]:
    """Return the number of counted rows of files, and of the bytes that they take in the files."""
    if len(files.groups):
        return int(files.groups.rows.sum()), int(files.groups.size_bytes.sum())
    counted = files.counts > 0
    return int(files.counts[counted].sum()), int(np.maximum(files.sizes[counted], 0).sum())


def _several(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def _refuse_batches_of_batches(caller: FrameType | None) -> None:
    """Raise an OptionError if a DataLoader would make batches of the batches of a dataset.

    torch tells a dataset nothing about the loader that iterates it. But torch iterates it from one
    of its own classes, directly or through a dataset of a framework around this one.
    """
    for _ in range(_FRAMES_TO_FETCHER):
        if caller is None:
            return
        local = caller.f_locals
        if caller.f_code is _IterableDatasetFetcher.__init__.__code__:
            collates = local["auto_collation"]
        elif caller.f_code is _IterableDatasetFetcher.fetch.__code__:
            # Accelerate passes batches of one, which a function of the user takes apart again.
            collates = local["self"].auto_collation and len(local["possibly_batched_index"]) > 1
        else:
            caller = caller.f_back
            continue
        if collates:
            raise OptionError(
                "the dataset gives ready batches, of which this DataLoader would make batches "
                "again: use DataLoader(dataset, batch_size=None), or create_dataloader, whose "
                "batch_size is the number of rows"
            )
        return


def store_access(options: DatasetOptions, found: Callable[[], Options] = dict) -> Access:
    """Return how stores are reached; ``found`` returns options used where the user gave none."""
    given = options["storage_options"]
    if given is None:
        given = {} if options["filesystem"] is not None else found()
    gap, folder, limit = options["max_gap_bytes"], options["cache_dir"], options["cache_bytes"]
    cache = None
    if folder is not None:
        cache = DiskCache.at(folder, None if limit is None else parse_bytes("cache_bytes", limit))
    return Access(
        storage_options=given,
        filesystem=options["filesystem"],
        retry=RetryPolicy(options["retries"], options["timeout_s"], options["max_elapsed_s"]),
        requests=Requests(
            parse_bytes("max_gap_bytes", gap) if gap else None if gap is None else 0,
            parse_bytes("max_request_bytes", options["max_request_bytes"]),
        ),
        cache=cache,
    )


# --- rows by index


def found_in(
    backend: Backend, options: DatasetOptions, version: tuple[int, int] | None = None
) -> Discovered:
    """Return the wanted rows of a backend, for streams."""
    return backend.found(
        columns=options["columns"],
        filters=options["filters"],
        split_rows=options["split_rows"],
        version=version,
    )


def rows_of(found: Discovered, options: DatasetOptions) -> RowDataset:
    """Return the columns that the dataset streams, by index and in the same form."""
    if options["filters"] is not None:
        raise OptionError("filters are for streams; rows by index are all that there are")
    if options["transform"] is not None or options["collate_fn"] is not None:
        raise OptionError(
            "transform and collate_fn are called with the batches of streams; for rows give them "
            "to RowDataset(dataset.backend, transform=...) and to your DataLoader"
        )
    if options["stack"] is not None or options["cast"] is not None:
        raise OptionError("stack and cast are for the batches of streams; rows have all columns")
    return RowDataset(
        found.reader.source.by_index(found.reader.schema),
        columns=options["columns"],
        output_format=options["output_format"],
        nulls=options["nulls"],
        ragged=options["ragged"],
        transform=options["row_transform"],
        on_error=options["on_error"],
    )
