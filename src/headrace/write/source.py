"""The rows that are shuffled: of files, or of any dataset that reads files."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headrace.convert.decoded import Kind
from headrace.errors import OptionError
from headrace.model import FileList
from headrace.plan import BYTES, ROWS, Chunks, cut_chunks
from headrace.sources.files.discovery import discover
from headrace.sources.reader import TabularReader
from headrace.storage import side_threads

__all__ = ["FileRows", "SourceRows", "as_rows", "read_in_order"]

_CHUNK_BYTES = 16 << 20
"""of a chunk: never changed by options, for a journal counts chunks"""
_NOT_TRUE_OF_A_COPY = (b"iceberg.", b"org.apache.spark", b"parquet.")
_WAITING_THREADS, _DECODING_THREADS = 8, 2


@runtime_checkable
class SourceRows(Protocol):
    """Rows in an order that is always the same, in numbered chunks."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, with the metadata that the copy is to have."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """What has to be the same when the work is gone on with: data, columns, filter."""
        ...

    @property
    def weights(self) -> Sequence[int]:
        """How much each chunk is, about, in bytes."""
        ...

    @property
    def local(self) -> bool:
        """Whether reading costs no waiting."""
        ...

    def bounded(self, chunk: int) -> bool:
        """Whether a chunk certainly is not much larger than its weight says."""
        ...

    def read(self, chunk: int, block_bytes: int) -> Iterator[pa.Table]:
        """The rows of a chunk in order, in tables of about so many bytes; threads may call it."""
        ...


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of files, in the order of their paths."""

    reader: TabularReader
    files: FileList
    chunks: Chunks
    schema: pa.Schema

    @classmethod
    def of(cls, reader: TabularReader, files: FileList) -> FileRows:
        """Those that a reader gives of these files."""
        # Tables have metadata of their own, which is not true of a copy.
        kept = {
            key: value
            for key, value in reader.source.metadata.items()
            if not key.startswith(_NOT_TRUE_OF_A_COPY)
        }
        chunks = cut_chunks(files, split_bytes=_CHUNK_BYTES)
        return cls(reader, files, chunks, reader.schema.with_metadata(kept))

    @property
    def facts(self) -> Mapping[str, str]:
        digest = hashlib.sha256()
        for file in self.files:
            version = getattr(file, "snapshot_id", None)
            digest.update(
                f"{file.path}\0{file.file_size}\0{file.etag}\0{file.record_count}\0{version}\n".encode()
            )
        keep = self.reader.filter
        return {
            "source_files": digest.hexdigest()[:16],
            "columns": hashlib.sha256(self.schema.serialize().to_pybytes()).hexdigest()[:16],
            "filters": "" if keep is None else hashlib.sha256(pickle.dumps(keep)).hexdigest()[:16],
        }

    @property
    def weights(self) -> Sequence[int]:
        weights: list[int] = self.chunks.size_bytes.tolist()
        return weights

    @property
    def local(self) -> bool:
        """Whether reading costs no waiting."""
        return self.reader.store.local

    def bounded(self, chunk: int) -> bool:
        known = self.chunks.kind[chunk] in (ROWS, BYTES)
        return bool(known and self.chunks.size_bytes[chunk] <= 2 * _CHUNK_BYTES)

    def read(self, chunk: int, block_bytes: int) -> Iterator[pa.Table]:
        return self.reader.read(self.chunks.split(chunk, self.files), block_bytes)


def as_rows(source: Any, **options: Any) -> tuple[SourceRows, Sequence[str]]:
    """The rows of a path, glob, list or URL, or of a dataset of this library as it is.

    Also what the user called them, where that was a path.
    """
    if isinstance(source, str | os.PathLike | list | tuple):
        found = discover(source, **options)
        named = () if found.listing is None else found.listing.locations
        return FileRows.of(found.reader, found.files), named
    given = sorted(name for name, value in options.items() if value is not None)
    if given:
        raise OptionError(f"a dataset is copied as it is; {given[0]} is an option of paths")
    if isinstance(source, SourceRows):
        return source, ()
    reader = getattr(source, "reader", None)
    files = getattr(source, "files", None)
    if not isinstance(reader, TabularReader) or not isinstance(files, FileList):
        raise OptionError(
            "source must be a path, a list of paths, or a dataset of this library, not a "
            f"{type(source).__name__}"
        )
    for name in reader.schema.names:
        if reader.source.kinds.get(name) is Kind.PICKLE:
            raise OptionError(
                f"column {name!r} holds what a function in decode= returns: Python objects, which "
                "a copy has no type for; leave the function out, or the column out of columns="
            )
    return FileRows.of(reader, files), reader.source.locations


def read_in_order(
    rows: SourceRows, first_chunk: int, *, block_bytes: int, ahead_bytes: int
) -> Generator[tuple[int, pa.Table], None, None]:
    """Chunks from one on, each table with the number of its chunk, read ahead by threads.

    A chunk that may be large is not read ahead, but block by block when its turn comes.
    """
    threads = _DECODING_THREADS if rows.local else _WAITING_THREADS
    weights = rows.weights
    under_way: deque[tuple[int, Future[list[pa.Table]] | None]] = deque()
    following, waiting_bytes = first_chunk, 0
    with side_threads(threads, see_off=rows.local) as submit:
        while following < len(weights) or under_way:
            while following < len(weights) and (
                not under_way
                or (len(under_way) <= threads and waiting_bytes + weights[following] <= ahead_bytes)
            ):
                begun = None
                if rows.bounded(following) and weights[following] <= ahead_bytes:
                    begun = submit(partial(_read_whole, rows, following, block_bytes))
                under_way.append((following, begun))
                waiting_bytes += weights[following]
                following += 1
            chunk, begun = under_way.popleft()
            waiting_bytes -= weights[chunk]
            tables = rows.read(chunk, block_bytes) if begun is None else iter(begun.result())
            del begun
            for table in tables:
                yield chunk, table


def _read_whole(rows: SourceRows, chunk: int, block_bytes: int) -> list[pa.Table]:
    return list(rows.read(chunk, block_bytes))
