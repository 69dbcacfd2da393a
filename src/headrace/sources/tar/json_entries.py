"""The entries of a JSON index as the columns of an index, and what has no place in those."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.model import Int64Array
from headrace.sources.tar.captions import CAPTION_KEYS, canonical_captions, is_captions
from headrace.sources.tar.headers import decoded
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.json_columns import BoolArray, Entries
from headrace.sources.tar.json_form import (
    JsonForm,
    aspects,
    difference,
    entry_texts,
    json_sidecars,
)
from headrace.sources.tar.json_places import PLACE_KEYS, SidecarPlaces

__all__ = ["NAME_KEYS", "index_of"]

NAME_KEYS = ("path", "fname", "filename")
_PIXELS = 2**31
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def index_of(said: Entries) -> tuple[TarIndex, JsonForm]:
    """The index of members in the order of their offsets, and the form of their entries."""
    form = _form(said)
    index = TarIndex(
        _names(said),
        said.integers("offset"),
        _sizes(said, form),
        sha256=said.texts("sha256") if "sha256" in said.keys else None,
        captions=_captions(said, form),
        json=_embedded(said),
        **_geometry(said),
    )
    form = replace(form, aspect=_precision(index, said))
    places = SidecarPlaces.said_by(said) if form.sidecars else None
    said.odd[:] |= _odd_words(said, form)
    if places is not None:
        index = places.with_unlisted(index)
    order = np.argsort(index.offsets, kind="stable")
    index = _taken(index, order)
    return replace(index, extras=_extras(index, order, said, form, places)), form


def _form(said: Entries) -> JsonForm:
    """The choices that most entries made."""
    keys = said.keys
    names = [key for key in NAME_KEYS if key in keys]
    counts = [int(said.present(key).sum()) for key in ("length", "size")]
    return JsonForm(
        name_key=max(names, key=lambda key: said.present(key).sum(), default=None),
        length_key="length" if counts[0] >= counts[1] else "size",
        sidecars="json_path" in keys,
        caption_key="caption" if "caption" in keys and "captions" not in keys else "captions",
    )


def _names(said: Entries) -> pa.StringArray:
    """Those that are not UTF-8 in the tar, and escaped here, are as a scan reads them."""
    try:
        return pa.array(said.names, pa.string())
    except UnicodeEncodeError:
        pass
    for place, name in enumerate(said.names):
        try:
            said.names[place] = decoded(name.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            said.refuse(place, "its name is no text")
    return pa.array(said.names, pa.string())


def _sizes(said: Entries, form: JsonForm) -> Int64Array:
    if not said.keys.issuperset({"length", "size"}):
        return said.integers(form.length_key)
    lengths, sizes = (said.integers(key, missing=-1) for key in ("length", "size"))
    wrong = (np.maximum(lengths, sizes) < 0) | ((lengths != sizes) & (lengths + sizes >= 0))
    wrong &= (lengths < 0) == (sizes < 0)
    for place in np.flatnonzero(wrong)[:1]:
        said.refuse(place, f"length is {lengths[place]} and size {sizes[place]}")
    return np.maximum(lengths, sizes)


def _captions(said: Entries, form: JsonForm) -> pa.StringArray | None:
    keys = said.keys.intersection(CAPTION_KEYS)
    if not keys:
        return None
    found = np.full(len(said), None, object)
    for key in keys - {form.caption_key}:
        for places, _ in said.parts(key):
            for place, entry in zip(places, said.entries(places), strict=True):
                found[place] = canonical_captions(entry)
    for places, values in said.parts(form.caption_key):
        if set(map(type, values)) == {str}:
            found[places] = values
            continue
        for place, value in zip(places, values, strict=True):
            if is_captions(value):
                found[place] = value
            else:
                said.odd[place] = True
    there = np.flatnonzero([value is not None for value in found])
    return _json_texts(len(said), [(there, found[there].tolist())])


def _embedded(said: Entries) -> pa.StringArray | None:
    if "json_metadata" not in said.keys:
        return None
    return _json_texts(len(said), said.parts("json_metadata"))


def _json_texts(count: int, parts: Iterable[tuple[Int64Array, list[Any]]]) -> pa.StringArray:
    """JSON texts of what stands at some places."""
    texts = np.full(count, None, object)
    for places, values in parts:
        plain = set(map(type, values)) == {str}
        texts[places] = list(map(encode_basestring if plain else _ENCODER.encode, values))
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        escaped = [None if text is None else json.dumps(json.loads(text)) for text in texts]
        return pa.array(escaped, pa.string())


def _geometry(said: Entries) -> dict[str, Any]:
    """Widths and heights; 0 is not known, and odd where an entry says it."""
    if said.keys.isdisjoint({"width", "height"}):
        return {}
    columns = {}
    for key in ("width", "height"):
        pixels = said.integers(key, missing=0, below=_PIXELS, floats=True).astype(np.int32)
        said.odd[:] |= said.present(key) & (pixels == 0)
        columns[key + "s"] = pixels
    return columns


def _precision(index: TarIndex, said: Entries) -> str | None:
    """That of aspects; entries whose aspect is not the quotient are odd."""
    if "aspect" not in said.keys or index.widths is None or index.heights is None:
        return None
    floats = np.full(len(said), np.nan)
    for places, column in said.columns("aspect"):
        if isinstance(column, list) or column.dtype != np.float64:
            column = [value if type(value) is float else np.nan for value in column]
        floats[places] = column
    known = (index.widths > 0) & (index.heights > 0)
    wrong = {}
    for precision in ("double", "single"):
        wrong[precision] = said.present("aspect") != known
        quotients = aspects(index.widths[known], index.heights[known], precision)
        wrong[precision][known] |= floats[known] != quotients
    best = min(wrong, key=lambda precision: int(wrong[precision].sum()))
    said.odd[:] |= wrong[best]
    return best


def _odd_words(said: Entries, form: JsonForm) -> BoolArray:
    """Entries with words that are not of the form, or whose name is another."""
    words: set[str | None] = {
        "offset",
        form.length_key,
        "sha256",
        "width",
        "height",
        form.caption_key,
    }
    words |= {"json_metadata", form.name_key, "aspect" if form.aspect else None}
    words |= set(PLACE_KEYS) if form.sidecars else set()
    odd = said.beyond(words)
    if form.name_key is not None:
        odd |= ~said.present(form.name_key)
        for places, values in said.parts(form.name_key):
            names = said.names if len(places) == len(said) else [said.names[i] for i in places]
            if values != names:
                odd[places] |= np.array([v != n for v, n in zip(values, names, strict=True)], bool)
    return odd


def _taken(index: TarIndex, order: Int64Array) -> TarIndex:
    """Members in another order."""
    taken: dict[str, Any] = {
        key: column.take(pa.array(order)) if isinstance(column, pa.Array) else column[order]
        for key, column in vars(index).items()
        if isinstance(column, pa.Array | np.ndarray)
    }
    return replace(index, **taken)


def _extras(
    index: TarIndex,
    order: Int64Array,
    said: Entries,
    form: JsonForm,
    places: SidecarPlaces | None,
) -> pa.StringArray | None:
    """What makes the entries of those that the columns say; members stand in their order."""
    if places is None and not said.odd.any():
        return None
    sidecars = json_sidecars(index)
    listed = np.flatnonzero(order < len(said))
    odd = np.zeros(len(index), bool)
    odd[listed] = said.odd[order[listed]]
    if places is not None:
        odd[listed] |= places.odd(index, sidecars, listed, order[listed])
    members = np.flatnonzero(odd)
    extras: list[str | None] = [None] * len(index)
    texts = entry_texts(index, form, sidecars, members)
    entries = said.entries(order[members])
    for member, entry, text in zip(members.tolist(), entries, texts, strict=True):
        extras[member] = difference(json.loads(text), entry)
    return pa.array(extras, pa.string()) if any(extras) else None
