"""Tables that move on: their rows, and changes that a running epoch must not see."""

from __future__ import annotations

from numbered_tables import numbers
from pyiceberg.table import Table
from writers.committing import data_files
from writers.data_files import append_rows, overwrite_rows
from writers.delete_files import append_equality_deletes, append_position_deletes

ALL = list(range(120))


def rename_x(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("x", "y")


def change_everything(table: Table) -> None:
    """Append, delete rows of every file, compact, rename: nothing of it is for a running epoch."""
    append_rows(table, numbers(1000, 30))
    paths = [file.file_path for file in data_files(table)]
    append_position_deletes(table, {path: [0, 1, 2] for path in paths})
    append_equality_deletes(table, ["id"], [(50,), (90,)])
    overwrite_rows(table, numbers(2000, 10), replaced=set(paths[:2]))
    rename_x(table)
