"""Samples of one tar as columns: keys, the members that are their fields, what is said of them."""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model import Int64Array
from headrace.sources.tar.grouping import sample_keys
from headrace.sources.tar.index import TarIndex

__all__ = ["METADATA", "keys_of", "members_of", "metadata_of"]

Members = npt.NDArray[np.int32]

METADATA = pa.schema(
    [
        ("path", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("aspect", pa.float64()),
        ("captions", pa.list_(pa.string())),
        ("json", pa.string()),
    ]
)
"""What an index says of samples, beside their keys. Nothing is null: what is not known is 0, of
the aspect NaN, and an empty list or text."""

_members: WeakKeyDictionary[TarIndex, dict[str, Members]] = WeakKeyDictionary()
_keys: WeakKeyDictionary[TarIndex, pa.StringArray] = WeakKeyDictionary()


def members_of(index: TarIndex, field: str) -> Members:
    """The member of each sample that is this field of it; -1 where it has none. Kept."""
    known = _members.setdefault(index, {})
    found = known.get(field)
    if found is None:
        found = known[field] = index.members_as(field)
    return found


def keys_of(index: TarIndex, samples: Int64Array) -> pa.StringArray:
    """The keys of some samples. Those of all are kept."""
    found = _keys.get(index)
    if found is None:
        found = sample_keys(
            index.names.take(pa.array(index.primary_members)), index.grouping.sample_key
        )
        _keys[index] = found
    return found.take(pa.array(samples))


def metadata_of(index: TarIndex, samples: Int64Array, column: str) -> pa.Array:
    """A column of ``METADATA`` for some samples: what is said of their primary members."""
    primary = index.primary_members[samples]
    if column == "path":
        return index.names.take(pa.array(primary))
    if column == "offset":
        return pa.array(index.offsets[primary])
    if column == "size":
        return pa.array(index.sizes[primary])
    if column == "captions":
        return pa.array(_captions(index, primary), METADATA.field(column).type)
    if column == "json":
        texts = pa.nulls(len(primary), pa.string()) if index.json is None else index.json
        if index.json is not None:
            texts = texts.take(pa.array(primary))
        return texts.cast(pa.string()).fill_null("")
    width, height = (_sides(sides, primary) for sides in (index.widths, index.heights))
    if column == "aspect":
        known = (width > 0) & (height > 0)
        return pa.array(np.where(known, width / np.where(known, height, 1), np.nan))
    return pa.array(width if column == "width" else height)


def _sides(sides: Members | None, members: Members) -> Members:
    return np.zeros(len(members), np.int32) if sides is None else sides[members]


def _captions(index: TarIndex, members: Members) -> list[list[str]]:
    if index.captions is None:
        return [[] for _ in members]
    texts: list[Any] = index.captions.take(pa.array(members)).to_pylist()
    found = [[] if text is None else json.loads(text) for text in texts]
    return [[one] if isinstance(one, str) else list(one) for one in found]
