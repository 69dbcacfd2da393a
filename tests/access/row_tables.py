"""Rows of many types, in memory and in shards."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from headrace.access import ArrowBackend, RowDataset

ROWS = 500


def rows_of(columns: dict[str, Any], **options: Any) -> RowDataset:
    """Return rows of a table in memory."""
    return RowDataset(ArrowBackend(table=pa.table(columns)), **options)


def make_table(rows: int = ROWS) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "id": pa.array(numbers),
            "small": pa.array(numbers % 100, pa.int8()),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(rows * 4, dtype=np.float32)), 4
            ),
            "text": pa.array([f"row {i}" for i in range(rows)]),
            "blob": pa.array([bytes([i % 251]) * (i % 7) for i in range(rows)]),
            "tags": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int32())),
            "pair": pa.array([{"a": i, "b": f"b{i}"} for i in range(rows)]),
        }
    )


def write_shards(folder: Path, table: pa.Table, shards: int = 4, batch_rows: int = 37) -> list[str]:
    paths = []
    step = -(-table.num_rows // shards)
    for number, start in enumerate(range(0, table.num_rows, step)):
        path = folder / f"{number}.arrow"
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table.slice(start, step), max_chunksize=batch_rows)
        paths.append(str(path))
    return paths


def sharded(folder: Path, rows: int = ROWS) -> ArrowBackend:
    return ArrowBackend(write_shards(folder, make_table(rows)))


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (6, 8)) -> bytes:
    """Return an image of one colour."""
    stream = BytesIO()
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    Image.new("RGB", size, (number % 256, 10, 20)).save(stream, kind, **options)
    return stream.getvalue()
