"""The JSON index of a tar: one JSON object that says where each member lies."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StaleIndexError
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.json_columns import Entries, Repeated
from headrace.sources.tar.json_entries import NAME_KEYS, index_of
from headrace.sources.tar.json_form import (
    JsonForm,
    difference,
    entry_texts,
    json_sidecars,
    overlaid,
)
from headrace.sources.tar.json_pieces import Members, parsed_in_pieces

__all__ = ["json_index", "read_json_index"]

Pairs = list[tuple[str, Any]]


def read_json_index(data: bytes | memoryview, shown: str) -> TarIndex:
    """The index that a JSON text is, in any of the forms there are.

    Members stand in the order of their offsets, however the text orders them. What has no place
    in the columns is kept in extras, so that :func:`json_index` says the same again. A name that
    comes twice is two members. Raises StaleIndexError for what is no index or cannot be true.
    """
    data = bytes(data)
    with _no_collection():
        files = _Files(shown)
        document = parsed_in_pieces(data, files.take)
        if document is None:
            files, document = _Files(shown), _document(data, shown)
            files.take(document.pop("files"))
        index, form = index_of(files.said)
    form = replace(form, listed=files.listed)
    return replace(index, facts=replace(_facts(document, shown), form=form.text()))


def json_index(index: TarIndex) -> bytes:
    """The JSON text of an index, members in the order of their offsets.

    ``files`` is an object by name, or a list where names repeat or the index was read from one.
    """
    form = JsonForm.of(index)
    listed = np.arange(len(index)) if index.unlisted is None else np.flatnonzero(~index.unlisted)
    names: list[str] = index.names.take(pa.array(listed)).to_pylist()
    if form.listed or len(set(names)) < len(names):
        form = replace(form, listed=True, name_key=form.name_key or NAME_KEYS[0])
    texts = entry_texts(index, form, json_sidecars(index), listed)
    if index.extras is not None:
        extras = index.extras.take(pa.array(listed)).to_pylist()
        for place, text in enumerate(extras):
            if text is not None:
                texts[place] = json.dumps(overlaid(json.loads(texts[place]), text))
    if form.listed:
        files = f"[{','.join(texts)}]"
    else:
        quoted = map(encode_basestring, names)
        pairs = [f"{name}:{text}" for name, text in zip(quoted, texts, strict=True)]
        files = "{" + ",".join(pairs) + "}"
    facts = json.dumps(overlaid(_said_of(index.facts), index.facts.extras))
    comma = ", " if len(facts) > len("{}") else ""
    return f'{facts[:-1]}{comma}"files": {files}}}\n'.encode()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage is not looked for: a million new objects are, again and again, and none is any."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _document(data: bytes, shown: str) -> dict[str, Any]:
    """What the text says, checked to be an object with files."""
    document = _parsed(data, shown)
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, dict | list):
        raise StaleIndexError(
            f'{shown} is no index of a tar: it holds no JSON object with "files" in it; make one '
            "with: headrace index"
        )
    # What repeats a name, or an offset, says "offset" more often than it has members.
    if data.count(b'"offset"') > len(files):
        document = _parsed(data, shown, object_pairs_hook=_object)
    return dict(document)


def _parsed(data: bytes, shown: str, **how: Any) -> Any:
    try:
        return json.loads(data, **how)
    except (ValueError, RecursionError) as broken:
        raise StaleIndexError(
            f"{shown} is not JSON ({broken}): the index is damaged; make it anew with: headrace "
            "index"
        ) from None


def _object(pairs: Pairs) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Repeated(pairs)


class _Files:
    """What is under "files", as it comes."""

    def __init__(self, shown: str) -> None:
        self.said = Entries(shown)
        self.listed = False
        self._shown = shown

    def take(self, files: Members) -> None:
        self.listed = isinstance(files, list)
        if isinstance(files, list):
            first = len(self.said)
            names = [_name(entry, place, self._shown) for place, entry in enumerate(files, first)]
            self.said.add(names, files)
        elif isinstance(files, Repeated):
            self.said.add([name for name, _ in files.pairs], [entry for _, entry in files.pairs])
        else:
            self.said.add(list(files), list(files.values()))


def _name(entry: Any, place: int, shown: str) -> str:
    found: Iterable[Any] = (entry.get(key) for key in NAME_KEYS) if isinstance(entry, dict) else ()
    for name in found:
        if isinstance(name, str):
            return name
    raise StaleIndexError(
        f"{shown}: entry {place} of its files has no name (path, fname or filename): the index "
        "is damaged; make it anew with: headrace index"
    )


def _facts(document: dict[str, Any], shown: str) -> TarFacts:
    size = document.get("filesize")
    if size is not None and (type(size) is not int or not 0 <= size < 2**63):
        raise StaleIndexError(
            f"{shown}: filesize is {size!r}, which is no size of a tar: the index is damaged; "
            "make it anew with: headrace index"
        )
    facts = TarFacts(
        size=size,
        hash=_text(document.get("hash")),
        hash_lfs=_text(document.get("hash_lfs")),
        has_geometry=document.get("includes_image_geometry") is True,
        last_good=_text(document.get("last_good")),
        has_end=document.get("no_end_mark") is not True,
    )
    return replace(facts, extras=difference(_said_of(facts), document))


def _said_of(facts: TarFacts) -> dict[str, Any]:
    """What an index says of a tar as a whole, but for its extras."""
    said = {
        "filesize": facts.size,
        "hash": facts.hash,
        "hash_lfs": facts.hash_lfs,
        "includes_image_geometry": facts.has_geometry or None,
        "last_good": facts.last_good,
        "no_end_mark": None if facts.has_end else True,
    }
    return {key: value for key, value in said.items() if value is not None}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
