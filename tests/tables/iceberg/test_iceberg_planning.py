"""What is planned from manifests alone: files, counts, partitions; and what footers are for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from numbered_tables import all_ids, ids_in, loader_of, make_table, numbers
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThan, LessThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog
from writers.committing import commit_files, data_files, describe_file
from writers.data_files import append_orc_data, append_rows, parquet_files
from writers.delete_files import append_position_deletes
from writers.second_readers import rows_by_pyiceberg

from penstock import (
    DataFileInfo,
    FileSplit,
    IcebergDataFileInfo,
    IcebergDataset,
    OptionError,
    RowRange,
    Split,
)

ProxyTo = Callable[..., FaultProxy]


# --- footers


@pytest.mark.parametrize(
    ("groups", "options", "footers"),
    [
        (1, {}, 0),
        (1, {"filters": [("x", ">", 10.0)]}, 0),
        (1, {"split_rows": 15}, 0),
        (4, {}, 0),
        (4, {"columns": ["id"]}, 0),
        (4, {"filters": [("x", ">", 10.0)]}, 1),
        (4, {"split_rows": 15}, 1),
        (4, {"split_rows": 40}, 0),
        (4, {"shuffle": True, "split_rows": 15, "filters": [("x", ">", 10.0)]}, 1),
    ],
    ids=str,
)
def test_footers_are_read_only_where_the_manifest_does_not_suffice(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    proxy_to: ProxyTo,
    groups: int,
    options: dict[str, Any],
    footers: int,
) -> None:
    table = make_table(s3_catalog, group_rows=40 // groups)
    names = {file.file_path.rsplit("/", 1)[1] for file in data_files(table)}
    proxy = proxy_to(s3_server.url)
    config = {**s3_catalog.properties_for_users, "s3.endpoint": proxy.url}
    loader, _ = loader_of("tests.db.t", config, **options)
    asked = [one for one in proxy.log if "/data/" in one.path]
    assert all(one.range is not None and one.method == "GET" for one in asked)
    times = Counter(one.path.rsplit("/", 1)[1] for one in asked)
    assert times == dict.fromkeys(names, 1) if footers else not times
    expected = [one for one in range(120) if "filters" not in options or 0.5 * one > 10]
    assert sorted(ids_in(loader)) == expected


def test_files_that_filters_rule_out_are_never_asked_for(
    s3_catalog: WritingCatalog, s3_server: S3Server, proxy_to: ProxyTo
) -> None:
    table = make_table(s3_catalog, group_rows=10)
    wanted = data_files(table)[2].file_path.rsplit("/", 1)[1]
    proxy = proxy_to(s3_server.url)
    config = {**s3_catalog.properties_for_users, "s3.endpoint": proxy.url}
    assert all_ids("tests.db.t", config, filters=pc.field("id") >= 85) == list(range(85, 120))
    asked = {one.path.rsplit("/", 1)[1] for one in proxy.log if "/data/" in one.path}
    assert asked == {wanted}


def test_files_of_which_the_manifest_says_little(catalog: WritingCatalog) -> None:
    """Without split offsets nobody knows how many row groups there are."""
    table = make_table(catalog, files=0, group_rows=10)
    (file,) = parquet_files(table, numbers(0, 40))
    described = describe_file(
        path=file.file_path, file_format="parquet", rows=40, size=file.file_size_in_bytes
    )
    commit_files(table, added=[described])
    for options in ({}, {"split_rows": 10}, {"filters": [("id", "<", 25)]}):
        expected = list(range(25 if "filters" in options else 40))
        assert all_ids("db.t", catalog, **options) == expected


# --- what is told


def told(caplog: pytest.LogCaptureFixture, *args: Any, **options: Any) -> tuple[str, Any]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="penstock"):
        _, dataset = loader_of(*args, **options)
    ours = [one for one in caplog.records if one.name.startswith("penstock.tables")]
    assert {one.levelno for one in ours} == {logging.INFO}
    return "\n".join(one.getMessage() for one in ours), dataset


def test_counts_of_files_and_what_is_for_rows_only(
    catalog: WritingCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(catalog)
    snapshot = table.metadata.current_snapshot_id
    text, _ = told(caplog, "tests.db.t", catalog)
    assert f"tests.db.t, snapshot {snapshot}: 3 of 3 data files" in text

    even = pc.equal(pc.bit_wise_and(pc.field("id"), 1), 0)
    text, dataset = told(caplog, "tests.db.t", catalog, filters=(pc.field("id") < 50) & even)
    assert "2 of 3 data files" in text
    assert "GreaterThanOrEqual" not in text
    assert "LessThan" in text
    assert "applied to rows only: " in text
    assert "bit_wise_and" in text
    assert len(dataset.files) == 2

    text, _ = told(caplog, "tests.db.t", catalog, filters=[("id", "<", 50)])
    assert "applied to rows only" not in text

    text, _ = told(caplog, "tests.db.t", catalog, scan_filter=LessThan("id", 30))
    assert "1 of 3 data files" in text


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
        ("name", TruncateTransform(3), pc.starts_with(pc.field("name"), "004-"), 1),
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


# --- scan_filter


def test_a_scan_filter_prunes_files_only_and_in_the_place_of_the_other(
    catalog: WritingCatalog,
) -> None:
    make_table(catalog)
    pruned = loader_of("db.t", catalog, scan_filter=And(GreaterThan("id", 45), LessThan("id", 50)))
    assert sorted(ids_in(pruned[0])) == list(range(40, 80))
    assert pruned[1].num_rows == 40
    loader, dataset = loader_of(
        "db.t", catalog, scan_filter=GreaterThan("id", 45), filters=pc.field("id") < 50
    )
    assert len(dataset.files) == 2
    assert sorted(ids_in(loader)) == list(range(40, 50))
    _, unpruned = loader_of("db.t", catalog, scan_filter=AlwaysTrue(), filters=pc.field("id") < 50)
    assert len(unpruned.files) == 3


def test_states_of_another_scan_filter_are_refused(catalog: WritingCatalog) -> None:
    make_table(catalog)
    loader, _ = loader_of("db.t", catalog, scan_filter=GreaterThan("id", 45))
    other, _ = loader_of("db.t", catalog, scan_filter=GreaterThan("id", 85))
    with pytest.raises(ValueError, match="differ"):
        other.load_state_dict(loader.state_dict())


# --- little or nothing


def nothing_in(name: str, catalog: WritingCatalog, **options: Any) -> IcebergDataset:
    loader, dataset = loader_of(name, catalog, **options)
    assert list(loader) == []
    assert loader.state_dict()["epoch"] == 1
    assert list(loader) == []
    return dataset


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_left(catalog: WritingCatalog, num_workers: int) -> None:
    table = make_table(catalog, files=0)
    options = {"num_workers": num_workers}
    assert nothing_in("db.t", catalog, **options).num_rows == 0
    assert nothing_in("db.t", catalog, **options, filters=[("id", "<", 0)]).num_rows in (0, None)
    append_rows(table, numbers(0, 40))
    pruned = nothing_in("db.t", catalog, **options, filters=[("id", "<", 0)])
    assert (len(pruned.files), pruned.schema.names) == (0, ["id", "x"])
    nothing_in("db.t", catalog, **options, scan_filter=EqualTo("id", 77), columns=["x"])
    nothing_in("db.t", catalog, **options, filters=[("id", "==", 7), ("x", "==", 7.0)])
    append_position_deletes(table, {data_files(table)[0].file_path: range(40)})
    nothing_in("db.t", catalog, **options)
    commit_files(table, removed=lambda file: True)
    emptied = nothing_in("db.t", catalog, **options)
    assert (emptied.num_rows, len(emptied.files)) == (0, 0)
    assert emptied.snapshot_id is not None


def test_files_without_rows(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=1)
    for append in (append_orc_data, append_rows):
        append(table, numbers(500, 3))
    orc_path = append_orc_data(table, numbers(0, 0))
    (with_rows,) = parquet_files(table, numbers(600, 1))
    path = with_rows.file_path.replace(".parquet", "-empty.parquet")
    empty = schema_to_pyarrow(table.schema()).empty_table()
    pq.write_table(empty, path.removeprefix("file://"))
    size = len(table.io.new_input(path))
    described = describe_file(path=path, file_format="parquet", rows=0, size=size)
    commit_files(table, added=[described])
    assert orc_path
    expected = [*range(40), 500, 500, 501, 501, 502, 502]
    for options in ({}, {"split_rows": 2}, {"shuffle": True, "num_workers": 2}, {"lanes": 9}):
        _, dataset = loader_of("db.t", catalog, **options)
        assert dataset.num_rows == 46
        assert all_ids("db.t", catalog, **options) == expected
    assert all_ids("db.t", catalog, filters=[("id", ">", 500)]) == [501, 501, 502, 502]


def test_more_ranks_than_rows(catalog: WritingCatalog) -> None:
    make_table(catalog, files=1, rows=3)
    with pytest.raises(OptionError, match="3 rows cannot be shared by 4 ranks"):
        loader_of("db.t", catalog, rank=0, world_size=4)


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
    assert {len(one) for one in steps} == {2 if even == "drop" else 3}
    seen = list(chain(*chain(*steps)))
    assert len(set(seen)) == (60 if even == "drop" else 80)
