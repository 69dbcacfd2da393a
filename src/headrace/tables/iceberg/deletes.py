"""The words of deletes: files and vectors that say which rows of data files are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar, overload

import numpy as np

__all__ = [
    "NO_DELETES",
    "WAY_OUT",
    "DeletesOf",
    "DeletionVector",
    "EqualityDeleteFile",
    "PositionDeleteFile",
    "Selection",
    "SharedFiles",
    "plain_path",
    "store_path",
]

WAY_OUT = "compact the table, or rewrite its delete files, with the engine that writes it"


@dataclass(frozen=True, slots=True)
class PositionDeleteFile:
    """A file that names rows of data files by their positions."""

    path: str
    size: int
    format: str
    """parquet, orc or avro"""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A bitmap of the deleted rows of one data file, somewhere in a Puffin file."""

    path: str
    size: int
    offset: int
    length: int
    cardinality: int
    """the rows that it deletes"""


@dataclass(frozen=True, slots=True)
class EqualityDeleteFile:
    """A file of values: rows that have the same ones in some columns are deleted."""

    path: str
    size: int
    format: str
    field_ids: tuple[int, ...]
    """the columns, ascending"""


T = TypeVar("T", PositionDeleteFile, EqualityDeleteFile)


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Some files of a list that is shared: all from a place on, or those whose bits are set."""

    files: tuple[T, ...]
    start: int = 0
    bits: bytes = b""
    """one for each file from ``start`` on; nothing: all of them"""

    def __len__(self) -> int:
        if self.bits:
            return int.from_bytes(self.bits).bit_count()
        return len(self.files) - self.start

    def __iter__(self) -> Iterator[T]:
        if not self.bits:
            return islice(self.files, self.start, None)
        places = np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, np.uint8)))
        return (self.files[self.start + place] for place in places.tolist())


@dataclass(frozen=True, slots=True)
class SharedFiles(Sequence[T], Generic[T]):
    """Files out of lists that many data files share: those of all of them pickle as one list."""

    parts: tuple[Selection[T], ...]
    """none of them empty"""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return tuple(self)[index]

    def __hash__(self) -> int:
        """Of little: the lists may be long, and this is part of the keys of caches."""
        return hash(tuple((p.files[p.start], len(p.files), p.bits) for p in self.parts))


@dataclass(frozen=True, slots=True)
class DeletesOf:
    """All deletes that apply to a data file. Without any it is false."""

    positions: Sequence[PositionDeleteFile] = ()
    vector: DeletionVector | None = None
    equalities: Sequence[EqualityDeleteFile] = ()

    def __bool__(self) -> bool:
        return self.vector is not None or bool(self.positions) or bool(self.equalities)

    @property
    def counted(self) -> bool:
        """Return True if the table's metadata tells how many rows are deleted."""
        return not self.positions and not self.equalities

    @property
    def field_ids(self) -> frozenset[int]:
        """The columns whose values decide: they have to be read, also where they were dropped."""
        return frozenset(chain.from_iterable({file.field_ids for file in self.equalities}))


NO_DELETES = DeletesOf()


def plain_path(path: str) -> str:
    """A path by which a file of this machine is compared; others as they are.

    ``file:///x``, ``file:/x`` and ``/x`` are one file, and engines write all three. Nothing else
    is taken for the same: the specification wants paths to be equal as they are written.
    """
    if path.startswith("file:///"):
        return path[7:]
    if path.startswith("file:/") and not path.startswith("file://"):
        return path[5:]
    return path


def store_path(path: str) -> str:
    """A path as a store calls it: engines have other names for S3."""
    path = plain_path(path)
    scheme, separator, rest = path.partition("://")
    return f"s3://{rest}" if separator and scheme in ("s3a", "s3n") else path
