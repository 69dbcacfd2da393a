"""Captions: what is said of a sample in words, under the many names that has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = ["CAPTION_KEYS", "Captions", "canonical_captions", "is_captions"]

Captions = str | list[str]

CAPTION_KEYS = (
    "caption",
    "captions",
    "text",
    "txt",
    "description",
    "descriptions",
    "prompt",
    "alt_text",
)


def canonical_captions(entry: Mapping[str, Any]) -> Captions | None:
    """All captions that a sidecar or an entry holds, each once; one alone is a string."""
    found: dict[str, None] = {}
    for key in CAPTION_KEYS:
        value = entry.get(key)
        texts = value if isinstance(value, list) else [value]
        found.update((text, None) for text in texts if isinstance(text, str) and text)
    captions = list(found)
    if not captions:
        return None
    return captions[0] if len(captions) == 1 else captions


def is_captions(value: object) -> TypeGuard[Captions]:
    """Whether a value is a string or a list of strings."""
    if isinstance(value, list):
        return all(isinstance(text, str) for text in value)
    return isinstance(value, str)
