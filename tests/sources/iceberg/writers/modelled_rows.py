"""A plain model of the rows of a table: what there has to be, whatever files say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType, StructType

from writers.committing import data_files
from writers.second_readers import comparable

KEY_ID = 1
"""field id of the column "key", which tells rows apart and is never touched"""


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
class ModelledTable:
    """A table, and the rows that have to be in it."""

    table: Table
    nulls: bool = True
    rows: list[Row] = field(default_factory=list)
    _next_key: int = 0

    def expected(self) -> Counter[tuple[Any, ...]]:
        fields = self.table.schema().fields
        return Counter(
            tuple(comparable(value_of(row.values, one)) for one in fields) for row in self.rows
        )

    def rows_by_name(self) -> Iterator[dict[str, Any]]:
        """The rows that there have to be, under the names that columns have now."""
        fields = self.table.schema().fields
        for row in self.rows:
            yield {one.name: value_of(row.values, one) for one in fields}

    def any_value(self, random: Random, one: NestedField) -> Any:
        """A value such as the column has; never null."""
        if one.field_id == KEY_ID:
            return random.randint(0, max(self._next_key, 1))
        values = (self.random_value(random, one.field_type) for _ in range(100))
        return next(value for value in values if value is not None)

    def new_rows(self, random: Random, count: int) -> pa.Table:
        schema = self.table.schema()
        columns = {}
        for one in schema.fields:
            if one.field_id == KEY_ID:
                columns[one.name] = range(self._next_key, self._next_key + count)
            else:
                columns[one.name] = [
                    self.random_value(random, one.field_type) for _ in range(count)
                ]
        self._next_key += count
        kinds = schema.as_arrow()
        return pa.table([pa.array(columns[kind.name], kind.type) for kind in kinds], schema=kinds)

    def random_value(self, random: Random, kind: IcebergType) -> Any:
        if self.nulls and random.random() < 0.2:
            return None
        if isinstance(kind, StructType):
            return {one.name: self.random_value(random, one.field_type) for one in kind.fields}
        if isinstance(kind, IntegerType | LongType):
            return random.randint(-2, 5)
        if isinstance(kind, StringType):
            return random.choice(["", "a", "b", "ab", "ä"])
        return random.choice([0.5, 1.5, -2.0, 3.25])

    def learn(self, rows: pa.Table, paths: list[str]) -> None:
        """Note the new rows, each where it came to lie."""
        ids = [one.field_id for one in self.table.schema().fields]
        by_key = {row["key"]: list(row.values()) for row in rows.to_pylist()}
        files = {one.file_path: one for one in data_files(self.table)}
        for path in paths:
            for position, key in enumerate(_keys_in(path)):
                values = dict(zip(ids, by_key[key], strict=True))
                self.rows.append(Row(values, files[path], position))

    def plain_fields(self) -> list[NestedField]:
        """What deletes and partitions are made of."""
        plain = (IntegerType, LongType, StringType)
        fields = self.table.schema().fields
        return [
            one for one in fields if isinstance(one.field_type, plain) and one.field_id != KEY_ID
        ]

    def forget(
        self, chosen: list[NestedField], keys: list[tuple[Any, ...]], partition: Record | None
    ) -> None:
        """Take the rows with these keys out of the model, all or those of a partition."""
        wanted = {tuple(map(comparable, key)) for key in keys}
        scope = (self.table.spec().spec_id, partition)
        self.rows = [
            row
            for row in self.rows
            if tuple(comparable(value_of(row.values, one)) for one in chosen) not in wanted
            or (partition is not None and row.partition != scope)
        ]


def _keys_in(path: str) -> list[int]:
    place = path.removeprefix("file://")
    if place.endswith(".orc"):
        return orc.ORCFile(place).read(columns=["key"]).column("key").to_pylist()
    return pq.ParquetFile(place).read(columns=["key"]).column("key").to_pylist()


def value_of(values: dict[int, Any], one: NestedField) -> Any:
    return values.get(one.field_id, one.initial_default)
