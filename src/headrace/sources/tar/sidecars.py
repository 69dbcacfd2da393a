"""What stands beside the members that samples are about: JSON, and captions in files of text."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from headrace.sources.tar.captions import canonical_captions
from headrace.sources.tar.index import TarIndex

__all__ = ["LONGEST_SIDECAR", "TEXT_FIELDS", "is_sidecar", "with_sidecars"]

logger = logging.getLogger(__name__)

LONGEST_SIDECAR = 1 << 20
"""larger ones are not embedded: whoever needs one reads it"""
_JSON_SPACE = " \t\r\n"
TEXT_FIELDS = ("txt", "text", "caption", "captions")
"""where captions may stand, in the order in which they are looked for"""
_ENDINGS = tuple(f".{field}".encode() for field in ("json", *TEXT_FIELDS))
_LONGEST_ENDING = max(map(len, _ENDINGS))


def is_sidecar(name: bytes) -> bool:
    """Whether a member may be one that is embedded."""
    return name[-_LONGEST_ENDING:].lower().endswith(_ENDINGS)


def with_sidecars(index: TarIndex, payloads: Mapping[int, bytes], shown: str) -> TarIndex:
    """The index with what the sidecars say, at the members that their samples are about.

    ``payloads`` are those of members that may be sidecars. JSON that is broken, or holds NaN or
    Infinity, which JSON does not have, is left where it is.
    """
    texts: list[str | None] = [None] * len(index)
    captions: list[str | None] = [None] * len(index)
    broken: list[int] = []
    for sidecar, member in _beside(index, "json"):
        if sidecar in payloads:
            try:
                texts[member], found = _json_sidecar(payloads[sidecar])
                captions[member] = None if found is None else _encoded(found)
            except (ValueError, RecursionError):
                broken.append(sidecar)
    for field in TEXT_FIELDS:
        for sidecar, member in _beside(index, field):
            if captions[member] is None and sidecar in payloads:
                text = payloads[sidecar].decode("utf-8-sig", "replace").strip()
                captions[member] = _encoded(text) if text else None
    if broken:
        logger.warning(
            "%s: %d JSON files are damaged and not embedded, the first is %s",
            shown,
            len(broken),
            index.name(broken[0]),
        )
    return replace(index, json=_column(texts), captions=_column(captions))


def _beside(index: TarIndex, field: str) -> Iterator[tuple[int, int]]:
    """The members that are this field of a sample, and those that the samples are about."""
    if field not in index.grouping.field_names:
        return iter(())
    members, primary = index.members_as(field), index.primary_members
    has = np.flatnonzero((members >= 0) & (members != primary))
    return zip(members[has].tolist(), primary[has].tolist(), strict=True)


def _json_sidecar(payload: bytes) -> tuple[str | None, Any]:
    """The text if it can be embedded, and the captions in it; ValueError if it is no JSON."""
    text = payload.decode().removeprefix("\ufeff").strip(_JSON_SPACE)
    embedded: str | None = text
    try:
        value = _strict(text)
    except _NotInJson:
        embedded, value = None, json.loads(text)
    return embedded, canonical_captions(value) if isinstance(value, dict) else None


class _NotInJson(Exception):
    pass


def _refuse(constant: str) -> NoReturn:
    raise _NotInJson(constant)


_strict = json.JSONDecoder(parse_constant=_refuse).decode
_plain = json.JSONEncoder(ensure_ascii=False).encode


def _encoded(value: Any) -> str:
    """JSON; halves of characters, which are no text, stay escaped."""
    text = _plain(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _column(texts: list[str | None]) -> pa.StringArray | None:
    return pa.array(texts, pa.string()) if any(text is not None for text in texts) else None
