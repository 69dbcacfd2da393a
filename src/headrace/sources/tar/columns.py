"""Columns of the fields of samples: all payloads of some samples read at once, then decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model import Int64Array
from headrace.sources.tar.decoding import FieldForm
from headrace.sources.tar.payloads import Payloads

__all__ = ["AskedField", "columns_of"]


class AskedField(NamedTuple):
    """A field of some samples."""

    form: FieldForm
    members: Int64Array
    """of each sample, -1 where it has no such field"""
    named: Callable[[int], str]
    """what to call the member of a sample, by its place"""


def columns_of(
    payloads: Payloads, shards: Int64Array, fields: Sequence[AskedField], each: Any = map
) -> dict[str, pa.Array]:
    """The columns of fields, by name.

    Bytes of tars of this machine go from their maps into the column at once. What is decoded is
    copied before: somebody may cut a tar while a decoder is at work, and whoever touches what was
    cut off is killed.
    """
    here = payloads.collection.store.local
    at_once = [field for field in fields if not here or field.form.is_plain]
    decoded = [field for field in fields if here and not field.form.is_plain]
    columns: dict[str, pa.Array] = {}
    if at_once:
        with payloads.views(*_wanted(shards, at_once)) as found:
            columns.update(_made(at_once, found, each))
    if decoded:
        columns.update(_made(decoded, payloads.read_many(*_wanted(shards, decoded)), each))
    return columns


def _wanted(shards: Int64Array, fields: Sequence[AskedField]) -> tuple[Int64Array, Int64Array]:
    """The tars and numbers of all members of all fields, one field after the other."""
    there = [field.members >= 0 for field in fields]
    members = [field.members[held] for field, held in zip(fields, there, strict=True)]
    return np.concatenate([shards[held] for held in there]), np.concatenate(members)


def _made(
    fields: Sequence[AskedField], found: Iterable[Any], each: Any
) -> Iterator[tuple[str, pa.Array]]:
    left = iter(found)
    for form, members, named in fields:
        payloads = [next(left) if member >= 0 else None for member in members.tolist()]
        yield form.name, form.column(payloads, named, each)
