"""Delete files of every kind for one data file, and the rows of it that are left."""

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring
from pyarrow import orc

from headrace.model import DataFileInfo
from headrace.sources.iceberg import delete_files
from headrace.sources.iceberg.deletes import (
    DeletesOf,
    EqualityDeleteFile,
    PositionDeleteFile,
)
from headrace.sources.tables.vectors import DeletionVector
from headrace.storage import LocalStore

STORE = LocalStore()
DATA = "s3://b/data.parquet"
FILE = DataFileInfo(DATA, 1000, 100)


def position_file(path: Path, rows: list[int], data_path: str = DATA) -> PositionDeleteFile:
    table = pa.table(
        {"file_path": pa.array([data_path] * len(rows), pa.string()), "pos": pa.array(rows)}
    )
    pq.write_table(table.cast(pa.schema([("file_path", "string"), ("pos", "int64")])), path)
    return PositionDeleteFile(str(path), path.stat().st_size, "parquet")


def equality_file(
    path: Path, columns: dict[int, pa.Array], format: str = "parquet"
) -> EqualityDeleteFile:
    key = {"parquet": "PARQUET:field_id", "orc": "iceberg.id"}[format]
    fields = [pa.field(f"old{i}", a.type, metadata={key: str(i)}) for i, a in columns.items()]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    if format == "parquet":
        pq.write_table(table, path)
    else:
        orc.write_table(table, str(path))
    return EqualityDeleteFile(str(path), path.stat().st_size, format, tuple(sorted(columns)))


def vector_file(path: Path, rows: list[int]) -> DeletionVector:
    body = bytes.fromhex("d1d33964") + pyroaring.BitMap64(rows).serialize()
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    path.write_bytes(b"PFA1" + blob + b"PFA1")
    return DeletionVector(str(path), 4, len(blob), len(set(rows)), path.stat().st_size)


def rows_of(first: int, count: int) -> pa.Table:
    """A table that says which rows of a file it has."""
    return pa.table({"row": pa.array(range(first, first + count), pa.int64())})


def left(deletes: DeletesOf, first: int, count: int) -> list[int]:
    rows: list[int] = delete_files.live(STORE, deletes, FILE, first, rows_of(first, count))[
        "row"
    ].to_pylist()
    return rows
