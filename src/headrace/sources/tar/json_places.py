"""Where the entries of a JSON index say that the JSON sidecars of their samples lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import Int64Array
from headrace.sources.tar.grouping import Int32Array, sample_keys
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.json_columns import BoolArray, Entries

__all__ = ["PLACE_KEYS", "SidecarPlaces"]

PLACE_KEYS = ("json_path", "json_offset", "json_length")


@dataclass(frozen=True, slots=True, eq=False)
class SidecarPlaces:
    """Columns in step with the entries."""

    paths: pa.StringArray
    offsets: Int64Array
    """-1 where none is said"""
    sizes: Int64Array

    @classmethod
    def said_by(cls, said: Entries) -> SidecarPlaces:
        """Those of all entries; what is no place is refused."""
        paths = said.texts(PLACE_KEYS[0])
        return cls(paths, *(said.integers(key, missing=-1) for key in PLACE_KEYS[1:]))

    def with_unlisted(self, index: TarIndex) -> TarIndex:
        """The index with the sidecars that have no entries as members at its end.

        Only those that their names make of the sample: another name would be another sample.
        """
        whole = _bools(pc.is_valid(self.paths)) & (self.offsets >= 0) & (self.sizes >= 0)
        whole &= ~_bools(pc.is_in(self.paths, index.names))
        places = np.flatnonzero(whole)
        paths, owners = (column.take(pa.array(places)) for column in (self.paths, index.names))
        places = places[_are_sidecars(paths, owners)]
        paths = self.paths.take(pa.array(places)).to_pylist()
        named = zip(paths, self.offsets[places].tolist(), strict=True)
        once = dict(zip(named, places.tolist(), strict=True))
        return self._followed_by(index, np.array(list(once.values()))) if once else index

    def odd(
        self, index: TarIndex, sidecars: Int32Array, members: Int64Array, entries: Int64Array
    ) -> BoolArray:
        """Which members have entries that say another place than that of their sidecar, or none."""
        sidecars = sidecars[members]
        has = sidecars >= 0
        names = index.names.take(pa.array(sidecars, mask=~has))
        paths = self.paths.take(pa.array(entries))
        neither = pc.and_(pc.is_null(names), pc.is_null(paths))
        same = _bools(pc.or_(neither, pc.fill_null(pc.equal(names, paths), False)))
        same &= self.offsets[entries] == np.where(has, index.offsets[sidecars], -1)
        same &= self.sizes[entries] == np.where(has, index.sizes[sidecars], -1)
        return ~same

    def _followed_by(self, index: TarIndex, places: Int64Array) -> TarIndex:
        columns = {
            "names": self.paths.take(pa.array(places)),
            "offsets": self.offsets[places],
            "sizes": self.sizes[places],
        }
        more: dict[str, Any] = {
            key: _joined(column, columns.get(key), len(places))
            for key, column in vars(index).items()
            if isinstance(column, pa.Array | np.ndarray)
        }
        return replace(index, **more, unlisted=np.arange(len(index) + len(places)) >= len(index))


def _joined(
    column: pa.Array | np.ndarray, more: pa.Array | np.ndarray | None, count: int
) -> pa.Array | np.ndarray:
    """A column with more behind it; without more, with nothing that is known."""
    if isinstance(column, pa.Array):
        return pa.concat_arrays([column, pa.nulls(count, column.type) if more is None else more])
    return np.concatenate([column, np.zeros(count, column.dtype) if more is None else more])


def _are_sidecars(paths: pa.StringArray, owners: pa.StringArray) -> BoolArray:
    """Which of these are the JSON sidecar in the sample of the other."""
    keys = sample_keys(owners)
    named = pc.equal(
        pc.utf8_lower(pc.binary_join_element_wise(keys, "json", ".")), pc.utf8_lower(paths)
    )
    return _bools(pc.and_(named, pc.equal(sample_keys(paths), keys)))


def _bools(array: pa.BooleanArray) -> BoolArray:
    values: BoolArray = array.to_numpy(zero_copy_only=False)
    return values if values.flags.writeable else values.copy()
