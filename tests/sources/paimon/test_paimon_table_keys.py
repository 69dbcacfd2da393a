"""Tables with a primary key: a key comes out once, with its last value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from paimon_tables import Warehouse, arrow_rows, delete, files, in_order, splits, write
from pypaimon.schema.schema_change import SchemaChange

from headrace import FileSplit, OptionError, ReadError
from headrace.errors import FileChangedError

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string()), ("n", pa.int64())])


def values(ids: Any, text: str, n: int | None = 1) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "v": [text] * len(ids), "n": [n] * len(ids)}, schema=SCHEMA)


@pytest.mark.parametrize("chunk_size", [None, 10])
@pytest.mark.parametrize("bucket", ["1", "4", "-1"])
def test_a_key_comes_out_once_with_its_last_value(
    warehouse: Warehouse, bucket: str, chunk_size: int | None
) -> None:
    table = warehouse.make("keyed", SCHEMA, primary_keys=["id"], bucket=bucket)
    write(table, values(range(100), "first"))
    write(table, values(range(50, 150), "second"))
    write(table, values(range(0, 20), "third"))
    loader, dataset = warehouse.load("keyed", chunk_size=chunk_size, shuffle=True)
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert [row["id"] for row in in_order(rows)] == list(range(150))
    assert [row["v"] for row in in_order(rows)][:21] == ["third"] * 20 + ["first"]
    assert dataset.num_rows is None


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "partial-update"},
        {
            "merge-engine": "aggregation",
            "fields.n.aggregate-function": "sum",
            "fields.v.aggregate-function": "last_value",
        },
        {"sequence.field": "n"},
    ],
)
def test_rows_are_merged_as_the_table_says(warehouse: Warehouse, options: dict[str, str]) -> None:
    table = warehouse.make("merged", SCHEMA, primary_keys=["id"], bucket="2", **options)
    write(table, values(range(30), "first", 5))
    write(table, values(range(10, 40), "second", 3))
    write(table, values(range(20, 25), "third", None))
    rows = in_order(warehouse.read("merged"))
    assert rows == in_order(arrow_rows(table))
    assert len(rows) == 40
    assert in_order(warehouse.read("merged", columns=["n", "id"])) == [
        {"n": row["n"], "id": row["id"]} for row in rows
    ]


def test_compacted_files_are_counted_and_cut(warehouse: Warehouse) -> None:
    table = warehouse.make("compacted", SCHEMA, primary_keys=["id"], bucket="2")
    write(table, values(range(200), "all"), level=5)
    loader, dataset = warehouse.load("compacted", chunk_size=30, shuffle=True)
    assert dataset.num_rows == 200
    assert len(dataset.plan(lanes=1).shard(0, 1).file_splits) > 6
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))


def test_compacted_files_below_new_ones_are_merged(warehouse: Warehouse) -> None:
    table = warehouse.make("mixed", SCHEMA, primary_keys=["id"], bucket="1")
    write(table, values(range(100), "old"), level=5)
    write(table, values(range(50, 60), "new"))
    rows = in_order(warehouse.read("mixed", chunk_size=10))
    assert rows == in_order(arrow_rows(table))
    assert [row["v"] for row in rows] == ["old"] * 50 + ["new"] * 10 + ["old"] * 40


def test_deletion_vectors_stand_for_merging(warehouse: Warehouse) -> None:
    table = warehouse.make(
        "vectors", SCHEMA, primary_keys=["id"], bucket="1", **{"deletion-vectors.enabled": "true"}
    )
    write(table, values(range(100), "old"), level=5)
    write(table, values(range(90, 110), "new"), level=1)
    levels = {file.level: file.file_name for split in splits(table) for file in split.files}
    delete(table, {levels[5]: range(90, 100)})
    loader, dataset = warehouse.load("vectors", chunk_size=30)
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert dataset.num_rows == 110
    assert in_order(rows) == in_order(arrow_rows(table))
    table = warehouse.alter("vectors", SchemaChange.set_option("deletion-vectors.enabled", "false"))
    assert in_order(warehouse.read("vectors")) == in_order(rows)


def test_rows_that_delete_others_do_not_come_out(warehouse: Warehouse) -> None:
    schema = pa.schema([*SCHEMA, ("kind", pa.string())])
    table = warehouse.make(
        "kinds", schema, primary_keys=["id"], bucket="1", **{"rowkind.field": "kind"}
    )
    rows = values(range(10), "v").append_column("kind", pa.array(["+I"] * 8 + ["-D"] * 2))
    write(table, rows)
    assert [row["id"] for row in warehouse.read("kinds")] == list(range(8))
    gone = values([2, 3], "v").append_column("kind", pa.array(["-D"] * 2))
    write(table, gone)
    assert [row["id"] for row in in_order(warehouse.read("kinds"))] == [0, 1, 4, 5, 6, 7]


def test_first_rows_are_those_that_were_compacted(
    warehouse: Warehouse, caplog: pytest.LogCaptureFixture
) -> None:
    table = warehouse.make(
        "first", SCHEMA, primary_keys=["id"], bucket="1", **{"merge-engine": "first-row"}
    )
    write(table, values(range(10), "old"), level=5)
    write(table, values(range(5, 12), "new"))
    assert in_order(warehouse.read("first")) == in_order(arrow_rows(table))
    assert "1 of 2 data files are not read" in caplog.text


@pytest.mark.parametrize(
    "keep",
    [
        ds.field("id") == 7,
        ds.field("id") > 90.5,
        ds.field("id").isin([3, 77]),
        (ds.field("v") == "first") & (ds.field("id") < 60),
        ds.field("v") != "first",
        ds.field("n").is_null(),
    ],
)
def test_filters_see_merged_rows(warehouse: Warehouse, keep: ds.Expression) -> None:
    table = warehouse.make(
        "filtered", SCHEMA, primary_keys=["id"], bucket="3", **{"metadata.stats-mode": "full"}
    )
    write(table, values(range(100), "first"))
    write(table, values(range(40, 120), "second", None))
    whole = pa.Table.from_pylist(warehouse.read("filtered"), schema=SCHEMA)
    expected = whole.filter(keep).to_pylist()
    assert expected
    assert in_order(warehouse.read("filtered", filters=keep)) == in_order(expected)


def test_a_state_of_merged_rows_goes_on_where_it_was(warehouse: Warehouse) -> None:
    table = warehouse.make("resumed", SCHEMA, primary_keys=["id"], bucket="4")
    write(table, values(range(300), "first"))
    write(table, values(range(100, 400), "second"))
    loader, _ = warehouse.load("resumed", batch_size=50, shuffle=True)
    batches = list(loader)
    loader, _ = warehouse.load("resumed", batch_size=50, shuffle=True)
    running = iter(loader)
    first = [next(running) for _ in range(3)]
    state = loader.state_dict()
    again, _ = warehouse.load("resumed", batch_size=50, shuffle=True)
    again.load_state_dict(state)
    assert first + list(again) == batches


def test_workers_merge_too(warehouse: Warehouse) -> None:
    table = warehouse.make("workers", SCHEMA, primary_keys=["id"], bucket="4")
    write(table, values(range(300), "first"))
    write(table, values(range(100, 400), "second"))
    loader, _ = warehouse.load("workers", num_workers=2, multiprocessing_context="spawn")
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert files(table)


def test_deletion_vectors_hold_for_rows_that_are_merged(warehouse: Warehouse) -> None:
    table = warehouse.make(
        "both", SCHEMA, primary_keys=["id"], bucket="1", **{"deletion-vectors.enabled": "true"}
    )
    write(table, values(range(100), "old"), level=5)
    delete(table, {files(table)[0]: range(10)})
    write(table, values(range(50, 60), "new"), level=1)
    warehouse.alter("both", SchemaChange.set_option("deletion-vectors.enabled", "false"))
    rows = in_order(warehouse.read("both"))
    assert [row["id"] for row in rows] == list(range(10, 100))
    assert [row["v"] for row in rows] == ["old"] * 40 + ["new"] * 10 + ["old"] * 40


def test_rows_that_delete_others_in_compacted_files_are_an_error(warehouse: Warehouse) -> None:
    schema = pa.schema([*SCHEMA, ("kind", pa.string())])
    table = warehouse.make(
        "damaged", schema, primary_keys=["id"], bucket="1", **{"rowkind.field": "kind"}
    )
    kinds = pa.array(["+I"] * 8 + ["-D"] * 2)
    write(table, values(range(10), "v").append_column("kind", kinds), level=5)
    with pytest.raises(ReadError, match="rows that delete others"):
        warehouse.read("damaged")


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_share_ranges_of_keys(warehouse: Warehouse, rank: int) -> None:
    table = warehouse.make("shared", SCHEMA, primary_keys=["id"], bucket="4")
    for text in "ab":
        write(table, values(range(200), text))
    shares = [
        [row["id"] for row in warehouse.read("shared", rank=r, world_size=2, even=False)]
        for r in (rank, 1 - rank)
    ]
    assert sorted(shares[0] + shares[1]) == list(range(200))
    assert min(map(len, shares)) > 20


@pytest.mark.parametrize("level", [None, 5])
def test_keyed_rows_are_counted_without_their_columns(
    warehouse: Warehouse, level: int | None
) -> None:
    table = warehouse.make("counted", SCHEMA, primary_keys=["id"], bucket="1")
    write(table, values(range(100), "old"), level=level)
    if level is None:
        write(table, values(range(50, 120), "new"))
    dataset = warehouse.load("counted")[1]
    tables = dataset.epochs.pipeline.reader.counting().read(FileSplit(dataset.files[0]), 1 << 20)
    assert sum(table.num_rows for table in tables) == (120 if level is None else 100)


def test_a_state_of_counted_chunks_takes_a_table_back_that_is_merged_now(
    warehouse: Warehouse,
) -> None:
    options = {"chunk_size": 30, "shuffle": True, "batch_size": 20}
    table = warehouse.make("moved", SCHEMA, primary_keys=["id"], bucket="1")
    write(table, values(range(100), "old"), level=5)
    whole = list(warehouse.load("moved", **options)[0])
    loader, _ = warehouse.load("moved", **options)
    next(iter(loader))
    write(table, values(range(50), "new"))
    again, dataset = warehouse.load("moved", **options)
    assert dataset.num_rows is None
    again.load_state_dict(loader.state_dict())
    assert dataset.num_rows == 100
    assert list(again) == whole[1:]
    assert dataset.refresh() == 2
    assert dataset.num_rows is None


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_merged_files_that_are_gone_are_not_skipped(warehouse: Warehouse, on_error: str) -> None:
    table = warehouse.make("harmed", SCHEMA, primary_keys=["id"], bucket="1")
    for text in "ab":
        write(table, values(range(10), text))
    loader, _ = warehouse.load("harmed", on_error=on_error)
    Path(table.table_path, "bucket-0", files(table)[1]).unlink()
    with pytest.raises(FileChangedError, match="vanished"):
        list(loader)


def test_chunks_are_cut_file_by_file_where_only_some_files_are_merged(warehouse: Warehouse) -> None:
    table = warehouse.make("fresh", SCHEMA, primary_keys=["id"], bucket="4")
    for start in range(0, 2000, 500):
        write(table, values(range(start, start + 500), "old"), level=5)
    options = {"chunk_size": 50, "shuffle": True, "batch_size": 64}
    before = len(warehouse.load("fresh", **options)[1].plan(lanes=1).chunks)
    write(table, values([700], "new"))
    loader, dataset = warehouse.load("fresh", **options)
    merged = [file for file in dataset.files if file.record_count is None]
    assert len(merged) == 1
    assert len(dataset.files) == 16
    assert before - 3 <= len(dataset.plan(lanes=1).chunks) < before
    batches = list(loader)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert [row["id"] for row in rows if row["v"] == "new"] == [700]
    loader, _ = warehouse.load("fresh", **options)
    running = iter(loader)
    first = [next(running) for _ in range(7)]
    again, _ = warehouse.load("fresh", **options)
    again.load_state_dict(loader.state_dict())
    assert first + list(again) == batches


@pytest.mark.parametrize("lanes", [1, 3, 4])
def test_lanes_share_chunks_and_merged_files(warehouse: Warehouse, lanes: int) -> None:
    table = warehouse.make("lanes", SCHEMA, primary_keys=["id"], bucket="1")
    write(table, values(range(300), "old"), level=5)
    write(table, values(range(300, 600), "old"), level=5)
    write(table, values(range(550, 700), "new"))
    rows = warehouse.read("lanes", chunk_size=20, lanes=lanes, shuffle=True)
    assert in_order(rows) == in_order(arrow_rows(table))
    loader, dataset = warehouse.load("lanes", chunk_size=20, lanes=lanes)
    assert len(dataset.plan(lanes=lanes).chunks) == 16
    assert sum(len(batch) for batch in loader) == 700


def test_merged_files_beside_chunks_are_resized(warehouse: Warehouse) -> None:
    table = warehouse.make("resized", SCHEMA, primary_keys=["id"], bucket="2")
    for start in (0, 300):
        write(table, values(range(start, start + 300), "old"), level=5)
    write(table, values(range(550, 650), "new"))
    options = {"chunk_size": 20, "lanes": 4, "shuffle": True, "batch_size": 16}
    loader, _ = warehouse.load("resized", **options)
    running = iter(loader)
    rows = [row for _ in range(9) for row in next(running).to_pylist()]
    for rank in range(2):
        again, _ = warehouse.load("resized", rank=rank, world_size=2, even=False, **options)
        again.load_state_dict(loader.state_dict())
        rows += [row for batch in again for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))


@pytest.mark.parametrize(
    ("engine", "option", "value"),
    [
        ("partial-update", "fields.n.sequence-group", "v"),
        ("aggregation", "fields.n.aggregate-function", "rbm64"),
        ("deduplicate", "ignore-delete", "true"),
        ("deduplicate", "deduplicate.ignore-delete", "true"),
    ],
)
def test_ways_to_merge_that_are_not_supported_are_refused(
    warehouse: Warehouse, engine: str, option: str, value: str
) -> None:
    table = warehouse.make(
        "merged", SCHEMA, primary_keys=["id"], bucket="1", **{"merge-engine": engine}
    )
    write(table, values(range(10), "old"), level=5)
    warehouse.alter("merged", SchemaChange.set_option(option, value))
    assert len(warehouse.read("merged")) == 10  # an engine has merged them
    write(table, values(range(5), "new"))
    with pytest.raises(OptionError, match="pypaimon"):
        warehouse.load("merged", on_error="skip")
