"""Samples: members of a tar that share a key, the path up to the first dot of the base name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import Int64Array

__all__ = ["WHOLE", "Grouping", "Int32Array", "grouped", "sample_keys"]

Int32Array = npt.NDArray[np.int32]

WHOLE = "__data__"
"""the field of a member whose base name has no dot: it is a sample of its own key"""
_DOT, _SLASH = ord("."), ord("/")


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Which sample each member of a tar belongs to, and as what."""

    samples: Int32Array
    """the sample of each member; -1 for what is none's: names that begin with a dot"""
    fields: Int32Array
    """which of ``field_names`` each member is; -1 for what is no sample's"""
    field_names: tuple[str, ...]
    """extensions in lower case without the first dot, in the order in which they first come"""
    count: int
    """samples; they stand in the order of their first members"""


def grouped(names: pa.StringArray) -> Grouping:
    """Group members by their names. One that a sample already has begins another of that key."""
    keys, fields, is_sample = _parts(names)
    key_codes = _codes(keys)
    encoded = pc.utf8_lower(fields).dictionary_encode()
    field_codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    samples, count = _samples(key_codes, field_codes, len(encoded.dictionary))
    if is_sample.all():
        return Grouping(samples, field_codes, tuple(encoded.dictionary.to_pylist()), count)
    members = np.full(len(names), -1, np.int32)
    member_fields = np.full(len(names), -1, np.int32)
    members[is_sample], member_fields[is_sample] = samples, field_codes
    return Grouping(members, member_fields, tuple(encoded.dictionary.to_pylist()), count)


def sample_keys(names: pa.StringArray) -> pa.StringArray:
    """The key of each member; of one that is no sample's, the path before its dot."""
    start, dot, _, memory = _edges(names)
    return _cut(memory, start, dot)


def _samples(keys: Int32Array, fields: Int32Array, num_fields: int) -> tuple[Int32Array, int]:
    """The sample of each member, by its key, its field, and how often both came before."""
    if not len(keys):
        return keys, 0
    which = keys.astype(np.int64) * num_fields + fields
    order = np.argsort(which, kind="stable")
    sorted_ = which[order]
    first = np.flatnonzero(np.concatenate([[True], sorted_[1:] != sorted_[:-1]]))
    if len(first) == len(keys):
        return keys, int(keys.max()) + 1
    length = np.diff(np.append(first, len(keys)))
    times = np.empty(len(keys), np.int64)
    times[order] = np.arange(len(keys)) - np.repeat(first, length)
    both = keys + times * (int(keys.max()) + 1)
    _, begins, codes = np.unique(both, return_index=True, return_inverse=True)
    rank = np.empty(len(begins), np.int32)
    rank[np.argsort(begins, kind="stable")] = np.arange(len(begins), dtype=np.int32)
    return rank[codes].astype(np.int32), len(begins)


def _codes(keys: pa.StringArray) -> Int32Array:
    """Numbers of keys, in the order in which they first come."""
    before, behind = keys[:-1], keys[1:]
    if pc.all(pc.less_equal(before, behind)).as_py():  # as mostly in a tar: equal ones are together
        begins = pc.less(before, behind).to_numpy(zero_copy_only=False)
        return np.cumsum(np.append(0, begins)[: len(keys)], dtype=np.int32)
    codes: Int32Array = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return codes.astype(np.int32, copy=False)


def _parts(names: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray, npt.NDArray[np.bool_]]:
    """Keys and fields of the members that belong to samples, and which those are."""
    start, dot, stop, memory = _edges(names)
    base = _bases(memory, start, stop)
    is_sample = (dot > base) & (stop > base)
    start, dot, stop = start[is_sample], dot[is_sample], stop[is_sample]
    fields = _cut(memory, np.minimum(dot + 1, stop), stop)
    if (dot == stop).any():
        fields = pc.if_else(pa.array(dot == stop), WHOLE, fields)
    return _cut(memory, start, dot), fields, is_sample


def _edges(
    names: pa.StringArray,
) -> tuple[Int64Array, Int64Array, Int64Array, npt.NDArray[np.uint8]]:
    """Where each name begins, where the first dot of its base name is, and where it ends."""
    _, offsets, data = names.buffers()
    memory = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    edges = np.frombuffer(offsets, np.int32, len(names) + 1, 4 * names.offset).astype(np.int64)
    start, stop = edges[:-1], edges[1:]
    base = _bases(memory, start, stop)
    dots = np.flatnonzero(memory == _DOT)
    following = np.append(dots, len(memory) + 1)[np.searchsorted(dots, base)]
    return start, np.minimum(following, stop), stop, memory


def _bases(memory: npt.NDArray[np.uint8], start: Int64Array, stop: Int64Array) -> Int64Array:
    """Where the base name of each name begins."""
    slashes = np.flatnonzero(memory == _SLASH)
    if not len(slashes):
        return start
    before = np.searchsorted(slashes, stop) - 1
    return np.maximum(start, np.where(before >= 0, slashes[before] + 1, 0))


def _cut(memory: npt.NDArray[np.uint8], start: Int64Array, stop: Int64Array) -> pa.StringArray:
    """Strings of parts of a memory that follow each other and do not overlap."""
    lengths = stop - start
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    shifts = np.repeat(start.astype(np.int32) - edges[:-1], lengths)
    taken = memory[np.arange(edges[-1], dtype=np.int32) + shifts]
    return pa.StringArray.from_buffers(len(start), pa.py_buffer(edges), pa.py_buffer(taken))
