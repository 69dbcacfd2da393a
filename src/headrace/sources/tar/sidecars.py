"""Sidecars: JSON and text files in a tar that describe the main members of their samples.

Captions are in JSON under various names, or in text files. An index holds them in one column, as
JSON: a string, or a list of strings.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from headrace.sources.tar.index import TarIndex

logger = logging.getLogger(__name__)

Captions = str | list[str]

_CAPTION_KEYS = (
    "caption",
    "captions",
    "text",
    "txt",
    "description",
    "descriptions",
    "prompt",
    "alt_text",
)
LONGEST_SIDECAR = 1 << 20
"""Bytes of the largest sidecar that is embedded in an index."""
TEXT_FIELDS = ("txt", "text", "caption", "captions")
"""Extensions of files that hold captions, in the order in which they are looked for."""
_EXTENSIONS = frozenset(field.encode() for field in ("json", *TEXT_FIELDS))
_JSON_SPACE = " \t\r\n"


def canonical_captions(entry: Any) -> Captions | None:
    """Return all captions that a sidecar or an entry holds, each once; a single one as a string."""
    found: dict[str, None] = {}
    for key in _CAPTION_KEYS:
        if isinstance(entry, dict) and key in entry:
            value = entry[key]
            for text in value if isinstance(value, list) else (value,):
                if isinstance(text, str) and text:
                    found[text] = None
    captions = list(found)
    if not captions:
        return None
    return captions[0] if len(captions) == 1 else captions


def text_caption(payload: bytes) -> str | None:
    """Return the caption in a text sidecar; None if it is empty."""
    return payload.decode("utf-8-sig", "replace").strip() or None


def is_captions(value: object) -> TypeGuard[Captions]:
    """Return True if a value is a string or a list of strings."""
    if isinstance(value, list):
        return all(isinstance(text, str) for text in value)
    return isinstance(value, str)


def is_sidecar(name: bytes) -> bool:
    """Return True if a member of this name may be a sidecar that is embedded."""
    return name[name.rfind(b".") + 1 :].lower() in _EXTENSIONS


def with_sidecars(index: TarIndex, payloads: Mapping[int, bytes], shown: str) -> TarIndex:
    """Return an index with the content of sidecars at the main members of their samples.

    JSON that is broken, or holds NaN or Infinity, which JSON does not have, is not embedded.

    Args:
        index: The index of a tar.
        payloads: The content of members that may be sidecars.
        shown: The name of the tar in messages.
    """
    texts: list[str | None] = [None] * len(index)
    captions: list[str | None] = [None] * len(index)
    constants: list[str] = []
    decode = json.JSONDecoder(parse_constant=constants.append).raw_decode
    broken: list[int] = []
    for sidecar, member in _pairs(index, "json"):
        if sidecar in payloads:
            constants.clear()
            try:
                text = payloads[sidecar].decode().removeprefix("\ufeff").strip(_JSON_SPACE)
                value, end = decode(text)
                if end < len(text):
                    raise ValueError("there is more than one value")
            except (ValueError, RecursionError):
                broken.append(sidecar)
                continue
            if not constants:
                texts[member] = text
            found = canonical_captions(value)
            captions[member] = None if found is None else json.dumps(found)
    for field in TEXT_FIELDS:
        for sidecar, member in _pairs(index, field):
            if captions[member] is None and sidecar in payloads:
                caption = text_caption(payloads[sidecar])
                captions[member] = None if caption is None else json.dumps(caption)
    if broken:
        logger.warning(
            "%s: %d JSON files are damaged and not embedded, the first is %s",
            shown,
            len(broken),
            index.name(broken[0]),
        )
    return replace(
        index,
        json=text_column(texts),
        captions=text_column(captions),
        stored_grouping=index.grouping,  # which takes a while to find out again
    )


def _pairs(index: TarIndex, field: str) -> Iterator[tuple[int, int]]:
    """Return the members that are this field of a sample, each with the main member of it."""
    if field not in index.grouping.field_names:
        return iter(())
    members, primary = index.members_as(field), index.primary_members
    has = np.flatnonzero((members >= 0) & (members != primary))
    return zip(members[has].tolist(), primary[has].tolist(), strict=True)


def text_column(texts: Sequence[str | None]) -> pa.StringArray | None:
    """Return texts as a column; None if there is no text."""
    return pa.array(texts, pa.string()) if any(text is not None for text in texts) else None
