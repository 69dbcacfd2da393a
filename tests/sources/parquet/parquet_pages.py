"""Parquet files of small pages, with numbered rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.sources.parquet import backend as parquet_groups

SMALL_PAGES: dict[str, Any] = {
    "write_page_index": True,
    "data_page_size": 4096,
    "write_batch_size": 8,
    "compression": "none",
    "use_dictionary": False,
}


@pytest.fixture
def cheap_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups need not be as large as those of which pages are read."""
    for name in ("_SMALL_GROUP_BYTES", "_COLUMN_COST_BYTES", "_PAGE_COST_BYTES"):
        monkeypatch.setattr(parquet_groups, name, 0)


def numbered(rows: int, first: int = 0, width: int = 1000) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "text": [f"{i:0{width}}" for i in ids]})


def write(path: Path, table: pa.Table, **writing: Any) -> Path:
    pq.write_table(table, path, **{**SMALL_PAGES, **writing})
    return path


def wanted(table: pa.Table, rows: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.take(pa.array(rows)).to_pylist()
    return found
