"""The engine of every tabular data set: what was found, planned and turned into batches."""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from headrace.access import Backend, RowDataset
from headrace.convert import Converter
from headrace.errors import OptionError, SkippedDataWarning, WorkerError
from headrace.formats.discovered import Discovered
from headrace.loader.board import Board
from headrace.loader.bookmark import Bookmark
from headrace.loader.claims import Claims
from headrace.loader.feed import Feed
from headrace.loader.fingerprint import Fingerprint
from headrace.loader.iterator import DatasetIterator, crew_here
from headrace.loader.options import OrderOptions
from headrace.loader.passes import Passes
from headrace.loader.pipeline import Pipeline
from headrace.loader.planner import Planner
from headrace.loader.rank_comparison import ComparedFiles
from headrace.loader.ranks import Ranks
from headrace.loader.row_access import backend_of, rows_of
from headrace.loader.settings import Settings
from headrace.loader.state import Position
from headrace.loader.stats import Stats
from headrace.model import DataFileInfo, Split
from headrace.plan import LanePlan, decode_factor
from headrace.storage import save_manifest

__all__ = ["TabularDataset"]

logger = logging.getLogger(__name__)

_WASTEFUL = 1.5
"""rows decoded for each row wanted, from which on decoded row groups are kept"""


class TabularDataset(IterableDataset[Any]):
    """Batches of the rows of files.

    Iterating gives every row exactly once, in one process as in the workers of a plain
    ``DataLoader(dataset, batch_size=None, num_workers=n)``, whatever their number.
    """

    def __init__(self, found: Discovered, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self.counters = Stats()
        self._bookmark = Bookmark()
        self._iterator: weakref.ref[DatasetIterator] | None = None
        self._loaded: Mapping[str, Any] = {}  # the state of which the bookmark is
        self._read_from(found)
        for reason in found.broken:
            self.counters.skip(reason)
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=4)

    def _read_from(self, found: Discovered) -> None:
        """Take what was found as the data of the iterations to come; running ones go on."""
        settings = self._settings
        order = settings.order(found.files)
        counted = found.counted and not settings.skip_broken
        planner = self._planner(found, order, counted)
        rows, ranks = planner.num_rows, settings.ranks.size
        if rows is not None and rows < ranks > 1:
            raise OptionError(f"{rows} rows cannot be shared by {ranks} ranks")
        pipeline = Pipeline(
            found.reader,
            Converter(
                found.reader.schema,
                settings.output_format,
                nulls=settings.nulls,
                ragged=settings.ragged,
            ),
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            seed=order.shuffle_seed,
            grouping=order.grouping,
            counted=counted,
            skip_broken=settings.skip_broken,
            prefetch_bytes=settings.budget_bytes,
        )
        self._found, self._order, self._finish = found, order, settings.finish
        self._known_fingerprint: Fingerprint | None = None
        self.planner, self.pipeline = planner, pipeline
        self.counters.stored(found.counts)
        if order.split_strategy is None:
            self._provide_for_small_chunks()

    def _planner(self, found: Discovered, order: OrderOptions, counted: bool) -> Planner:
        """For the same ranks and workers as before, if there was one."""
        if hasattr(self, "planner"):
            return self.planner.over(found.files, order, counted=counted)
        return Planner(
            found.files,
            order,
            counted=counted,
            ranks=self._settings.ranks,
            even=self._settings.even,
            balance=self._settings.balance,
        )

    # --- what there is

    @property
    def files(self) -> Sequence[DataFileInfo]:
        """The files that are read, sorted by path."""
        return self._found.files

    @property
    def schema(self) -> pa.Schema:
        """Columns and Arrow types of what comes out."""
        return self._found.reader.schema

    @property
    def format(self) -> str:
        """Name of the file format."""
        return self._found.reader.rows.name

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None when only reading them would tell."""
        return self.planner.num_rows

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._order.batch_size

    @property
    def ranks(self) -> Ranks:
        """Which of how many processes that share the data this is."""
        return self.planner.ranks

    @property
    def workers(self) -> int:
        """Worker processes of each rank, at least 1."""
        return self.planner.workers

    @property
    def even(self) -> str | bool:
        """How ranks come to the same number of batches; False: they do not."""
        return self.planner.even

    @property
    def splits(self) -> list[Split]:
        """Who reads what in the current epoch: one Split a lane."""
        return list(self.plan())

    def __len__(self) -> int:
        """Batches of an epoch, of this rank; a TypeError when only reading them would tell."""
        batches = self.planner.batches_left(self.planner.crew.start(self.epoch))
        if batches is None:
            raise TypeError(
                "the number of batches is not known before they are read: rows are filtered, "
                "deleted in their table, not counted in this format, or may be skipped "
                '(on_error="skip"), or workers take them as they can (balance="adaptive")'
            )
        return batches

    def __repr__(self) -> str:
        rows = "?" if self.num_rows is None else f"{self.num_rows:,}"
        return f"<{type(self).__name__}: {len(self.files)} {self.format} files, {rows} rows>"

    def save_manifest(self, path: str | os.PathLike[str]) -> None:
        """Write down which files there are, for ``manifest=`` of other processes and later runs.

        They then list nothing and look into no file: what they need is in there.
        """
        if self._found.listing is None:
            raise OptionError("a table has its own lists of files: there is no manifest to save")
        save_manifest(self._found.listing, path)

    # --- rows by index

    @property
    def backend(self) -> Backend:
        """What gives the rows by their index; an OptionError where nothing does."""
        return backend_of(self._found, self._settings)

    @property
    def rows(self) -> RowDataset:
        """The same rows as a map-style dataset, for samplers and ``rows[i]``."""
        return rows_of(self._found, self._settings)

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._bookmark.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; running workers see it too."""
        self._bookmark.set_epoch(epoch)

    def end_epoch(self, epoch: int) -> None:
        """Go on to the next epoch, unless another was chosen in the meantime."""
        self._bookmark.end_epoch(epoch)

    # --- iterating by hand

    def __iter__(self) -> DatasetIterator:
        if self.planner.must_agree:
            raise OptionError(
                "the ranks of a loader of your own cannot agree on their steps, and how many there "
                "are is not known beforehand: use create_dataloader, or even=False"
            )
        in_worker = get_worker_info() is not None
        if self._bookmark.position is not None:  # an epoch goes on as it began, refreshed or not
            self.move_to(self._loaded)
        if in_worker:
            self._bookmark.tell_parent()
        made = DatasetIterator(
            self.passes,
            self._bookmark,
            partial(_fingerprint, self._found, self._order, self.planner),
            crew=crew_here(self.planner),
            in_worker=in_worker,
        )
        made.begin(self._bookmark.take())
        self._iterator = weakref.ref(made)
        return made

    def state_dict(self) -> dict[str, Any]:
        """Where the last iteration is; for workers see their iterators.

        The parent of a loader of your own with workers cannot know what was handed out: there it
        is an error, and ``StatefulDataLoader`` or ``create_dataloader`` the cure.
        """
        running = self._iterator() if self._iterator is not None else None
        if running is not None:
            return running.state_dict()
        if get_worker_info() is None and self._bookmark.read_by_workers:
            raise WorkerError(
                "worker processes read this dataset, and what of it was handed out is not known "
                "here: use torchdata's StatefulDataLoader, or the loader of create_dataloader"
            )
        position = self._bookmark.position or crew_here(self.planner).start(self.epoch)
        loaded = None if self._bookmark.position is None else self._loaded
        return position.as_state(self.fingerprint, loaded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on from a state, in this process or in workers."""
        self.move_to(state)
        position = Position.from_state(state, self.fingerprint)
        self._iterator = None
        self._loaded = dict(state)
        self._bookmark.put(position)

    @staticmethod
    def collate(batch: Any) -> Any:
        """The ``collate_fn`` for a DataLoader of your own: leaves a finished batch as it is."""
        return batch

    # --- for loaders

    def move_to(self, state: Mapping[str, Any]) -> None:
        """Make this the data that a state was taken of, where there are versions of it."""

    def _check_state_of(self, found: Discovered, state: Mapping[str, Any]) -> None:
        """Refuse a state that was not taken of this data, before anything is moved there."""
        order = self._settings.order(found.files)
        planner = self.planner.over(found.files, order, counted=found.counted)
        Position.from_state(state, _fingerprint(found, order, planner))

    @property
    def passes(self) -> Passes:
        """How it is read in this process."""
        return Passes(self.planner, self.pipeline, self._found.files, self._finish, self.counters)

    @property
    def fingerprint(self) -> Fingerprint:
        """What a state of this data set refers to; of many files it is made once."""
        if self._known_fingerprint is None:
            self._known_fingerprint = _fingerprint(self._found, self._order, self.planner)
        return self._known_fingerprint

    @property
    def compared_files(self) -> ComparedFiles:
        """The files, for a comparison with those of other ranks."""
        found = self._found
        return ComparedFiles(found.files, found.roots, found.reader.store.local)

    @property
    def fork_safe(self) -> bool:
        """Whether workers may be forked off a process that has used the store."""
        return self._found.reader.store.fork_safe

    @property
    def stored(self) -> tuple[int, int]:
        """Rows of the files, as far as they are counted, and the bytes that these take there."""
        files = self._found.files
        counted = files.counts > 0
        if len(files.groups):
            return int(files.groups.rows.sum()), int(files.groups.size_bytes.sum())
        return int(files.counts[counted].sum()), int(np.maximum(files.sizes[counted], 0).sum())

    def feed(self, board: Board, parcel_batches: int, workers: int, claims: Claims | None) -> Feed:
        """What worker processes run."""
        files = self._found.files
        return Feed(self.pipeline, files, board, self._finish, parcel_batches, workers, claims)

    def plan(self, lanes: int | None = None, epoch: int | None = None) -> LanePlan:
        """Who reads what: the lanes of an epoch from its start, for all ranks."""
        epoch = self.epoch if epoch is None else epoch
        return self.planner.plan_at(self.planner.crew.start(epoch, lanes).place)

    def _provide_for_small_chunks(self) -> None:
        """Chunks that are parts of row groups: keep decoded groups, and say what it costs.

        Half of the memory for reading ahead goes to the groups that are kept.
        """
        factor = decode_factor(self._found.files, self.plan(lanes=1, epoch=0).chunks)
        if factor < _WASTEFUL:
            return
        half = self.pipeline.prefetch_bytes // 2
        reader = replace(self.pipeline.reader, cache_bytes=half)
        self.pipeline = replace(self.pipeline, reader=reader, prefetch_bytes=half)
        if self._order.shuffle and self._found.files.groups.size_bytes.sum() > half:
            logger.warning(
                "chunks are much smaller than row groups, which are decoded whole: up to %.0f "
                "times the work; larger split_rows, or files with smaller row groups, avoid it",
                factor,
            )

    def __getstate__(self) -> dict[str, Any]:
        # Counters are of this process; a copy, also a shallow one, is set up and goes on by itself.
        own = {"planner": copy(self.planner), "_bookmark": copy(self._bookmark)}
        return {**self.__dict__, **own, "_iterator": None, "counters": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, counters=Stats())


def _fingerprint(found: Discovered, order: OrderOptions, planner: Planner) -> Fingerprint:
    return Fingerprint.of(
        found.files,
        found.roots,
        filters=found.filter,
        order=order.describe(),
        seed=order.shuffle_seed,
        version=found.version,
        splits_digest=planner.splits_digest,
    )
