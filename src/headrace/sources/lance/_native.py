"""Calls of Lance: a version of a dataset, its fragments, and rows of it.

All uses of pylance for reading stand here, and were seen to work in pylance 14, to which the
dependency is held. Not documented are these:

* ``FragmentMetadata.files`` with ``path`` and ``file_size_bytes``: names and sizes of data files.
* ``blob_handling="all_binary"`` of scanners, ``read_blobs``, and the field metadata
  ``lance-encoding:blob``: blobs as bytes.
* ``PanicException``: the class of panics of its Rust code, which is known only by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.storage import NativeLibrary

__all__ = ["Failed", "Found", "Handle"]

_LANCE = NativeLibrary("Lance")
_SOURCE_LINES = re.compile(r",? ?/\S+\.rs:\d+:\d+")


class Failed(Exception):
    """Lance could not do it, and says why in words that may hold secrets."""


class Found(NamedTuple):
    """The metadata of a version, which is known without reading any rows."""

    version: int
    schema: pa.Schema
    """as rows come out: blobs as bytes, Lance's own types as what they are stored as"""
    fragments: list[int]
    """ids, in the order of the rows"""
    rows: list[int]
    """that are not deleted, of each fragment"""
    sizes: list[int | None]
    """bytes of the data files of each"""
    files: list[str]
    """names of the first data file of each, which no other version uses for other rows"""


class Handle:
    """An open version of a dataset, for all threads of the process that opened it.

    Raises:
        WorkerError: The process was forked from one that has used Lance.
    """

    def __init__(self, uri: str, version: int | str | None, options: dict[str, str] | None) -> None:
        _LANCE.use()
        import lance

        with _failing():
            self._dataset: Any = lance.dataset(uri, version=version, storage_options=options)
            stored = self._dataset.schema
        self._blobs = {field.name for field in stored if _is_blob(field)}
        self.schema = pa.schema([_plain(field) for field in stored], metadata=stored.metadata)

    def found(self) -> Found:
        """Return what there is in it."""
        with _failing():
            fragments = self._dataset.get_fragments()
            listed = [fragment.metadata for fragment in fragments]
            return Found(
                self._dataset.version,
                self.schema,
                [one.id for one in listed],
                [fragment.count_rows() for fragment in fragments],
                [_size(one.files) for one in listed],
                [one.files[0].path if one.files else "" for one in listed],
            )

    def versions(self) -> tuple[list[int], list[str]]:
        """Return the numbers of the versions that are there, and the names of tags."""
        with _failing():
            numbers = [one["version"] for one in self._dataset.versions()]
            return numbers, sorted(self._dataset.tags.list())

    def take(self, rows: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return rows by index among those that are not deleted; order and repetitions are kept.

        Types of Lance's own are left to the caller, which knows the schema.
        """
        blobs = [name for name in columns if name in self._blobs]
        plain = [name for name in columns if name not in self._blobs]
        with _failing():
            if not blobs:
                return self._dataset.take(rows, columns=plain)
            table = self._dataset.take(rows, columns=plain) if plain else pa.table({})
            read = {
                name: self._dataset.read_blobs(name, indices=rows, preserve_order=True)
                for name in blobs
            }
        found = dict(zip(plain, table.columns, strict=True))
        for name, values in read.items():
            found[name] = pa.array([value for _, value in values], pa.large_binary())
        return pa.table({name: found[name] for name in columns})

    def slice(
        self, start: int, length: int, columns: Sequence[str], batch_readahead: int
    ) -> pa.Table:
        """Return rows that follow each other, of those that are not deleted."""
        with _failing():
            scanner = self._dataset.scanner(
                columns=list(columns),
                offset=start,
                limit=length,
                batch_readahead=batch_readahead,
                scan_in_order=True,
                blob_handling="all_binary",
            )
            return scanner.to_table()


@contextmanager
def _failing() -> Iterator[None]:
    """Raise errors of Lance as ``Failed``; a panic of its Rust code is no ``Exception``."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, OverflowError) as error:
        failed = Failed(_text_of(error))
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        failed = Failed(f"Lance failed inside: {_text_of(error)}")
    else:
        return
    raise failed


def _text_of(error: BaseException) -> str:
    return _SOURCE_LINES.sub("", str(error)) or type(error).__name__


def _is_own(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith("lance.")


def _is_blob(field: pa.Field) -> bool:
    if _is_own(field.type):
        return bool(field.type.extension_name.startswith("lance.blob"))
    return (field.metadata or {}).get(b"lance-encoding:blob") == b"true"


def _plain(field: pa.Field) -> pa.Field:
    if _is_blob(field):
        return pa.field(field.name, pa.large_binary(), field.nullable)
    if _is_own(field.type):
        return pa.field(field.name, field.type.storage_type, field.nullable)
    return field


def _size(files: Sequence[Any]) -> int | None:
    sizes = [file.file_size_bytes for file in files]
    return sum(sizes) if sizes and all(sizes) else None
