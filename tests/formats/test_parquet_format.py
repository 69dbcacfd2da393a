"""Parquet files: row groups, their statistics, nested columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from penstock.formats.parquet import ParquetFormat
from penstock.testing import FormatContract


class TestParquetContract(FormatContract):
    prunes = True

    def format(self) -> ParquetFormat:
        return ParquetFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        parquet.write_table(table, path, row_group_size=self.rows_per_group)
