"""Random histories of tables: whatever was done to them, the rows are those of pypaimon."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paimon_tables import Warehouse, arrow_rows, delete, in_order, splits, write
from pypaimon.schema.data_types import AtomicType, PyarrowFieldParser
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.table.file_store_table import FileStoreTable

FORMATS = ["parquet", "orc", "avro", "row"]
STEPS = ["append", "append", "append", "delete", "rename", "add", "drop", "widen", "overwrite"]


class History:
    """A table that things are done to. Its first columns ``id`` and ``part`` stay."""

    def __init__(self, warehouse: Warehouse, choice: random.Random, **options: Any) -> None:
        self.warehouse = warehouse
        self.choice = choice
        self.rows = 0
        self.names = 0
        keyed = bool(options.get("primary_keys"))
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), not keyed),
                pa.field("part", pa.int32(), not keyed),
                ("a", pa.int32()),
                ("b", pa.string()),
            ]
        )
        warehouse.make("history", schema, **options)
        self.keyed = keyed
        self.has_deletes = False
        self.may_delete = True

    @property
    def table(self) -> FileStoreTable:
        return self.warehouse.table("history")

    def append(self, *, overwrite: bool = False) -> None:
        table = self.table
        schema = PyarrowFieldParser.from_paimon_schema(table.fields)
        count = self.choice.randint(1, 60)
        compacted = self.keyed and self.choice.random() < 0.4
        start = self.choice.randint(0, self.rows) if self.keyed and not compacted else self.rows
        ids = range(start, start + count)
        self.rows = max(self.rows, start + count)
        columns = [pa.array([self._value(field, i) for i in ids], field.type) for field in schema]
        data = pa.table(columns, schema=schema.remove_metadata())
        # No other file has keys of a compacted one, unless it is younger and at level 0.
        write(table, data, overwrite=overwrite, level=5 if compacted else None)

    def _value(self, field: pa.Field, i: int) -> Any:
        if field.name == "id":
            return i
        if field.name == "part":
            return i % 2
        if self.choice.random() < 0.1:
            return None
        return f"{field.name} {i}" if pa.types.is_string(field.type) else i * 3

    def overwrite(self) -> None:
        self.append(overwrite=True)
        # pypaimon keeps the vectors of files that it has overwritten, and refuses to add others.
        self.may_delete = not self.has_deletes

    def delete(self) -> None:
        """Rows of one file by their places, where that is all it takes."""
        found = [(split, file) for split in splits(self.table) for file in split.files]
        if not found or self.keyed or not self.may_delete:
            return
        split, file = self.choice.choice(found)
        known = [one for one in split.data_deletion_files or [] if one is not None]
        if known:  # pypaimon's writer adds to them; ours in these tests does not
            return
        some = self.choice.sample(range(file.row_count), self.choice.randint(1, file.row_count))
        delete(self.table, {file.file_name: some})
        self.has_deletes = True

    def _changed(self) -> str | None:
        free = [f.name for f in self.table.fields if f.name not in ("id", "part")]
        return self.choice.choice(free) if free else None

    def _new_name(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def rename(self) -> None:
        if (name := self._changed()) is not None:
            self.warehouse.alter("history", SchemaChange.rename_column(name, self._new_name()))

    def add(self) -> None:
        name = self.choice.choice([self._new_name(), "a", "b"])
        if name in [field.name for field in self.table.fields]:
            return
        kind = AtomicType(self.choice.choice(["INT", "STRING", "FLOAT"]))
        self.warehouse.alter("history", SchemaChange.add_column(name, kind, None, None))

    def drop(self) -> None:
        if (name := self._changed()) is not None:
            self.warehouse.alter("history", SchemaChange.drop_column(name))

    def widen(self) -> None:
        wider = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
        for field in self.table.fields:
            if field.name not in ("id", "part") and str(field.type) in wider:
                kind = AtomicType(wider[str(field.type)])
                self.warehouse.alter("history", SchemaChange.update_column_type(field.name, kind))
                return


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_order(rows)


@given(
    seed=st.integers(0, 2**32),
    file_format=st.sampled_from(FORMATS),
    partitioned=st.booleans(),
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=8),
)
@settings(max_examples=60)
def test_append_tables(seed: int, file_format: str, partitioned: bool, steps: list[str]) -> None:
    check(seed, steps, file_format, partition_keys=["part"] if partitioned else [])


@given(
    seed=st.integers(0, 2**32),
    file_format=st.sampled_from(FORMATS),
    buckets=st.sampled_from(["1", "3", "-1"]),
    partitioned=st.booleans(),
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=6),
)
@settings(max_examples=40)
def test_keyed_tables(
    seed: int, file_format: str, buckets: str, partitioned: bool, steps: list[str]
) -> None:
    check(
        seed,
        steps,
        file_format,
        primary_keys=["id", "part"],
        partition_keys=["part"] if partitioned else [],
        bucket=buckets,
    )


def check(seed: int, steps: list[str], file_format: str, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        choice = random.Random(seed)
        more = {} if options.get("primary_keys") else {"deletion-vectors.enabled": "true"}
        history = History(
            Warehouse(folder), choice, **options, **more, **{"file.format": file_format}
        )
        for step in steps:
            getattr(history, step)()
        expected = by_id(arrow_rows(history.table))
        chunk_size = choice.choice([None, 1, 7, 100])
        loader, dataset = history.warehouse.load("history", chunk_size=chunk_size, shuffle=True)
        rows = [row for batch in loader for row in batch.to_pylist()]
        assert by_id(rows) == expected
        assert dataset.num_rows in (None, len(expected))
        assert dataset.num_rows is not None or history.keyed


def test_histories_cover_what_they_say() -> None:
    """A history with every step is one that is checked."""
    for file_format in FORMATS:
        check(1, ["append", *STEPS, "append"], file_format)


@pytest.mark.parametrize("step", sorted(set(STEPS)))
def test_every_step_can_be_done_to_both_kinds(step: str) -> None:
    check(2, ["append", step, "append"], "parquet")
    check(2, ["append", step, "append"], "parquet", primary_keys=["id"], bucket="2")
