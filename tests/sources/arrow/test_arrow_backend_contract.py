"""The contract of backends, over Arrow IPC in all of its forms."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from headrace.access import Backend
from headrace.sources.arrow.backend import ArrowBackend
from headrace.testing import BackendContract


def write_file(path: Path, table: pa.Table, batch_rows: int, compression: str | None) -> None:
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch_rows)


class TestArrowFiles(BackendContract):
    compression: str | None = None

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        for number, start in enumerate(range(0, cls.rows, 400)):
            shard = table.slice(start, 400)
            write_file(directory / f"{number}.arrow", shard, 70, cls.compression)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return ArrowBackend(directory)


class TestLz4Files(TestArrowFiles):
    compression = "lz4"


class TestZstdFiles(TestArrowFiles):
    compression = "zstd"


class TestFilesThatAreDescribed(TestArrowFiles):
    @classmethod
    def open(cls, directory: Path) -> Backend:
        schema = cls.expected().schema
        return ArrowBackend(directory, shard_row_counts=[400, 400, 354], schema=schema)


class TestArrowStreams(BackendContract):
    compression: str | None = None

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        options = ipc.IpcWriteOptions(compression=cls.compression)
        for number, start in enumerate(range(0, cls.rows, 400)):
            path = directory / f"{number}.arrows"
            with ipc.new_stream(path, table.schema, options=options) as writer:
                writer.write_table(table.slice(start, 400), max_chunksize=70)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return ArrowBackend(sorted(directory.iterdir()))


class TestCompressedStreams(TestArrowStreams):
    compression = "lz4"


class TestTables(BackendContract):
    pickles_data = True

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        pass

    @classmethod
    def open(cls, directory: Path) -> Backend:
        table = cls.expected()
        parts = [table.slice(start, 130) for start in range(0, cls.rows, 130)]
        return ArrowBackend(table=pa.concat_tables(parts))
