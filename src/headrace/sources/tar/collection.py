"""A collection of tars with their indices: found at once, loaded when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import ReadError
from headrace.model import FileList, Int64Array
from headrace.sources.tar.grouping import LeftOut, SampleKey, check_sample_key, grouped
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.locate import Source, find_tars
from headrace.sources.tar.places import HeldIndexes, IndexPlaces, file_of, places_of
from headrace.storage import Access, Store, side_by_side

__all__ = ["SampleRules", "TarCollection"]

MaySkip = Callable[[ReadError], bool]
"""whether a tar that cannot be read is left out"""

_LOADING_THREADS = 16


@dataclass(frozen=True, slots=True)
class SampleRules:
    """Which members make a sample, and which samples are read.

    Attributes:
        sample_key: The rule for keys; None for that of the index.
        required: The extensions of each field that a sample must have one of.
        max_file_size: Size beyond which a member keeps its sample from being read.
    """

    sample_key: SampleKey | None = None
    required: tuple[tuple[str, ...], ...] = ()
    max_file_size: int | None = None

    def applied(self, index: TarIndex) -> TarIndex:
        """Return an index whose samples are those that are read."""
        sample_key = self.sample_key
        if sample_key is None:
            by_last_dot = index.facts.sample_key == "last-dot" or _pairs_by_last_dot(index)
            sample_key = "last-dot" if by_last_dot else "first-dot"
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


def _pairs_by_last_dot(index: TarIndex) -> bool:
    """Return True if an index embeds sidecars of several members of what would be one sample."""
    for texts in (index.json, index.captions):
        if texts is not None and index.grouping.sample_key == "first-dot":
            samples = index.grouping.samples[texts.is_valid().to_numpy(zero_copy_only=False)]
            samples = samples[samples >= 0]
            if len(np.unique(samples)) < len(samples):
                return True
    return False


class _Known(NamedTuple):
    """What is known of all tars once their indices were loaded."""

    samples: Int64Array
    fields: dict[str, int]
    """How many samples have each field."""
    left_out: LeftOut


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
        rules: SampleRules = _ALL_SAMPLES,
    ) -> None:
        self.store = store
        self.files = files
        self.names = names
        """paths relative to the source, each of them once"""
        self.broken: tuple[str, ...] = ()
        """what is wrong with tars that were left out"""
        self._places = places
        self.rules = rules
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
        sample_key: SampleKey | None = None,
    ) -> TarCollection:
        """The tars of files, directories, globs and URLs; their indices may lie in ``metadata``.

        With ``may_skip`` all indices are loaded at once, and tars whose index or headers are
        damaged are left out and named in ``broken``, if it says so.
        """
        found = find_tars(source, access)
        places = places_of(found, metadata, access)
        files = FileList(map(file_of, found.tars))
        check_sample_key(sample_key)
        rules = SampleRules(sample_key)
        collection = cls(found.store, files, found.names, places, rules)
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

    def selecting(self, rules: SampleRules) -> TarCollection:
        """Return the same tars with other rules about which samples are read."""
        selected = TarCollection(self.store, self.files, self.names, self._places, rules)
        selected.broken = self.broken
        return selected

    # --- all of them

    @property
    def left_out(self) -> LeftOut:
        """Numbers of files and samples of all tars that are not read."""
        return self._all.left_out

    @property
    def incomplete_fields(self) -> frozenset[str]:
        """The fields that some samples do not have."""
        known = self._all
        total = int(known.samples.sum())
        return frozenset(name for name, count in known.fields.items() if count < total)

    @property
    def sample_counts(self) -> Int64Array:
        """How many samples each tar holds."""
        return self._all.samples

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields that samples of any tar have, in the order in which they first come."""
        return tuple(self._all.fields)

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
        grouping = index.grouping
        there = grouping.fields[grouping.fields >= 0]
        times = np.bincount(there, minlength=len(grouping.field_names)).tolist()
        fields = dict(zip(grouping.field_names, times, strict=True))
        return _Count(index.num_samples, fields, grouping.left_out)

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
            self.rules,
        )
        whole._known = _known_of(one for one in counted if not isinstance(one, ReadError))
        whole.broken = tuple(map(str, errors))
        return whole

    # --- one of them

    def _loaded(self, shard: int) -> TarIndex:
        return self.rules.applied(self._places.load(shard, self.store, self.files[shard]))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_held"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._held = HeldIndexes()

    def __repr__(self) -> str:
        return f"<TarCollection of {len(self)} tars>"


class _Count(NamedTuple):
    samples: int
    fields: dict[str, int]
    left_out: LeftOut


def _known_of(counts: Iterable[_Count]) -> _Known:
    counted = list(counts)
    fields: dict[str, int] = {}
    for one in counted:
        for name, times in one.fields.items():
            fields[name] = fields.get(name, 0) + times
    return _Known(
        np.array([one.samples for one in counted], np.int64),
        fields,
        LeftOut(*np.sum([(0, 0, 0), *(one.left_out for one in counted)], axis=0).tolist()),
    )


def _raised(one: _Count | ReadError) -> _Count:
    if isinstance(one, ReadError):
        raise one
    return one
