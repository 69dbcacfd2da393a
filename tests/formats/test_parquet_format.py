"""Parquet files: row groups, their statistics, nested columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from penstock.errors import OptionError
from penstock.formats.parquet import ParquetFormat
from penstock.model import DataFileInfo, FileSplit
from penstock.storage import LocalStore
from penstock.testing import FormatContract


class TestParquetContract(FormatContract):
    prunes = True

    def format(self) -> ParquetFormat:
        return ParquetFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        parquet.write_table(table, path, row_group_size=self.rows_per_group)


def test_options_change_what_a_file_is_found_to_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    far = pa.array([253402300799000], pa.timestamp("ms"))  # the year 9999: too far for nanoseconds
    parquet.write_table(pa.table({"t": far, "id": [1]}), path, use_deprecated_int96_timestamps=True)
    file, store = DataFileInfo(str(path)), LocalStore()
    option = ParquetFormat({"coerce_int96_timestamp_unit": "ms"})
    for keep in (None, pc.field("id") == 1):
        facts = option.inspect(store, file, keep)
        assert facts.schema.field("t").type == pa.timestamp("ms")
        assert facts.row_groups is not None
        assert len(facts.row_groups) == 1
        (table,) = option.read(store, FileSplit(file), facts.schema, 1 << 20)
        assert table["t"].combine_chunks().equals(far)
    with pytest.raises(OptionError, match="known are coerce_int96"):
        ParquetFormat({"coerce": "ms"})
