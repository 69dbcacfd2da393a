"""One tar on its way: members are appended, and what an index is to say of them is noted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import FileChangedError
from headrace.sources.tar.geometry import image_size
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.sidecars import (
    LONGEST_SIDECAR,
    Captions,
    is_sidecar,
    with_sidecars,
)
from headrace.write.failures import writing
from headrace.write.tar_members import (
    BLOCK_BYTES,
    RECORD_BYTES,
    checked_fields,
    header,
    room,
)
from headrace.write.tar_values import Payload, encoded

__all__ = ["Captioned", "Member", "Noting", "OpenShard", "Pieces", "members_of"]

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Pieces:
    """A payload that comes in pieces, for it is too large for memory."""

    size: int
    pieces: Iterable[Payload]


@dataclass(frozen=True, slots=True)
class Captioned:
    """A payload with captions of it that may stand in no file, but in an index alone."""

    payload: Payload
    captions: Captions


@dataclass(frozen=True, slots=True)
class Member:
    """What becomes a member: its name, and its bytes in pieces, of which there are so many."""

    name: str
    size: int
    pieces: Iterable[Payload]
    captions: Captions | None = None
    """that the index is to have, if no sidecar says them"""

    @classmethod
    def of(cls, name: str, value: Any) -> Member:
        """One that holds a value of a sample."""
        if isinstance(value, Pieces):
            return cls(name, value.size, value.pieces)
        if isinstance(value, Captioned):
            return cls(name, len(value.payload), (value.payload,), value.captions)
        payload = encoded(name, value)
        return cls(name, len(payload), (payload,))


def members_of(key: str, sample: Mapping[str, Any]) -> list[Member]:
    """The members of the sample of this key, checked and encoded."""
    return [Member.of(name, value) for name, value in checked_fields(key, sample).items()]


@dataclass(frozen=True, slots=True)
class Noting:
    """What an index is to say beside names and places."""

    geometry: bool = False
    hash: bool = True
    sidecars: bool = True


class OpenShard:
    """A tar that is being written, at a path of its own; it is whole when ``finish`` returns."""

    def __init__(self, path: Path, noting: Noting) -> None:
        self.path = path
        self.size = 0
        self.keys: set[str] = set()
        self._notes = _Notes(noting)
        self._digest = hashlib.sha256() if noting.hash else None
        with writing(path):
            self._file = open(path, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115

    @staticmethod
    def room(members: Sequence[Member]) -> int:
        """How much a tar grows by these members."""
        return sum(room(len(header(one.name, one.size)), one.size) for one in members)

    def size_with(self, more: int) -> int:
        """Of the whole tar if so much is added."""
        whole = self.size + more + 2 * BLOCK_BYTES
        return whole + -whole % RECORD_BYTES

    @property
    def own_captions(self) -> int:
        """How many captions of a tar that is whole stand in no sidecar of its own."""
        return self._notes.own_captions

    def add(self, key: str, members: Sequence[Member]) -> None:
        """Append the members of a sample. After an error only ``abandon`` is of use."""
        self.keys.add(key)
        self._notes.begin_sample(members)
        for member in members:
            self._write(header(member.name, member.size))
            self._notes.begin(member, self.size)
            written = 0
            for piece in member.pieces:
                self._write(piece)
                self._notes.add(piece, first=not written)
                written += len(piece)
            if written != member.size:
                raise FileChangedError(
                    f"{member.name} was to have {member.size:,} bytes and has {written:,}: the "
                    "source changed while it was read; run the same again"
                )
            self._notes.end()
            self._write(bytes(-member.size % BLOCK_BYTES))

    def finish(self) -> TarIndex:
        """End the tar, and tell its index. The bytes last, under the name that they have."""
        self._write(bytes(self.size_with(0) - self.size))
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        digest = None if self._digest is None else self._digest.hexdigest()
        return self._notes.index(self.size, digest, self.path.name)

    def abandon(self) -> None:
        """Remove what there is."""
        with suppress(OSError):  # what is buffered may have no place either
            self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, data: Payload) -> None:
        with writing(self.path):
            self._file.write(data)
        if self._digest is not None:
            self._digest.update(data)
        self.size += len(data)


class _Notes:
    """What the index of a tar will say, as it would if the tar were scanned."""

    def __init__(self, noting: Noting) -> None:
        self.own_captions = 0
        self._noting = noting
        self._keeps_sidecars = noting.sidecars
        self._captions: dict[int, Captions] = {}
        self._names: list[str] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._shapes: list[tuple[int, int]] = []
        self._sidecars: dict[int, bytes] = {}
        self._digests: list[str] = []
        self._digest = hashlib.sha256()

    def begin_sample(self, members: Sequence[Member]) -> None:
        """Sidecars are needed also to see whether they say what the captions are."""
        self._keeps_sidecars = self._noting.sidecars or any(
            member.captions is not None for member in members
        )

    def begin(self, member: Member, offset: int) -> None:
        if member.captions is not None:
            self._captions[len(self._names)] = member.captions
        self._names.append(member.name)
        self._offsets.append(offset)
        self._sizes.append(member.size)
        self._shapes.append((0, 0))
        self._digest = hashlib.sha256()

    def add(self, piece: Payload, *, first: bool) -> None:
        """See to the next bytes of a member."""
        if self._noting.hash:
            self._digest.update(piece)
        if not first:
            return
        if self._noting.geometry:
            self._shapes[-1] = image_size(bytes(piece)) or (0, 0)
        name, whole = self._names[-1], len(piece) == self._sizes[-1] <= LONGEST_SIDECAR
        if self._keeps_sidecars and whole and is_sidecar(name.encode()):
            self._sidecars[len(self._names) - 1] = bytes(piece)

    def end(self) -> None:
        self._digests.append(self._digest.hexdigest())

    def index(self, size: int, digest: str | None, shown: str) -> TarIndex:
        noting = self._noting
        index = TarIndex(
            pa.array(self._names, pa.string()),
            np.array(self._offsets, np.int64),
            np.array(self._sizes, np.int64),
            sha256=pa.array(self._digests, pa.string()) if noting.hash and self._names else None,
            facts=TarFacts(
                size=size,
                hash_lfs=digest,
                has_geometry=noting.geometry,
                has_sidecars=noting.sidecars,
            ),
        )
        if noting.geometry:
            shapes = np.array(self._shapes, np.int32).reshape(-1, 2)
            index = replace(index, widths=shapes[:, 0].copy(), heights=shapes[:, 1].copy())
        told = with_sidecars(index, self._sidecars, shown) if self._sidecars else index
        return self._with_captions(told if noting.sidecars else index, told.captions)

    def _with_captions(self, index: TarIndex, told: pa.StringArray | None) -> TarIndex:
        """With those that no sidecar tells."""
        nothing: list[Any] = [None] * len(index)
        texts = nothing if told is None else told.to_pylist()
        own = {
            member: json.dumps(captions)
            for member, captions in self._captions.items()
            if texts[member] is None or json.loads(texts[member]) != captions
        }
        self.own_captions = len(own)
        if not own:
            return index
        noted = nothing if index.captions is None else texts
        merged = [own.get(member, text) for member, text in enumerate(noted)]
        facts = replace(index.facts, captions_written=True)
        return replace(index, captions=pa.array(merged, pa.string()), facts=facts)
