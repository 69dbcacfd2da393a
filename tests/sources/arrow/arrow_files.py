"""Arrow IPC files of columns of one width each, and their rows as the format reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.model import DataFileInfo, FileSplit, RowRange
from headrace.sources.arrow._format import ArrowFormat
from headrace.storage import LocalStore

STORE = LocalStore()

COLUMNS: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "half": pa.float16(),
    "float": pa.float32(),
    "long": pa.int64(),
    "day": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
    "price": pa.decimal128(9, 2),
    "hash": pa.binary(5),
    "vector": pa.list_(pa.float32(), 3),
    "matrix": pa.list_(pa.list_(pa.int16(), 2), 3),
    "tensor": pa.fixed_shape_tensor(pa.int16(), [2, 2]),
}


def rows_of(count: int, names: Sequence[str]) -> pa.Table:
    return pa.table({name: _column(COLUMNS[name], count) for name in names})


def _column(type_: pa.DataType, count: int) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _column(type_.storage_type, count))
    if pa.types.is_fixed_size_list(type_):
        items = _column(type_.value_type, count * type_.list_size)
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    if pa.types.is_fixed_size_binary(type_):
        return pa.array([b"%05d" % row for row in range(count)], type_)
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(row) / 4 for row in range(count)], type_)
    if pa.types.is_float16(type_):
        return pa.array(np.arange(count, dtype=np.float16) % 1000)
    numbers = pa.array(np.arange(count) % 100 if type_ == pa.int8() else np.arange(count))
    return numbers.cast(pa.int32()).cast(type_) if type_ == pa.date32() else numbers.cast(type_)


def write(path: Path, table: pa.Table, lengths: Sequence[int], **options: Any) -> None:
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        start = 0
        for length in lengths:
            writer.write_table(table.slice(start, length) if length else table.slice(0, 0))
            if not length:
                writer.write_batch(pa.RecordBatch.from_pylist([], schema=table.schema))
            start += length


def look(path: Path) -> DataFileInfo:
    """The file as discovery knows it."""
    listed = STORE.status(str(path))
    assert listed is not None
    facts = ArrowFormat().inspect(STORE, listed)
    return replace(listed, record_count=facts.record_count, row_groups=facts.row_groups)


def tables(
    file: DataFileInfo, schema: pa.Schema, rows: RowRange | None = None, block_bytes: int = 1 << 24
) -> list[pa.Table]:
    return list(ArrowFormat().read(STORE, FileSplit(file, rows), schema, block_bytes))
