"""A data file, delete files of every kind for it, and the rows of it that are left."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring
from pyarrow import orc

from headrace.model import DataFileInfo, FileList, FileSplit, RowRange
from headrace.sources.iceberg._deletes import DeleteFile, DeleteList
from headrace.sources.iceberg.table import IcebergFile, IcebergSource
from headrace.sources.tables._columns import TableColumn
from headrace.sources.tables._vectors import DeletionVector
from headrace.storage import LocalStore

STORE = LocalStore()
DATA = "s3://b/data.parquet"
ROWS = pa.table({"row": pa.array(range(100), pa.int64())})


def position_file(path: Path, rows: Sequence[int], data_path: str = DATA) -> DeleteFile:
    table = pa.table(
        {"file_path": pa.array([data_path] * len(rows), pa.string()), "pos": pa.array(rows)}
    )
    pq.write_table(table.cast(pa.schema([("file_path", "string"), ("pos", "int64")])), path)
    return DeleteFile(str(path), path.stat().st_size, "parquet")


def equality_file(
    path: Path, columns: dict[int, pa.Array], format: str = "parquet", *, int96: bool = False
) -> DeleteFile:
    key = {"parquet": "PARQUET:field_id", "orc": "iceberg.id"}[format]
    fields = [pa.field(f"old{i}", a.type, metadata={key: str(i)}) for i, a in columns.items()]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    if format == "parquet":
        pq.write_table(table, path, use_deprecated_int96_timestamps=int96)
    else:
        orc.write_table(table, str(path))
    return DeleteFile(str(path), path.stat().st_size, format, tuple(sorted(columns)))


def vector_file(path: Path, rows: list[int]) -> DeletionVector:
    body = bytes.fromhex("d1d33964") + pyroaring.BitMap64(rows).serialize()
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    path.write_bytes(b"PFA1" + blob + b"PFA1")
    return DeletionVector(str(path), 4, len(blob), len(set(rows)), path.stat().st_size)


def source_of(
    folder: Path,
    data: pa.Table = ROWS,
    *,
    positions: Sequence[DeleteFile] = (),
    equalities: Sequence[DeleteFile] = (),
    vector: DeletionVector | None = None,
    written_path: str = DATA,
    types: Mapping[str, pa.DataType] | None = None,
    int96: bool = False,
) -> IcebergSource:
    """Write a data file, whose columns have the ids 1, 2, …, and return the source of its rows.

    ``types`` are those of columns in the table, where the file has others.
    """
    path = str(folder / "data.parquet")
    fields = [
        one.with_metadata({"PARQUET:field_id": str(at)}) for at, one in enumerate(data.schema, 1)
    ]
    stored = data.cast(pa.schema(fields))
    pq.write_table(stored, path, row_group_size=30, use_deprecated_int96_timestamps=int96)
    size = Path(path).stat().st_size
    columns = {
        one.name: TableColumn(at, one.name, (types or {}).get(one.name, one.type))
        for at, one in enumerate(data.schema, 1)
    }
    file = IcebergFile(
        path=path,
        size=size,
        rows=data.num_rows,
        format="parquet",
        constants={},
        vector=vector,
        written_path=written_path,
        partition={},
        row_groups=None,
        deletes=tuple(DeleteList(tuple(files), 0) for files in (positions, equalities) if files),
    )
    return IcebergSource(
        STORE,
        pa.schema([(name, column.type) for name, column in columns.items()]),
        FileList([DataFileInfo(path, size, data.num_rows)]),
        str(folder),
        columns | {f"\0key {column.id}": column for column in columns.values()},
        {path: file},
    )


def rows_left(
    source: IcebergSource, first: int = 0, count: int | None = None, column: str = "row"
) -> list[Any]:
    """Return the values of a column in some rows of a data file, less those that are deleted."""
    (file,) = source.files
    count = (file.record_count or 0) - first if count is None else count
    if not count:
        return []
    chunk = FileSplit(file, RowRange(first, count))
    schema = pa.schema([source.schema.field(column)])
    return [
        row for table in source.read(chunk, schema, 1 << 20) for row in table[column].to_pylist()
    ]
