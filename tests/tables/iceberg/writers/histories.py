"""Random histories of a table, and beside them a plain model of what its rows have to be.

A table begins with a column "key" that is never touched and tells rows apart, and with columns of
a few types whose values come from small sets, so that deletes meet something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
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
from writers.second_readers import comparable

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


@dataclass
class Row:
    """A row of the model: its values by field id, and where it lies."""

    values: dict[int, Any]
    file: DataFile
    position: int

    @property
    def partition(self) -> tuple[int, Record]:
        return self.file.spec_id, self.file.partition


@dataclass
class History:
    """Acts on a table; `expected` says what has to be in it after that."""

    table: Table
    orc: bool = False
    nulls: bool = True
    rows: list[Row] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    _next_key: int = 0
    _next_name: int = 0

    @classmethod
    def begin(
        cls,
        catalog: Catalog,
        name: str,
        *,
        version: int,
        orc: bool = False,
        nulls: bool = True,
        partitioned: bool = False,
    ) -> History:
        properties = {"format-version": str(version), "write.parquet.row-group-limit": "7"}
        table = catalog.create_table(name, START, properties=properties)
        history = cls(table, orc=orc, nulls=nulls)
        if partitioned:
            history.partition(Random(name))
        history.append(Random(0))
        return history

    def act(self, action: str, seed: int) -> None:
        getattr(self, action)(Random(f"{action} {seed}"))

    def expected(self) -> Counter[tuple[Any, ...]]:
        fields = self.table.schema().fields
        return Counter(
            tuple(comparable(_value(row.values, one)) for one in fields) for row in self.rows
        )

    def rows_by_name(self) -> Iterator[dict[str, Any]]:
        """The rows that there have to be, under the names that columns have now."""
        fields = self.table.schema().fields
        for row in self.rows:
            yield {one.name: _value(row.values, one) for one in fields}

    def any_value(self, random: Random, one: NestedField) -> Any:
        """A value such as the column has; never null."""
        if one.field_id == 1:
            return random.randint(0, max(self._next_key, 1))
        values = (self._random_value(random, one.field_type) for _ in range(100))
        return next(value for value in values if value is not None)

    def append(self, random: Random) -> None:
        rows = self._new_rows(random, random.randint(1, MOST_ROWS))
        in_orc = self.orc and random.random() < 0.5
        paths = append_orc_data(self.table, rows) if in_orc else append_rows(self.table, rows)
        self._learn(rows, paths)
        self._tell(f"append {rows.num_rows} rows as {len(paths)} files{' of ORC' * in_orc}")

    def delete_positions(self, random: Random) -> None:
        """Some live rows, and now and then one that is gone already."""
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
        if self.table.spec().fields and here and random.random() < 0.7:
            partition = random.choice(here).file.partition
        keys = self._random_keys(random, chosen)
        names = [one.name for one in chosen]
        written = "orc" if self.orc and random.random() < 0.5 else "parquet"
        append_equality_deletes(self.table, names, keys, file_format=written, partition=partition)
        self._forget(chosen, keys, partition)
        self._tell(f"delete {names} equal to {keys} in partition {partition}")

    def upsert(self, random: Random) -> None:
        """In one snapshot new rows, deletes of older rows that equal them, and of some of them.

        So do streams: what a delete by equality says is of what was there before it, and a delete
        by position also of what came with it.
        """
        chosen = self._chosen(random)
        if not chosen:
            return
        rows = self._new_rows(random, random.randint(1, MOST_ROWS))
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
        self._forget(chosen, keys, None)
        self._learn(rows, [file.file_path for file in files])
        self.rows = [
            row for row in self.rows if row.position not in places.get(row.file.file_path, ())
        ]
        self._tell(f"upsert {rows.num_rows} rows by {names} without {places}")

    def _chosen(self, random: Random) -> list[NestedField]:
        """Columns to delete by; none where that cannot be."""
        fields = self._plain_fields() if self.table.metadata.format_version > 1 else []
        return random.sample(fields, min(len(fields), random.randint(1, 2)))

    def _random_keys(self, random: Random, chosen: list[NestedField]) -> list[tuple[Any, ...]]:
        keys = [
            tuple(self._random_value(random, one.field_type) for one in chosen) for _ in range(3)
        ]
        if self.rows and random.random() < 0.5:
            values = random.choice(self.rows).values
            keys.append(tuple(_value(values, one) for one in chosen))
        return keys

    def _forget(
        self, chosen: list[NestedField], keys: list[tuple[Any, ...]], partition: Record | None
    ) -> None:
        """Take the rows with these keys out of the model, all or those of a partition."""
        wanted = {tuple(map(comparable, key)) for key in keys}
        scope = (self.table.spec().spec_id, partition)
        self.rows = [
            row
            for row in self.rows
            if tuple(comparable(_value(row.values, one)) for one in chosen) not in wanted
            or (partition is not None and row.partition != scope)
        ]

    def overwrite(self, random: Random) -> None:
        files = data_files(self.table)
        if not files:
            return
        replaced = random.choice(files).file_path
        rows = self._new_rows(random, random.randint(0, MOST_ROWS))
        paths = overwrite_rows(self.table, rows, replaced={replaced})
        self.rows = [row for row in self.rows if row.file.file_path != replaced]
        self._learn(rows, paths)
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
            if one.field_id != 1 and one.field_id not in used
        ]
        if names:
            name = random.choice(names)
            self._change(lambda schema: schema.delete_column(name))

    def promote(self, random: Random) -> None:
        wider = {IntegerType: LongType(), FloatType: DoubleType()}
        fields = [one for one in self.table.schema().fields if type(one.field_type) in wider]
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
        fields = [one for one in self._plain_fields() if one.field_id not in used]
        if not fields:
            return
        one = random.choice(fields)
        transform = random.choice([IdentityTransform(), BucketTransform(3), TruncateTransform(1)])
        with self.table.update_spec() as changing:
            self._next_name += 1
            changing.add_field(one.name, transform, f"part{self._next_name}")
        self._tell(f"partition by {transform} of {one.name}")

    def _new_rows(self, random: Random, count: int) -> pa.Table:
        schema = self.table.schema()
        columns = {}
        for one in schema.fields:
            if one.field_id == 1:
                columns[one.name] = range(self._next_key, self._next_key + count)
            else:
                columns[one.name] = [
                    self._random_value(random, one.field_type) for _ in range(count)
                ]
        self._next_key += count
        kinds = schema.as_arrow()
        return pa.table([pa.array(columns[kind.name], kind.type) for kind in kinds], schema=kinds)

    def _random_value(self, random: Random, kind: IcebergType) -> Any:
        if self.nulls and random.random() < 0.2:
            return None
        if isinstance(kind, StructType):
            return {one.name: self._random_value(random, one.field_type) for one in kind.fields}
        if isinstance(kind, IntegerType | LongType):
            return random.randint(-2, 5)
        if isinstance(kind, StringType):
            return random.choice(["", "a", "b", "ab", "ä"])
        return random.choice([0.5, 1.5, -2.0, 3.25])

    def _learn(self, rows: pa.Table, paths: list[str]) -> None:
        """Note the new rows, each where it came to lie."""
        ids = [one.field_id for one in self.table.schema().fields]
        by_key = {row["key"]: list(row.values()) for row in rows.to_pylist()}
        files = {one.file_path: one for one in data_files(self.table)}
        for path in paths:
            for position, key in enumerate(_keys_in(path)):
                values = dict(zip(ids, by_key[key], strict=True))
                self.rows.append(Row(values, files[path], position))

    def _change(self, change: Any) -> None:
        with self.table.update_schema() as schema:
            change(schema)
        fields = self.table.schema().fields
        self._tell(
            "columns " + ", ".join(f"{one.field_id} {one.name} {one.field_type}" for one in fields)
        )

    def _plain_fields(self) -> list[NestedField]:
        """What deletes and partitions are made of."""
        plain = (IntegerType, LongType, StringType)
        fields = self.table.schema().fields
        return [one for one in fields if isinstance(one.field_type, plain) and one.field_id != 1]

    def _changeable(self) -> list[str]:
        return [one.name for one in self.table.schema().fields if one.field_id != 1]

    def _fresh_name(self) -> str:
        # Names come back: what a dropped column was called may be what a new one is called.
        self._next_name += 1
        taken = {one.name for one in self.table.schema().fields}
        names = (name for name in ("number", "text", "real", "pair") if name not in taken)
        return next(names, f"n{self._next_name}")

    def _tell(self, what: str) -> None:
        self.told.append(what)


def _keys_in(path: str) -> list[int]:
    place = path.removeprefix("file://")
    if place.endswith(".orc"):
        return orc.ORCFile(place).read(columns=["key"]).column("key").to_pylist()
    return pq.ParquetFile(place).read(columns=["key"]).column("key").to_pylist()


def _value(values: dict[int, Any], one: NestedField) -> Any:
    return values.get(one.field_id, one.initial_default)
