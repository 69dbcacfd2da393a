"""What ``test_lance_backend_contract.py`` runs in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headrace.access import Backend, LanceBackend
from headrace.testing import BackendContract

GONE = 99
"""the label of rows that are deleted"""


class TestLanceTables(BackendContract):
    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        import lance

        lance.write_dataset(table, directory / "rows.lance", max_rows_per_file=400)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return LanceBackend(directory / "rows.lance")


class TestLanceTablesOfWhichRowsAreDeleted(TestLanceTables):
    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        import lance

        gone = table.slice(0, 100).set_column(1, "label", pa.array([GONE] * 100, pa.int32()))
        parts = [gone, table.slice(0, 500), gone, table.slice(500), gone]
        written = lance.write_dataset(
            pa.concat_tables(parts), directory / "rows.lance", max_rows_per_file=400
        )
        written.delete(f"label = {GONE}")
