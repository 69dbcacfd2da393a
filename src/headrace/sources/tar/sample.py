"""A sample: the members of a tar that share a key, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import ReadError, StaleIndexError
from headrace.sources.tar.geometry import image_size
from headrace.sources.tar.grouping import sample_keys
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.sidecars import TEXT_FIELDS, canonical_captions

__all__ = ["TarSample"]

Payload = bytes


class TarSample:
    """A sample whose payloads are in memory. All else is looked up when it is asked for."""

    __slots__ = ("_index", "_members", "_payloads", "_primary", "_shard_path", "number", "shard")

    def __init__(
        self,
        index: TarIndex,
        shard: int,
        shard_path: str,
        number: int,
        members: Sequence[int],
        payloads: Sequence[Payload],
    ) -> None:
        self._index = index
        self._shard_path = shard_path
        self._members = members
        self._payloads = payloads
        self._primary: int = index.primary_members.item(number)
        self.shard = shard
        """the number of its tar"""
        self.number = number
        """among the samples of its tar"""

    @property
    def bytes(self) -> Payload:
        """The payload of the member that the sample is about."""
        return self._payloads[self._members.index(self._primary)]

    data = bytes

    @property
    def path(self) -> str:
        """The name of that member in its tar."""
        return self._index.name(self._primary)

    @property
    def key(self) -> str:
        """What the names of all members begin with."""
        names = self._index.names.slice(self._primary, 1)
        key: str = sample_keys(names)[0].as_py()
        return key

    @property
    def offset(self) -> int:
        """Where the payload begins in the tar."""
        return int(self._index.offsets[self._primary])

    @property
    def size(self) -> int:
        """The length of the payload."""
        return int(self._index.sizes[self._primary])

    @property
    def fields(self) -> Mapping[str, Payload]:
        """All payloads by extension, in the order of the tar."""
        return dict(zip(self._field_names, self._payloads, strict=True))

    @property
    def _field_names(self) -> list[str]:
        grouping = self._index.grouping
        return [grouping.field_names[grouping.fields[member]] for member in self._members]

    def _field(self, name: str) -> Payload | None:
        grouping = self._index.grouping
        for member, payload in zip(self._members, self._payloads, strict=True):
            if grouping.field_names[grouping.fields.item(member)] == name:
                return payload
        return None

    # --- what is said of it

    @property
    def json(self) -> Any:
        """What its JSON sidecar says, from the index if it is embedded there; None without one."""
        embedded = _text(self._index.json, self._primary)
        if embedded is not None:
            return self._said_by_index(embedded, "JSON")
        found = self._field("json")
        if found is None:
            return None
        try:
            return json.loads(found.decode())
        except (ValueError, RecursionError) as error:
            raise ReadError(
                f"{self._shard_path}: the JSON of {self.path!r} cannot be read: {error}"
            ) from None

    @property
    def captions(self) -> str | list[str] | None:
        """What the index says, else the JSON sidecar, else a text beside it."""
        text = _text(self._index.captions, self._primary)
        if text is not None:
            found: str | list[str] = self._said_by_index(text, "captions")
            return found
        said = self.json
        captions = canonical_captions(said) if isinstance(said, dict) else None
        if captions is not None:
            return captions
        for name in TEXT_FIELDS:
            payload = self._field(name)
            if payload is not None:
                return payload.decode(errors="replace").strip()
        return None

    def _said_by_index(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise StaleIndexError(
                f"{self._shard_path}: the {what} of {self.path!r} in the index cannot be read: "
                f"{error}; make the index anew with: headrace index"
            ) from None

    @property
    def width(self) -> int | None:
        """Of an image, in pixels."""
        return self._shape[0]

    @property
    def height(self) -> int | None:
        return self._shape[1]

    @property
    def aspect(self) -> float | None:
        """Width by height."""
        width, height = self._shape
        return width / height if width and height else None

    @property
    def _shape(self) -> tuple[int | None, int | None]:
        """As the index says, or else the image itself."""
        widths, heights = self._index.widths, self._index.heights
        if widths is not None and heights is not None and widths[self._primary] > 0:
            return int(widths[self._primary]), int(heights[self._primary])
        found = image_size(self.bytes)
        return found if isinstance(found, tuple) else (None, None)

    def __repr__(self) -> str:
        return f"<TarSample {self.path!r} of {self._shard_path}: {', '.join(self._field_names)}>"


def _text(column: pa.StringArray | None, row: int) -> str | None:
    text: str | None = None if column is None else column[row].as_py()
    return text
