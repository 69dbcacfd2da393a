"""Partitions of tables: they prune files, settle filters, and reach strategies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numbered_tables import all_ids, ids_in, loader_of
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)
from writers.catalogs import WritingCatalog
from writers.committing import data_files
from writers.data_files import append_rows
from writers.delete_files import append_position_deletes
from writers.second_readers import rows_by_pyiceberg

from headrace import DataFileInfo, FileSplit, IcebergDataFileInfo, RowRange, Split

# --- partitions


def partitioned(
    catalog: WritingCatalog, column: str, transform: Transform[Any, Any], rows: pa.Table
) -> Table:
    table = catalog.create_table("db.t", rows.schema)
    with table.update_spec() as change:
        change.add_field(column, transform, "part")
    append_rows(table, rows)
    return table


DAYS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "ts": pa.array(
            [datetime(2024, 1, 1) + timedelta(hours=6 * one) for one in range(100)],
            pa.timestamp("us"),
        ),
        "name": [f"{one % 10:03}-{one}" for one in range(100)],
        "kind": pa.array([one % 4 if one % 5 else None for one in range(100)], pa.int32()),
    }
)


@pytest.mark.parametrize(
    ("column", "transform", "keep", "files"),
    [
        ("ts", DayTransform(), pc.field("ts") < datetime(2024, 1, 3, 7), 3),
        ("ts", DayTransform(), pc.field("ts") == datetime(2024, 1, 3, 6), 1),
        ("id", BucketTransform(8), pc.field("id") == 17, 1),
        ("id", BucketTransform(8), pc.field("id").isin([17, 18]), 2),
        ("name", TruncateTransform(3), pc.field("name") >= "008", 2),
        ("kind", IdentityTransform(), pc.field("kind").is_null(), 1),
        ("kind", IdentityTransform(), pc.field("kind") >= 2, 2),
        ("id", TruncateTransform(10), pc.field("id") < 15, 2),
    ],
    ids=str,
)
def test_partitions_prune_files(
    catalog: WritingCatalog,
    column: str,
    transform: Transform[Any, Any],
    keep: Any,
    files: int,
) -> None:
    partitioned(catalog, column, transform, DAYS)
    loader, dataset = loader_of("db.t", catalog, filters=keep, output_format="dict")
    assert len(dataset.files) <= files
    assert len(loader_of("db.t", catalog)[1].files) > files
    expected = DAYS.filter(keep)["id"].to_pylist()
    assert expected
    assert sorted(ids_in(loader)) == expected


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        (pc.field("kind") == 1, 20),
        (pc.field("kind").isin([1, 2]), 40),
        (pc.field("kind").is_null(), 20),
        (~pc.field("kind").is_null(), 80),
        (pc.field("kind") == 99, 0),
        ((pc.field("kind") == 1) | (pc.field("kind") > 2), 40),
    ],
    ids=str,
)
def test_filters_over_partition_columns_leave_an_exact_number_of_rows(
    catalog: WritingCatalog, filters: Any, rows: int
) -> None:
    partitioned(catalog, "kind", IdentityTransform(), DAYS)
    loader, dataset = loader_of("db.t", catalog, filters=filters, output_format="dict")
    assert dataset.num_rows == rows
    assert len(loader) == -(-rows // 10)
    assert sorted(ids_in(loader)) == DAYS.filter(filters)["id"].to_pylist()


def test_a_filter_over_partition_columns_and_deletes_is_not_counted(
    catalog: WritingCatalog,
) -> None:
    table = partitioned(catalog, "kind", IdentityTransform(), DAYS)
    path = next(file.file_path for file in data_files(table) if file.partition[0] == 1)
    append_position_deletes(table, {path: [0]})
    _, of_deletes = loader_of("db.t", catalog, filters=[("kind", "==", 1)])
    _, of_others = loader_of("db.t", catalog, filters=[("kind", "==", 2)])
    assert (of_deletes.num_rows, of_others.num_rows) == (None, 20)
    assert len(all_ids("db.t", catalog, filters=[("kind", "==", 1)], columns=["id"])) == 19


def test_a_table_whose_partitions_changed(catalog: WritingCatalog) -> None:
    table = partitioned(catalog, "kind", IdentityTransform(), DAYS)
    with table.update_spec() as change:
        change.remove_field("part")
        change.add_field("id", TruncateTransform(50), "fifties")
    more = DAYS.set_column(0, "id", pa.array(range(100, 200), pa.int64()))
    append_rows(table, more)
    both = pa.concat_tables([DAYS, more])
    for keep in (pc.field("kind") == 1, pc.field("id") < 120, pc.field("id") >= 150):
        loader, dataset = loader_of("db.t", catalog, filters=keep, output_format="dict")
        assert sorted(ids_in(loader)) == sorted(both.filter(keep)["id"].to_pylist())
    assert {tuple(file.partition) for file in dataset.files} == {("fifties",)}
    _, whole = loader_of("db.t", catalog)
    assert {tuple(file.partition) for file in whole.files} == {("part",), ("fifties",)}


class ByPartition:
    """Files of a partition stay together; remembers what it was given."""

    seen: Sequence[DataFileInfo] = ()

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Split]:
        self.seen = list(files)
        return [
            Split(
                lane,
                [
                    FileSplit(file, RowRange(0, file.record_count))
                    for file in files
                    if (file.partition["part"] or 0) % num_workers == lane
                ],
            )
            for lane in range(num_workers)
        ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_partition_and_snapshot_reach_a_strategy(catalog: WritingCatalog, num_workers: int) -> None:
    table = partitioned(catalog, "kind", IdentityTransform(), DAYS)
    strategy = ByPartition()
    loader, dataset = loader_of(
        "db.t",
        catalog,
        split_strategy=strategy,
        num_workers=num_workers,
        lanes=2,
        output_format="dict",
    )
    batches = list(loader)
    assert sorted(ids_in(batches)) == list(range(100))
    lanes = [{one["kind"] and one["kind"] % 2 for one in _rows(batch)} for batch in batches]
    assert all(kinds <= {0, None} or kinds == {1} for kinds in lanes)
    for files in (strategy.seen, dataset.files):
        assert {type(file) for file in files} == {IcebergDataFileInfo}
        assert {file.partition["part"] for file in files} == {None, 0, 1, 2, 3}
        assert {file.snapshot_id for file in files} == {table.metadata.current_snapshot_id}
        assert [file.path for file in files] == sorted(file.path for file in files)


def _rows(batch: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]


# --- columns


def test_columns_come_in_the_order_in_which_they_are_wanted(catalog: WritingCatalog) -> None:
    partitioned(catalog, "kind", IdentityTransform(), DAYS)
    wanted = ["name", "kind", "id"]
    for options in ({}, {"filters": pc.field("ts") < datetime(2024, 1, 2)}):
        loader, dataset = loader_of(
            "db.t", catalog, columns=wanted, output_format="dict", **options
        )
        assert dataset.schema.names == wanted
        assert list(next(iter(loader))) == wanted


def test_rows_are_those_of_pyiceberg(catalog: WritingCatalog) -> None:
    table = partitioned(catalog, "ts", DayTransform(), DAYS)
    loader, _ = loader_of("db.t", catalog, output_format="arrow", num_workers=2)
    ours = pa.Table.from_batches(list(loader)).sort_by("id")
    assert ours.equals(rows_by_pyiceberg(table).cast(ours.schema).sort_by("id"))


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_ranks_over_partitions_and_filters_that_they_settle(
    catalog: WritingCatalog, even: str
) -> None:
    partitioned(catalog, "kind", IdentityTransform(), DAYS)
    steps = []
    for rank in range(3):
        loader, _ = loader_of(
            "db.t",
            catalog,
            filters=~pc.field("kind").is_null(),
            rank=rank,
            world_size=3,
            even=even,
            output_format="dict",
        )
        steps.append([ids_in([batch]) for batch in loader])
        assert len(steps[-1]) == len(loader)
    assert {len(one) for one in steps} == {3}
    seen = list(chain(*chain(*steps)))
    assert len(set(seen)) == 80
