"""Group the members of a tar into samples by their names.

The members of a sample share a key; the rest of each name is the field of the member. By default
the key is the path up to the first dot of the base name, as in WebDataset. All names of a tar are
split at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError

Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

DotRule = Literal["first-dot", "last-dot"]
SampleKey = DotRule | Callable[[str], str | None]
"""How the key of a sample follows from the name of a member: the path up to a dot of its base name,
or what a function returns (None for a member of no sample)."""

WHOLE = "__data__"
"""The field of a member whose base name has no dot."""
_PATTERNS = {
    "first-dot": r"(?s)^(?P<key>.*?)(?:\.(?P<field>[^/]*))?$",
    "last-dot": r"(?s)^(?P<key>.*?)(?:\.(?P<field>[^/.]*))?$",
}
_KEY_OF_NO_SAMPLE = r"(?s)(?:^|/)(?:\.[^/]*|__[^/]*__|)$"


class LeftOut(NamedTuple):
    """Numbers of members and samples of a tar that are left out."""

    files: int = 0
    """Members that belong to no sample."""
    incomplete: int = 0
    """Samples that lack a required field."""
    oversized: int = 0
    """Samples with a member that is larger than allowed."""


_NOTHING = LeftOut()


@dataclass(frozen=True, slots=True, eq=False)
class SampleGrouping:
    """The sample and the field of each member of a tar.

    Attributes:
        samples: The number of the sample of each member; -1 for members without a sample.
        fields: Index in ``field_names`` of each member; -1 for members of no sample.
        field_names: What follows the key and its dot, in lower case, in the order of the members.
        count: Number of samples; they stand in the order of their first members.
        sample_key: The rule by which they were grouped.
        left_out: Numbers of members and samples that are left out.
    """

    samples: Int32Array
    fields: Int32Array
    field_names: tuple[str, ...]
    count: int
    sample_key: SampleKey = "first-dot"
    left_out: LeftOut = _NOTHING

    def only(self, keep: BoolArray, left_out: LeftOut) -> SampleGrouping:
        """Return the grouping of some samples, with new numbers."""
        numbers = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
        numbers = np.append(numbers, np.int32(-1))  # the number -1 stays
        samples = numbers[self.samples]
        fields = np.where(samples < 0, np.int32(-1), self.fields)
        return replace(
            self, samples=samples, fields=fields, count=int(keep.sum()), left_out=left_out
        )


def check_sample_key(sample_key: object) -> None:
    """Raise an OptionError unless this is a rule for keys."""
    if not callable(sample_key) and sample_key not in (None, *get_args(DotRule)):
        raise OptionError(
            f'sample_key={sample_key!r}: it is "first-dot", "last-dot" or a function of the name '
            "of a member that returns the key of its sample"
        )


def grouped(names: pa.StringArray, sample_key: SampleKey = "first-dot") -> SampleGrouping:
    """Group members by their names.

    A member with a field that its sample already has begins another sample of the same key. Members
    belong to no sample if their base names begin with a dot or are framed by two underscores
    (``__info__``), or have no dot while those of other members have one (``LICENSE``).
    """
    keys, fields, is_sample = _parts(names, sample_key)
    key_codes = _codes(keys)
    encoded = pc.utf8_lower(fields).dictionary_encode()
    field_codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    samples, count = _samples(key_codes, field_codes, len(encoded.dictionary))
    field_names = tuple(encoded.dictionary.to_pylist())
    if is_sample.all():
        return SampleGrouping(samples, field_codes, field_names, count, sample_key)
    members = np.full(len(names), -1, np.int32)
    member_fields = np.full(len(names), -1, np.int32)
    members[is_sample], member_fields[is_sample] = samples, field_codes
    left_out = LeftOut(files=int((~is_sample).sum()))
    return SampleGrouping(members, member_fields, field_names, count, sample_key, left_out)


def sample_keys(names: pa.StringArray, sample_key: SampleKey = "first-dot") -> pa.StringArray:
    """Return the key of each member; for a member without a sample, the path before its dot."""
    if callable(sample_key):
        found = [sample_key(name) for name in names.to_pylist()]
        return pa.array(["" if key is None else key for key in found], pa.string())
    return pc.extract_regex(names, _PATTERNS[sample_key]).flatten()[0]


def _samples(keys: Int32Array, fields: Int32Array, num_fields: int) -> tuple[Int32Array, int]:
    """Return the sample of each member, by its key, its field, and how often both came before."""
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
    samples = _codes(pa.array(both))
    return samples, int(samples.max()) + 1


def _codes(keys: pa.Array) -> Int32Array:
    """Return numbers of values, in the order in which they first come."""
    codes: Int32Array = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return codes.astype(np.int32, copy=False)


def _parts(
    names: pa.StringArray, sample_key: SampleKey
) -> tuple[pa.StringArray, pa.StringArray, BoolArray]:
    """Return keys and fields of the members that belong to samples, and which members those are."""
    if callable(sample_key):
        return _parts_by_function(names, sample_key)
    keys, fields = pc.extract_regex(names, _PATTERNS[sample_key]).flatten()
    has_dot = pc.greater(pc.binary_length(names), pc.binary_length(keys))
    is_sample = pc.invert(pc.match_substring_regex(keys, _KEY_OF_NO_SAMPLE))
    if pc.any(pc.and_(is_sample, has_dot)).as_py():
        is_sample = pc.and_(is_sample, has_dot)
    else:
        fields = pc.if_else(has_dot, fields, WHOLE)
    chosen = is_sample.to_numpy(zero_copy_only=False)
    if not chosen.all():
        keys, fields = keys.filter(is_sample), fields.filter(is_sample)
    return keys, fields, chosen


def _parts_by_function(
    names: pa.StringArray, sample_key: Callable[[str], str | None]
) -> tuple[pa.StringArray, pa.StringArray, BoolArray]:
    keys: list[str] = []
    fields: list[str] = []
    is_sample = np.zeros(len(names), np.bool_)
    for member, name in enumerate(names.to_pylist()):
        key = sample_key(name)
        if key is None:
            continue
        is_sample[member] = True
        rest = name.removeprefix(f"{key}.")
        if rest == name:
            rest = name.rpartition("/")[2].rpartition(".")[2]
        keys.append(key)
        fields.append(WHOLE if rest == name else rest)
    return pa.array(keys, pa.string()), pa.array(fields, pa.string()), is_sample
