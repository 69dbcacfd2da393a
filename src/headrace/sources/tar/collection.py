"""Collections of tars: found at once, with indexes that are loaded when they are needed.

An index is compared with its tar when it is loaded. A tar without an index is scanned. Indexes that
were made by a scan, or imported from JSON, are kept in the cache folder.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import numpy as np
import pyarrow as pa

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileList, Int64Array, computed_once
from headrace.process import BoundedCache
from headrace.sources.tar._json_index import JsonFile
from headrace.sources.tar._locate import (
    IndexCache,
    IndexPlace,
    TarLocation,
    find_tars,
    places_of,
)
from headrace.sources.tar.checks import check_end, check_index
from headrace.sources.tar.grouping import LeftOut, SampleKey, check_sample_key, grouped
from headrace.sources.tar.index import IndexFile, TarIndex, write_index
from headrace.sources.tar.scan import scan_tar
from headrace.storage import Access, Parts, RemoteStore, Store, side_by_side

logger = logging.getLogger(__name__)

T = TypeVar("T")

MaySkip = Callable[[ReadError], bool]
"""Returns True if a tar that cannot be read is left out."""

_LOADING_THREADS = 16
_LIMIT_BYTES = 1 << 30
_DERIVED_BYTES = 16
"""Estimated bytes of memory per member for everything that is computed from an index."""
_WORTH_KEEPING = 1_000
"""Number of members of a local tar above which loading its index is faster than making it."""


@dataclass(frozen=True, slots=True)
class SampleRules:
    """The rules by which members make samples, and samples are chosen.

    Attributes:
        sample_key: The rule for keys; None for the rule of the index.
        required: The extensions of each field that a sample must have one of.
        max_file_size: Size beyond which a member keeps its sample from being read.
    """

    sample_key: SampleKey | None = None
    required: tuple[tuple[str, ...], ...] = ()
    max_file_size: int | None = None

    def applied(self, index: TarIndex) -> TarIndex:
        """Return an index whose samples are those that are read."""
        sample_key = self.sample_key or index.facts.sample_key
        if sample_key != index.grouping.sample_key:
            grouping = grouped(index.names, sample_key)
            index = replace(index, stored_grouping=grouping)
        if not self.required and self.max_file_size is None:
            return index
        keep = np.ones(index.num_samples, np.bool_)
        for extensions in self.required:
            keep &= np.any([index.members_as(name) >= 0 for name in extensions], axis=0)
        incomplete = int((~keep).sum())
        if self.max_file_size is not None:
            large = (index.sizes > self.max_file_size) & (index.grouping.samples >= 0)
            keep[index.grouping.samples[large]] = False
        left_out = LeftOut(
            files=index.grouping.left_out.files,
            incomplete=incomplete,
            oversized=int((~keep).sum()) - incomplete,
        )
        if keep.all():
            return index
        grouping = index.grouping.only(keep, left_out)
        return replace(index, stored_grouping=grouping)


_ALL_SAMPLES = SampleRules()


class _TarCounts(NamedTuple):
    """Counts of some tars, known once their indexes are loaded."""

    samples: Int64Array
    """The number of samples of each tar."""
    fields: dict[str, int]
    """The number of samples that have each field."""
    left_out: LeftOut


class TarCollection:
    """Tars of one store, in the order of their paths, each with the index that says what is in it.

    A missing index is made by reading the headers of its tar, when it is first needed. A pickle has
    the places of indexes, but not the indexes.
    """

    def __init__(
        self,
        store: Store,
        files: FileList,
        names: Sequence[str],
        places: Sequence[IndexPlace | None],
        cache: IndexCache,
        rules: SampleRules = _ALL_SAMPLES,
    ) -> None:
        self.store = store
        self.files = files
        self.names = names
        """Paths relative to the source, each of them once."""
        self.broken: tuple[str, ...] = ()
        """Errors of tars that were left out."""
        self.rules = rules
        self.fork_safe = store.fork_safe and all(one.store.fork_safe for one in places if one)
        """True if a forked child may read what its parent has read from."""
        self._places, self._cache = places, cache
        self._opened: dict[str, IndexFile | JsonFile] = {}
        self._held = BoundedCache(_size_in_memory)
        self._known: dict[int, ref[TarIndex]] = {}
        """The indexes that are in use: an index is found here several times as fast."""

    @classmethod
    def find(
        cls,
        source: TarLocation,
        *,
        metadata: TarLocation | None = None,
        access: Access,
        may_skip: MaySkip | None = None,
        sample_key: SampleKey | None = None,
    ) -> TarCollection:
        """Return the tars of files, directories, globs and URLs.

        Args:
            source: Where the tars are.
            metadata: Where their indexes are, if not beside them.
            access: Options of stores, and the cache.
            may_skip: If given, all indexes are loaded at once. Tars whose index or headers are
                damaged are left out and named in ``broken`` if it returns True for the error.
            sample_key: The rule for keys of samples.
        """
        found = find_tars(source, access)
        places = places_of(found, metadata, access)
        files = FileList(found.tars)
        check_sample_key(sample_key)
        cache = IndexCache.within(access.cache)
        collection = cls(found.store, files, found.names, places, cache, SampleRules(sample_key))
        return collection if may_skip is None else collection._without_broken(may_skip)

    def __len__(self) -> int:
        return len(self.files)

    def index(self, shard: int) -> TarIndex:
        """Return the index of a tar, compared with the tar.

        The headers of members are compared with it when the members are read. Content that was
        replaced behind equal names and sizes is not noticed: see ``headrace index --verify``.
        """
        known = self._known.get(shard)
        index = None if known is None else known()
        if index is None:
            load = partial(self._loaded, shard)
            index = self._held.get_or_make(shard, load, limit_bytes=_LIMIT_BYTES)
            self._known[shard] = ref(index)
        return index

    def selecting(self, rules: SampleRules) -> TarCollection:
        """Return the same tars with other rules for the choice of samples."""
        return self._some(range(len(self)), rules)

    def _some(self, shards: Sequence[int], rules: SampleRules) -> TarCollection:
        some = TarCollection(
            self.store,
            FileList(self.files[shard] for shard in shards),
            [self.names[shard] for shard in shards],
            [self._places[shard] for shard in shards],
            self._cache,
            rules,
        )
        some.broken = self.broken
        return some

    # --- all of them

    @property
    def left_out(self) -> LeftOut:
        """Numbers of files and samples of all tars that are not read."""
        return self._all.left_out

    @property
    def complete_fields(self) -> frozenset[str]:
        """The fields that all samples have."""
        total = int(self._all.samples.sum())
        return frozenset(name for name, count in self._all.fields.items() if count == total)

    @property
    def sample_counts(self) -> Int64Array:
        """The number of samples of each tar."""
        return self._all.samples

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields that samples of any tar have, in the order in which they first come."""
        return tuple(self._all.fields)

    @computed_once
    def _all(self) -> _TarCounts:
        samples, fields, left_out = zip(*self._each(self._count), strict=True)
        counts: Counter[str] = Counter()
        for one in fields:
            counts.update(one)
        return _TarCounts(
            np.concatenate(samples), counts, LeftOut(*np.sum(left_out, axis=0).tolist())
        )

    def _each(self, count: Callable[[int], T]) -> list[T]:
        """Call a function that loads an index for each tar, in parallel if that takes time."""
        shards = range(len(self))
        if self.store.local and len(shards) == 1:
            return [count(0)]
        return list(side_by_side(count, shards, threads=_LOADING_THREADS))

    def _count(self, shard: int) -> _TarCounts:
        index = self.index(shard)
        grouping = index.grouping
        there = grouping.fields[grouping.fields >= 0]
        times = np.bincount(there, minlength=len(grouping.field_names)).tolist()
        fields = dict(zip(grouping.field_names, times, strict=True))
        return _TarCounts(np.array([index.num_samples]), fields, grouping.left_out)

    def _without_broken(self, may_skip: MaySkip) -> TarCollection:
        """Return the tars that can be read."""
        errors: dict[int, str] = {}

        def load(shard: int) -> None:
            try:
                self.index(shard)
            except ReadError as error:
                if not may_skip(error):
                    raise
                errors[shard] = str(error)

        self._each(load)
        self.broken = tuple(errors[shard] for shard in sorted(errors))
        if len(errors) == len(self):
            raise ReadError(f"no tar can be read; the first: {errors[0]}")
        good = [shard for shard in range(len(self)) if shard not in errors]
        return self._some(good, self.rules) if errors else self

    # --- one of them

    def _loaded(self, shard: int) -> TarIndex:
        return self.rules.applied(self._checked(shard, self.files[shard]))

    def _checked(self, shard: int, file: DataFileInfo) -> TarIndex:
        place, path = self._places[shard], None
        if place is None:
            path = self._cache.index_path(self.store, file)
        elif not place.is_columnar and place.file.etag is not None:
            path = self._cache.index_path(self.store, file, place.file.path, place.file.etag)
        store = self.store
        if isinstance(store, RemoteStore):  # one that does not keep what is read for an index
            store = replace(store, parts=Parts())
        kept = None if path is None else self._cache.read_index(path)
        if kept is not None:
            return _compared(kept, store, file)
        if place is not None:
            index = _compared(self._read(place), store, file)
        else:
            logger.info("%s has no index, so its headers are read; see: headrace index", file.path)
            index = scan_tar(store, file, sidecars=False)
            index.unchecked.fill(False)
        if path is not None and (len(index) >= _WORTH_KEEPING or not store.local):
            index = replace(index, facts=replace(index.facts, etag=file.etag))
            tars = [(file.path.rpartition("/")[2], index)]
            self._cache.keep(path, lambda path: write_index(path, tars))
        return index

    def _read(self, place: IndexPlace) -> TarIndex:
        """Read an index; a file of many tars stays open."""
        path = place.file.path
        opened = self._opened.get(path) or place.open()
        if len(opened.tars) > 1:
            self._opened[path] = opened
        return opened.index(place.number)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": {}, "_known": {}}


def _compared(index: TarIndex, store: Store, file: DataFileInfo) -> TarIndex:
    check_index(index, file.file_size, file.path)
    check_end(store, file, index)
    return index


def _size_in_memory(index: TarIndex) -> int:
    columns = (one for one in vars(index).values() if isinstance(one, np.ndarray | pa.Array))
    return sum(column.nbytes for column in columns) + _DERIVED_BYTES * len(index)
