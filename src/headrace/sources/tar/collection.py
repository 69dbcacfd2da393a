"""A collection of tars with their indices: found at once, loaded when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import ReadError
from headrace.model import FileList, Int64Array
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.locate import Source, find_tars
from headrace.sources.tar.places import HeldIndexes, IndexPlaces, file_of, places_of
from headrace.storage import Access, Store, side_by_side

__all__ = ["TarCollection"]

MaySkip = Callable[[ReadError], bool]
"""whether a tar that cannot be read is left out"""

_LOADING_THREADS = 16


class _Known(NamedTuple):
    """What is known of all tars once their indices were loaded."""

    members: Int64Array
    samples: Int64Array
    fields: tuple[str, ...]


class TarCollection:
    """Tars of one store, in the order of their paths, each with the index that says what is in it.

    An index that is not there is made by reading the headers of its tar, when it is first needed;
    of tars elsewhere it is kept in the cache folder. Pickles where indices are, never an index.
    """

    def __init__(
        self,
        store: Store,
        files: FileList,
        names: Sequence[str],
        places: IndexPlaces,
    ) -> None:
        self.store = store
        self.files = files
        self.names = names
        """paths relative to the source, each of them once"""
        self.broken: tuple[str, ...] = ()
        """what is wrong with tars that were left out"""
        self._places = places
        self._known: _Known | None = None
        self._held = HeldIndexes()

    @classmethod
    def find(
        cls,
        source: Source,
        *,
        metadata: Source | None = None,
        access: Access,
        may_skip: MaySkip | None = None,
    ) -> TarCollection:
        """The tars of files, directories, globs and URLs; their indices may lie in ``metadata``.

        With ``may_skip`` all indices are loaded at once, and tars whose index or headers are
        damaged are left out and named in ``broken``, if it says so.
        """
        found = find_tars(source, access)
        places = places_of(found, metadata, access)
        files = FileList(map(file_of, found.tars))
        collection = cls(found.store, files, found.names, places)
        return collection if may_skip is None else collection._whole(may_skip)

    @property
    def fork_safe(self) -> bool:
        """Whether a forked child may read what its parent has read from."""
        return self.store.fork_safe and all(store.fork_safe for store in self._places.stores)

    def __len__(self) -> int:
        return len(self.files)

    def index(self, shard: int) -> TarIndex:
        """Return the index of a tar, checked against the tar; see ``IndexPlaces.load``.

        The headers of members are compared with it when the members are read. Content that was
        replaced behind equal names and sizes is not noticed: see ``headrace index --verify``.
        """
        return self._held.get(shard, self._loaded)

    # --- all of them

    @property
    def member_counts(self) -> Int64Array:
        """How many files each tar holds."""
        return self._all.members

    @property
    def sample_counts(self) -> Int64Array:
        """How many samples each tar holds."""
        return self._all.samples

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields that samples of any tar have, in the order in which they first come."""
        return self._all.fields

    @property
    def _all(self) -> _Known:
        if self._known is None:
            self._known = _known_of(_raised(one) for one in self._counted(range(len(self))))
        return self._known

    def _counted(self, shards: Sequence[int]) -> list[_Count | ReadError]:
        """Load indices side by side, where that takes time."""
        if self.store.local and len(shards) == 1:
            return [self._count(shards[0])]
        return list(side_by_side(self._count, shards, threads=_LOADING_THREADS))

    def _count(self, shard: int) -> _Count | ReadError:
        try:
            index = self.index(shard)
        except ReadError as error:
            return error
        return _Count(len(index), index.num_samples, index.grouping.field_names)

    def _whole(self, may_skip: MaySkip) -> TarCollection:
        counted = self._counted(range(len(self)))
        errors = [one for one in counted if isinstance(one, ReadError)]
        for error in errors:
            if not may_skip(error):
                raise error
        if len(errors) == len(counted):
            raise ReadError(f"no tar can be read; the first: {errors[0]}")
        good = [i for i, one in enumerate(counted) if not isinstance(one, ReadError)]
        whole = TarCollection(
            self.store,
            FileList(self.files[i] for i in good),
            [self.names[i] for i in good],
            self._places.only(np.array(good, np.int32)),
        )
        whole._known = _known_of(one for one in counted if not isinstance(one, ReadError))
        whole.broken = tuple(map(str, errors))
        return whole

    # --- one of them

    def _loaded(self, shard: int) -> TarIndex:
        return self._places.load(shard, self.store, self.files[shard])

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_held"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._held = HeldIndexes()

    def __repr__(self) -> str:
        return f"<TarCollection of {len(self)} tars>"


class _Count(NamedTuple):
    members: int
    samples: int
    fields: tuple[str, ...]


def _known_of(counts: Iterable[_Count]) -> _Known:
    counted = list(counts)
    return _Known(
        np.array([one.members for one in counted], np.int64),
        np.array([one.samples for one in counted], np.int64),
        tuple(dict.fromkeys(name for one in counted for name in one.fields)),
    )


def _raised(one: _Count | ReadError) -> _Count:
    if isinstance(one, ReadError):
        raise one
    return one
