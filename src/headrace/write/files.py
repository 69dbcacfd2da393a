"""Parquet and Arrow IPC files in a directory, here or in a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError
from headrace.write.durable import whole_file
from headrace.write.encodings import AddGroup, arrow_file, parquet_file
from headrace.write.failures import writing
from headrace.write.places import PartsDirectory, parts_directory
from headrace.write.target import Receipt, TargetOptions

__all__ = ["FilesTarget", "arrow_files", "parquet_files"]

_DIGITS = 5

Opener = Callable[[pa.NativeFile, pa.Schema], AbstractContextManager[AddGroup]]
"""begins a file; what it gives adds row groups"""


@dataclass(frozen=True, slots=True)
class FilesTarget:
    """A file for each part, and a marker when all are there.

    Names sort in the order of parts, so that readers that sort by path keep the order.
    """

    directory: PartsDirectory
    ending: str
    open_file: Opener

    def refuse(self, schema: pa.Schema) -> None:
        self.directory.refuse()

    def write(
        self, part: int, parts: int, schema: pa.Schema, groups: Iterator[pa.Table]
    ) -> Receipt:
        digits = max(_DIGITS, len(str(parts - 1)))
        name = f"part-{part:0{digits}d}{self.ending}"
        path = self.directory.staging / name
        rows = 0
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                whole_file(path) as unfinished,
                pa.OSFile(str(unfinished), "wb") as sink,
                self.open_file(sink, schema) as add,
            ):
                for group in groups:
                    add(group)
                    rows += group.num_rows
            size = path.stat().st_size
        self.directory.keep(name)
        return {"name": name, "rows": rows, "size_bytes": size}

    def holds(self, receipt: Receipt, run: str) -> bool:
        return self.directory.holds(receipt["name"], receipt["size_bytes"], run)

    def commit(
        self, schema: pa.Schema, receipts: Sequence[Receipt], facts: Mapping[str, Any]
    ) -> None:
        marker = json.dumps({**facts, "files": list(receipts)}, indent=1)
        names = [receipt["name"] for receipt in receipts]
        self.directory.commit(names, marker, facts["run"])


def parquet_files(options: TargetOptions) -> FilesTarget:
    """Parquet as pyarrow writes it, a row group for each table."""
    compression = options.compression or "snappy"
    _check_compression(compression, ("none", "snappy", "gzip", "brotli", "zstd", "lz4"))
    return FilesTarget(parts_directory(options), ".parquet", partial(parquet_file, compression))


def arrow_files(options: TargetOptions) -> FilesTarget:
    """Arrow IPC files, a record batch for each table."""
    compression = options.compression or "none"
    _check_compression(compression, ("none", "zstd", "lz4"))
    return FilesTarget(parts_directory(options), ".arrow", partial(arrow_file, compression))


def _check_compression(given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise OptionError(f"compression must be one of {', '.join(known)}, not {given!r}")
