"""How a JSON index words what it says of the members of a tar, and those words of an index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.sources.tar.grouping import Int32Array
from headrace.sources.tar.index import TarIndex

__all__ = [
    "ABSENT",
    "JsonForm",
    "aspects",
    "difference",
    "entry_texts",
    "json_sidecars",
    "overlaid",
]

ABSENT = "__absent__"
"""in the extras of a member: words that its entry does not have though others would have them"""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The choices among the JSON indices there are; what deviates from them is in extras."""

    listed: bool = False
    """``"files"`` is a list, and not an object by name"""
    name_key: str | None = None
    """the key under which an entry holds its own name"""
    length_key: str = "length"
    aspect: str | None = "double"
    """``"single"`` where quotients were rounded to single precision"""
    sidecars: bool = True
    """entries say where the JSON sidecar of their sample lies"""
    caption_key: str = "captions"

    @classmethod
    def of(cls, index: TarIndex) -> JsonForm:
        """The form of the index that this one was read from, or the usual one."""
        return cls(**json.loads(index.facts.form)) if index.facts.form else cls()

    def text(self) -> str | None:
        """What :meth:`of` reads; nothing of the usual form."""
        return json.dumps(asdict(self)) if self != JsonForm() else None


def aspects(
    widths: Int32Array, heights: Int32Array, precision: str | None
) -> npt.NDArray[np.float64]:
    """Quotients as they are written: the shortest decimals that mean them in that precision."""
    if precision != "single":
        return widths / heights
    quotients = widths.astype(np.float32) / heights.astype(np.float32)
    encoded = pa.array(quotients).dictionary_encode()
    shortest = encoded.dictionary.cast(pa.string()).cast(pa.float64())
    values: npt.NDArray[np.float64] = shortest.to_numpy()[encoded.indices.to_numpy()]
    return values


def json_sidecars(index: TarIndex) -> Int32Array:
    """Of each member that a sample is about, the member that is its JSON sidecar; else -1."""
    sidecars = np.full(len(index), -1, np.int32)
    primary = index.primary_members
    found = index.members_as("json")
    sidecars[primary] = np.where(found == primary, -1, found)
    return sidecars


def entry_texts(
    index: TarIndex, form: JsonForm, sidecars: Int32Array, members: npt.NDArray[np.integer[Any]]
) -> list[str]:
    """The JSON objects that say all of some members but what is in their extras.

    Captions and embedded sidecars are put in as they are: they are JSON.
    """
    places = zip(index.offsets[members].tolist(), index.sizes[members].tolist(), strict=True)
    length = form.length_key
    words = [[f'{{"offset":{offset},"{length}":{size}' for offset, size in places]]
    if form.name_key:
        words.append(_names(index, form, members))
    if index.sha256 is not None:
        words.append(_texts("sha256", _quoted(index.sha256.take(pa.array(members)))))
    if index.widths is not None and index.heights is not None:
        words += _geometry(index.widths[members], index.heights[members], form.aspect)
    if form.sidecars:
        words.append(_places(index, sidecars[members]))
    for key, column in ((form.caption_key, index.captions), ("json_metadata", index.json)):
        if column is not None:
            words.append(_texts(key, column.take(pa.array(members)).to_pylist()))
    return ["".join(entry) + "}" for entry in zip(*words, strict=True)]


def overlaid(entry: dict[str, Any], extras: str | None) -> dict[str, Any]:
    """An entry with what is different in it."""
    if extras is None:
        return entry
    changes: dict[str, Any] = json.loads(extras)
    absent = changes.pop(ABSENT, ())
    return {key: value for key, value in entry.items() if key not in absent} | changes


def difference(entry: Mapping[str, Any], said: Mapping[str, Any]) -> str | None:
    """What makes ``said`` of an entry, for :func:`overlaid`."""
    changes = {k: v for k, v in said.items() if k not in entry or not _same(entry[k], v)}
    absent = [key for key in entry if key not in said]
    if absent:
        changes[ABSENT] = absent
    return json.dumps(changes) if changes else None


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _texts(key: str, values: Sequence[str | None]) -> list[str]:
    return ["" if value is None else f',"{key}":{value}' for value in values]


def _quoted(column: pa.StringArray) -> list[str | None]:
    return [None if text is None else encode_basestring(text) for text in column.to_pylist()]


def _names(index: TarIndex, form: JsonForm, members: npt.NDArray[np.integer[Any]]) -> list[str]:
    names = index.names.take(pa.array(members)).to_pylist()
    return [f',"{form.name_key}":{encode_basestring(name)}' for name in names]


def _geometry(widths: Int32Array, heights: Int32Array, precision: str | None) -> list[list[str]]:
    words = [
        [f',"{key}":{value}' if value else "" for value in values.tolist()]
        for key, values in (("width", widths), ("height", heights))
    ]
    if precision is not None:
        known = (widths > 0) & (heights > 0)
        quotients = aspects(widths[known], heights[known], precision).tolist()
        texts = np.full(len(widths), "", object)
        texts[known] = [f',"aspect":{quotient!r}' for quotient in quotients]
        words.append(texts.tolist())
    return words


def _places(index: TarIndex, sidecars: Int32Array) -> list[str]:
    """Where the sidecars of members lie."""
    texts = np.full(len(sidecars), "", object)
    having = np.flatnonzero(sidecars >= 0)
    found = sidecars[having]
    names = index.names.take(pa.array(found)).to_pylist()
    places = zip(names, index.offsets[found].tolist(), index.sizes[found].tolist(), strict=True)
    texts[having] = [
        f',"json_path":{encode_basestring(name)},"json_offset":{offset},"json_length":{size}'
        for name, offset, size in places
    ]
    return texts.tolist()
