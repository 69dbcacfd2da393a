"""Random histories of a table, and beside them a plain model of what its rows have to be.

A table begins with a column "key" that is never touched and tells rows apart, and with columns of
a few types whose values come from small sets, so that deletes meet something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from writers.committing import commit_files, data_files
from writers.data_files import append_orc_data, append_rows, overwrite_rows, parquet_files
from writers.delete_files import (
    append_equality_deletes,
    append_position_deletes,
    equality_deletes,
    position_deletes,
)
from writers.deletion_vectors import append_deletion_vectors
from writers.modelled_rows import KEY_ID, ModelledTable, value_of

START = Schema(
    NestedField(1, "key", LongType()),
    NestedField(2, "number", IntegerType()),
    NestedField(3, "text", StringType()),
    NestedField(4, "real", FloatType()),
    NestedField(
        5,
        "pair",
        StructType(NestedField(6, "left", IntegerType()), NestedField(7, "right", StringType())),
    ),
)
ACTIONS = (
    "append", "delete_positions", "delete_equal", "upsert", "overwrite", "rename", "add", "drop",
    "promote", "reorder", "partition",
)  # fmt: skip
MOST_ROWS = 25
LASTING = (2, 3)
"""field ids by which rows are deleted, and which stay as they are, where DuckDB has to read"""


@dataclass
class History(ModelledTable):
    """Acts on a table; `expected` says what has to be in it after that, `told` what was done.

    `for_duckdb`: does nothing that DuckDB cannot read (see `duckdb_can_read`).
    """

    orc: bool = False
    for_duckdb: bool = False
    told: list[str] = field(default_factory=list)
    _next_name: int = 0

    @classmethod
    def begin(
        cls,
        catalog: Catalog,
        name: str,
        *,
        version: int,
        partitioned: int | None = None,
        **how: bool,
    ) -> History:
        properties = {"format-version": str(version), "write.parquet.row-group-limit": "7"}
        table = catalog.create_table(name, START, properties=properties)
        history = cls(table, **how)
        if partitioned is not None:
            history.partition(Random(partitioned))
        history.append(Random(0))
        return history

    def act(self, action: str, seed: int) -> None:
        getattr(self, action)(Random(f"{action} {seed}"))

    def append(self, random: Random) -> None:
        rows = self.new_rows(random, random.randint(1, MOST_ROWS))
        in_orc = self.orc and random.random() < 0.5
        paths = append_orc_data(self.table, rows) if in_orc else append_rows(self.table, rows)
        self.learn(rows, paths)
        self._tell(f"append {rows.num_rows} rows as {len(paths)} files{' of ORC' * in_orc}")

    def delete_positions(self, random: Random) -> None:
        if not self.rows or self.table.metadata.format_version == 1:
            return
        gone = random.sample(self.rows, random.randint(1, max(1, len(self.rows) // 3)))
        positions: dict[str, list[int]] = {}
        for row in gone:
            positions.setdefault(row.file.file_path, []).append(row.position)
        one_file = random.random() < 0.5
        if self.table.metadata.format_version >= 3:
            append_deletion_vectors(self.table, positions, one_file=one_file)
        else:
            written = "orc" if self.orc and random.random() < 0.5 else "parquet"
            append_position_deletes(
                self.table, positions, one_file=one_file, file_format=written,
                bounds=random.random() < 0.5, referenced=random.random() < 0.5,
            )  # fmt: skip
        lost = {id(row) for row in gone}
        self.rows = [row for row in self.rows if id(row) not in lost]
        self._tell(f"delete {positions} by position")

    def delete_equal(self, random: Random) -> None:
        """For the whole table, or for a partition of the current spec."""
        chosen = self._chosen(random)
        if not chosen:
            return
        partition = None
        here = [row for row in self.rows if row.file.spec_id == self.table.spec().spec_id]
        scoped = self.table.spec().fields and not self.for_duckdb
        if scoped and here and random.random() < 0.7:
            partition = random.choice(here).file.partition
        keys = self._random_keys(random, chosen)
        names = [one.name for one in chosen]
        written = "orc" if self.orc and random.random() < 0.5 else "parquet"
        append_equality_deletes(self.table, names, keys, file_format=written, partition=partition)
        self.forget(chosen, keys, partition)
        self._tell(f"delete {names} equal to {keys} in partition {partition}")

    def upsert(self, random: Random) -> None:
        """In one snapshot new rows, deletes of older rows that equal them, and of some of them.

        So do streams: what a delete by equality says is of what was there before it, and a delete
        by position also of what came with it.
        """
        chosen = self._chosen(random)
        if not chosen:
            return
        rows = self.new_rows(random, random.randint(1, MOST_ROWS))
        names = [one.name for one in chosen]
        keys = list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
        files = parquet_files(self.table, rows)
        places = {file.file_path: [0] for file in files if random.random() < 0.5}
        deletes = [equality_deletes(self.table, names, keys)]
        if self.table.metadata.format_version < 3:
            deletes += position_deletes(self.table, places, files)
        else:
            places = {}
        commit_files(self.table, added=[*files, *deletes])
        self.forget(chosen, keys, None)
        self.learn(rows, [file.file_path for file in files])
        self.rows = [
            row for row in self.rows if row.position not in places.get(row.file.file_path, ())
        ]
        self._tell(f"upsert {rows.num_rows} rows by {names} without {places}")

    def _chosen(self, random: Random) -> list[NestedField]:
        """Columns to delete by; none where that cannot be."""
        fields = self.plain_fields() if self.table.metadata.format_version > 1 else []
        if self.for_duckdb:
            fields = [one for one in fields if one.field_id in LASTING]
        return random.sample(fields, min(len(fields), random.randint(1, 2)))

    def _random_keys(self, random: Random, chosen: list[NestedField]) -> list[tuple[Any, ...]]:
        keys = [
            tuple(self.random_value(random, one.field_type) for one in chosen) for _ in range(3)
        ]
        if self.rows and random.random() < 0.5:
            values = random.choice(self.rows).values
            keys.append(tuple(value_of(values, one) for one in chosen))
        return keys

    def overwrite(self, random: Random) -> None:
        files = data_files(self.table)
        if not files:
            return
        replaced = random.choice(files).file_path
        rows = self.new_rows(random, random.randint(0, MOST_ROWS))
        paths = overwrite_rows(self.table, rows, replaced={replaced})
        self.rows = [row for row in self.rows if row.file.file_path != replaced]
        self.learn(rows, paths)
        self._tell(f"overwrite {replaced} by {rows.num_rows} rows")

    def rename(self, random: Random) -> None:
        name = random.choice(self._changeable() or ["key"])
        self._change(lambda schema: schema.rename_column(name, self._fresh_name()))

    def add(self, random: Random) -> None:
        kind = random.choice([IntegerType(), LongType(), StringType(), DoubleType()])
        default = None
        if self.table.metadata.format_version >= 3 and random.random() < 0.5:
            default = {IntegerType: 3, LongType: 4, StringType: "b", DoubleType: 0.5}[type(kind)]
        self._change(
            lambda schema: schema.add_column(self._fresh_name(), kind, default_value=default)
        )

    def drop(self, random: Random) -> None:
        """Not one that a partition spec is made of, now or earlier."""
        used = {one.source_id for spec in self.table.specs().values() for one in spec.fields}
        names = [
            one.name
            for one in self.table.schema().fields
            if one.field_id != KEY_ID and one.field_id not in used and self._may_change(one)
        ]
        if names:
            name = random.choice(names)
            self._change(lambda schema: schema.delete_column(name))

    def promote(self, random: Random) -> None:
        wider = {IntegerType: LongType(), FloatType: DoubleType()}
        fields = [one for one in self.table.schema().fields if type(one.field_type) in wider]
        fields = [one for one in fields if self._may_change(one)]
        if fields:
            one = random.choice(fields)
            self._change(lambda schema: schema.update_column(one.name, wider[type(one.field_type)]))

    def reorder(self, random: Random) -> None:
        name = random.choice(self.table.schema().fields).name
        self._change(lambda schema: schema.move_first(name))

    def partition(self, random: Random) -> None:
        """Take the fields of the spec away, or add one."""
        spec = self.table.spec()
        if spec.fields and random.random() < 0.5:
            with self.table.update_spec() as changing:
                for one in spec.fields:
                    changing.remove_field(one.name)
            self._tell("no partitions")
            return
        used = {part.source_id for part in spec.fields}
        fields = [one for one in self.plain_fields() if one.field_id not in used]
        if not fields:
            return
        one = random.choice(fields)
        transform = random.choice([IdentityTransform(), BucketTransform(3), TruncateTransform(1)])
        with self.table.update_spec() as changing:
            self._next_name += 1
            changing.add_field(one.name, transform, f"part{self._next_name}")
        self._tell(f"partition by {transform} of {one.name}")

    def _may_change(self, one: NestedField) -> bool:
        return not self.for_duckdb or one.field_id not in LASTING

    def _change(self, change: Any) -> None:
        with self.table.update_schema() as schema:
            change(schema)
        fields = self.table.schema().fields
        self._tell(
            "columns " + ", ".join(f"{one.field_id} {one.name} {one.field_type}" for one in fields)
        )

    def _changeable(self) -> list[str]:
        return [one.name for one in self.table.schema().fields if one.field_id != KEY_ID]

    def _fresh_name(self) -> str:
        # Names come back: what a dropped column was called may be what a new one is called.
        self._next_name += 1
        taken = {one.name for one in self.table.schema().fields}
        names = (name for name in ("number", "text", "real", "pair") if name not in taken)
        return next(names, f"n{self._next_name}")

    def _tell(self, what: str) -> None:
        self.told.append(what)
