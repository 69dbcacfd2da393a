"""Shuffled copies: every row once, in a pinned order, of every type."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from shuffled_rows import beside, copied, ids_of, write_numbered
from warm_interpreters import run_warm

from headrace import (
    DataFileInfo,
    FileSplit,
    OptionError,
    SchemaError,
    SourceDataset,
    StructuredDataset,
    shuffle_into,
)
from headrace.write._shuffle import shuffle_keys


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_numbered(tmp_path / "source")
    return tmp_path / "source"


def in_order(seed: int, rows: int) -> list[int]:
    """Return the promised order: rows sorted by their keys."""
    return np.argsort(shuffle_keys(seed, 0, rows), kind="stable").tolist()


def test_every_row_once_in_the_promised_order(source: Path, tmp_path: Path) -> None:
    report = shuffle_into(source, tmp_path / "out", seed=5)
    table = copied(tmp_path / "out")
    assert (report.rows, report.resumed) == (3_000, False)
    assert table["id"].to_pylist() == in_order(5, 3_000)
    assert table["text"].to_pylist() == [f"row {i}" for i in table["id"].to_pylist()]
    assert beside(tmp_path / "out") == []


def test_the_order_is_pinned(source: Path, tmp_path: Path) -> None:
    """Pin the order: changing it changes every copy that is made again."""
    shuffle_into(source, tmp_path / "out", seed=42)
    ids = ids_of(tmp_path / "out")
    assert ids[:8] == GOLDEN_IDS
    assert hashlib.sha256(np.array(ids, "<i8").tobytes()).hexdigest()[:16] == GOLDEN_DIGEST
    assert shuffle_keys(42, 0, 3).tolist() == GOLDEN_KEYS


GOLDEN_IDS = [2225, 1758, 1908, 318, 1976, 331, 471, 836]
GOLDEN_DIGEST = "a4ff3e23db8064fe"
GOLDEN_KEYS = [13138034844547723835, 1300617538256654245, 7267606706469440352]


@pytest.mark.parametrize("memory", ["1MiB", "3MiB", "1GiB"])
def test_memory_does_not_change_the_order(tmp_path: Path, memory: str) -> None:
    rows = write_numbered(tmp_path / "source", files=2, rows=60_000, group=7_000)
    shuffle_into(tmp_path / "source", tmp_path / "out", seed=1, memory_bytes=memory)
    assert ids_of(tmp_path / "out") == in_order(1, rows)


def test_how_the_source_is_stored_does_not_change_the_order(source: Path, tmp_path: Path) -> None:
    table = StructuredDataset(source, batch_size=3_000, output_format="arrow")
    whole = next(iter(table))
    pq.write_table(pa.table(whole), tmp_path / "one.parquet")
    shuffle_into(source, tmp_path / "a")
    shuffle_into(tmp_path / "one.parquet", tmp_path / "b")
    assert copied(tmp_path / "a").equals(copied(tmp_path / "b"))


def test_places_are_uniform(tmp_path: Path) -> None:
    """Compare the places of rows, by twentieths of source and copy, with a uniform distribution."""
    rows = write_numbered(tmp_path / "source", files=1, rows=40_000, group=5_000)
    shuffle_into(tmp_path / "source", tmp_path / "out", seed=11, memory_bytes="1MiB")
    ids = np.array(ids_of(tmp_path / "out"))
    counts = np.zeros((20, 20))
    np.add.at(counts, (ids * 20 // rows, np.arange(rows) * 20 // rows), 1)
    expected = rows / 400
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = 19 * 19
    assert abs(chi_square - freedom) < 6 * (2 * freedom) ** 0.5
    assert (np.diff(ids) == 1).sum() < 12  # neighbours that stayed: one is expected


def test_permutations_of_few_rows_are_equally_likely() -> None:
    orders: dict[tuple[int, ...], int] = {}
    for seed in range(6_000):
        order = tuple(in_order(seed, 3))
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 6
    assert all(abs(count - 1_000) < 6 * 1_000**0.5 for count in orders.values())


def test_seeds_and_rows_have_keys_of_their_own() -> None:
    assert in_order(1, 1_000) != in_order(2, 1_000)
    keys = np.concatenate([shuffle_keys(seed, 0, 20_000) for seed in range(-2, 3)])
    assert len(np.unique(keys)) == len(keys)
    pieces = [shuffle_keys(9, first, 7) for first in range(0, 70, 7)]
    assert np.array_equal(np.concatenate(pieces), shuffle_keys(9, 0, 70))


def test_files_and_row_groups(source: Path, tmp_path: Path) -> None:
    report = shuffle_into(source, tmp_path / "out", file_rows=800, row_group_rows=300)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    groups = []
    for path in files:
        file_metadata = pq.ParquetFile(path).metadata
        groups.append(
            [file_metadata.row_group(i).num_rows for i in range(file_metadata.num_row_groups)]
        )
    assert groups == [[300, 300, 200], [300, 300, 200], [300, 300, 200], [300, 300]]
    assert [part["name"] for part in report.parts] == [path.name for path in files]
    assert ids_of(tmp_path / "out") == in_order(0, 3_000)
    marker = json.loads((tmp_path / "out" / "_headrace_copy.json").read_text())
    assert (marker["rows"], marker["seed"], len(marker["files"])) == (3_000, 0, 4)


def test_files_of_so_many_bytes_are_whole_row_groups(source: Path, tmp_path: Path) -> None:
    report = shuffle_into(source, tmp_path / "out", file_bytes="20kB", row_group_rows=100)
    rows = [part["rows"] for part in report.parts]
    assert len(rows) > 3
    assert {count % 100 for count in rows} == {0}
    assert ids_of(tmp_path / "out") == in_order(0, 3_000)


@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (1, 1), (2, 2), (5, 5)])
def test_few_rows(tmp_path: Path, rows: int, parts: int) -> None:
    pq.write_table(pa.table({"id": pa.array(range(rows), pa.int32())}), tmp_path / "a.parquet")
    report = shuffle_into(tmp_path / "a.parquet", tmp_path / "out", file_rows=1)
    assert (report.rows, len(report.parts)) == (rows, parts)
    assert sorted(ids_of(tmp_path / "out")) == list(range(rows))
    assert StructuredDataset(tmp_path / "out").num_rows == rows


def test_a_filter_that_keeps_nothing(source: Path, tmp_path: Path) -> None:
    report = shuffle_into(source, tmp_path / "out", filters=[("id", "<", -1)])
    assert (report.rows, copied(tmp_path / "out").num_rows) == (0, 0)
    assert copied(tmp_path / "out").column_names == ["id", "text", "x"]


def test_filters_and_columns(source: Path, tmp_path: Path) -> None:
    keep = (ds.field("x") > 100) & (ds.field("id") != 2_000)
    kept = ds.dataset(source).to_table(filter=keep)["id"].to_pylist()
    report = shuffle_into(source, tmp_path / "out", filters=keep, columns=["text", "id"])
    table = copied(tmp_path / "out")
    assert table.column_names == ["text", "id"]
    assert report.rows == len(kept) < 3_000
    assert table["id"].to_pylist() == [kept[i] for i in in_order(0, len(kept))]


def test_a_column_that_is_missing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="txt"):
        shuffle_into(source, tmp_path / "out", columns=["txt"])
    assert not (tmp_path / "out").exists()
    assert beside(tmp_path / "out") == []


ALL_TYPES = pa.table(
    {
        "bool": pa.array([True, None, False]),
        "int8": pa.array([1, None, -128], pa.int8()),
        "uint64": pa.array([1, None, 2**64 - 1], pa.uint64()),
        "float16": pa.array(np.array([1.5, 7, -0.0], np.float16), mask=np.array([0, 1, 0], bool)),
        "nan": pa.array([float("nan"), None, 1.0]),
        "null": pa.nulls(3),
        "string": pa.array(["ä\n\U0001f600", None, ""]),
        "large": pa.array(["a", None, "b" * 1_000], pa.large_string()),
        "bytes": pa.array([b"\0\xff", None, b""], pa.binary()),
        "fixed": pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
        "decimal": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal128(5, 2)),
        "date": pa.array([date(1900, 1, 1), None, date(2100, 1, 1)]),
        "time": pa.array(
            [datetime(2020, 1, 1), None, datetime(1960, 1, 1)], pa.timestamp("us", "UTC")
        ),
        "span": pa.array([timedelta(1), None, timedelta(0)], pa.duration("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        "deep": pa.array(
            [[{"k": ["x"]}], None, []], pa.list_(pa.struct({"k": pa.list_(pa.string())}))
        ),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize("target_format", ["parquet", "arrow"])
def test_types_and_metadata_are_kept(tmp_path: Path, target_format: str) -> None:
    given = ALL_TYPES.schema.field("int8").with_metadata({"unit": "mm"})
    schema = ALL_TYPES.schema.set(1, given).with_metadata({"made by": "somebody"})
    table = pa.Table.from_arrays(ALL_TYPES.columns, schema=schema)
    if target_format == "parquet":  # older pyarrows write no nulls in fixed-size lists to it
        vectors = pa.array([[1, 2], [5, 6], [3, 4]], schema.field("vector").type)
        place = schema.get_field_index("vector")
        table = table.set_column(place, schema.field(place), vectors)
    with ipc.new_file(str(tmp_path / "a.arrow"), schema) as writer:
        writer.write_table(table)
    shuffle_into(tmp_path / "a.arrow", tmp_path / "out", target_format=target_format, seed=3)
    expected = table.take(pa.array(in_order(3, 3)))
    got = copied(tmp_path / "out")
    assert got.schema.metadata[b"made by"] == b"somebody"
    assert got.schema.field("int8").metadata[b"unit"] == b"mm"
    for name in table.column_names:
        assert got[name].type == expected[name].type, name
        assert str(got[name].to_pylist()) == str(expected[name].to_pylist()), name


@pytest.mark.parametrize("target_format", ["parquet", "arrow"])
def test_dictionaries_that_differ_from_file_to_file(tmp_path: Path, target_format: str) -> None:
    (tmp_path / "source").mkdir()
    type_ = pa.dictionary(pa.int32(), pa.string())
    for file in range(4):
        values = [f"{file}-{i % 50}" if i % 7 else None for i in range(20_000)]
        column = pa.array(values).dictionary_encode()
        nested = pa.ListArray.from_arrays(np.arange(20_001, dtype=np.int32), column)
        table = pa.table({"id": np.arange(20_000) + file * 20_000, "c": column, "n": nested})
        assert table["c"].type == type_
        with ipc.new_file(str(tmp_path / "source" / f"{file}.arrow"), table.schema) as writer:
            writer.write_table(table)
    shuffle_into(
        tmp_path / "source",
        tmp_path / "out",
        target_format=target_format,
        memory_bytes="1MiB",
        row_group_rows=700,
        file_rows=30_000,
    )
    got = copied(tmp_path / "out")
    assert got["c"].type == type_
    assert got["id"].to_pylist() == in_order(0, 80_000)
    expected_values = [
        f"{i // 20_000}-{i % 20_000 % 50}" if i % 20_000 % 7 else None for i in in_order(0, 80_000)
    ]
    assert got["c"].to_pylist() == expected_values
    assert got["n"].to_pylist() == [[value] for value in expected_values]


def test_six_hundred_columns(tmp_path: Path) -> None:
    wide = pa.table({f"c{i}": np.arange(500, dtype=np.int32) + i for i in range(600)})
    pq.write_table(wide, tmp_path / "a.parquet", row_group_size=50)
    shuffle_into(tmp_path / "a.parquet", tmp_path / "out", memory_bytes="1MiB")
    assert copied(tmp_path / "out").equals(wide.take(pa.array(in_order(0, 500))))


def test_one_row_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    values = [b"x" * 10] * 500 + [b"y" * (5 << 20)] + [b"z" * 10] * 500
    pq.write_table(pa.table({"id": range(1_001), "v": values}), tmp_path / "a.parquet")
    shuffle_into(tmp_path / "a.parquet", tmp_path / "out", memory_bytes="1MiB")
    got = copied(tmp_path / "out")
    assert got["id"].to_pylist() == in_order(0, 1_001)
    assert [len(v) for v in got["v"].to_pylist()] == [len(values[i]) for i in in_order(0, 1_001)]


def test_a_column_that_is_called_key(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [1, 2], "key_": [3, 4]}), tmp_path / "a.parquet")
    shuffle_into(tmp_path / "a.parquet", tmp_path / "out")
    assert sorted(copied(tmp_path / "out").to_pydict()["key"]) == [1, 2]


@pytest.mark.parametrize("format", ["csv", "csv.gz", "jsonl"])
def test_text_whose_rows_are_not_counted(tmp_path: Path, format: str) -> None:
    source = tmp_path / f"rows.{format}"
    if format == "jsonl":
        source.write_text("".join(f'{{"id": {i}, "t": "r{i}"}}\n' for i in range(50_000)))
    else:
        text = "id,t\n" + "".join(f"{i},r{i}\n" for i in range(50_000))
        with pa.output_stream(str(source), compression="detect") as sink:
            sink.write(text.encode())
    shuffle_into(source, tmp_path / "out", memory_bytes="1MiB")
    assert ids_of(tmp_path / "out") == in_order(0, 50_000)


def test_hive_columns(tmp_path: Path) -> None:
    for day in ("a", "b"):
        write_numbered(tmp_path / "source" / f"day={day}", files=1, rows=10)
    shuffle_into(tmp_path / "source", tmp_path / "out", partitioning="hive")
    assert sorted(copied(tmp_path / "out")["day"].to_pylist()) == ["a"] * 10 + ["b"] * 10


def test_a_dataset_is_copied_as_it_is(source: Path, tmp_path: Path) -> None:
    dataset = StructuredDataset(source, columns=["id"], filters=[("id", ">=", 2_950)])
    shuffle_into(dataset, tmp_path / "out")
    assert ids_of(tmp_path / "out") == [2_950 + i for i in in_order(0, 50)]
    assert copied(tmp_path / "out").column_names == ["id"]
    with pytest.raises(OptionError, match="columns applies to paths only"):
        shuffle_into(dataset, tmp_path / "b", columns=["id"])
    with pytest.raises(OptionError, match="not a int"):
        shuffle_into(7, tmp_path / "b")


class Countdown:
    """A user's own source."""

    schema = pa.schema([("id", pa.int64())])
    files: ClassVar = [DataFileInfo(f"part {n}", file_size=80, record_count=10) for n in range(3)]

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        part = int(chunk.file.path.split()[1])
        for start in range(0, 10, 5):
            ids = [30 - 10 * part - i for i in range(start, start + 5)]
            yield pa.table({"id": ids}, schema=schema)


def test_a_source_of_the_users_own(tmp_path: Path) -> None:
    shuffle_into(SourceDataset(Countdown()), tmp_path / "out")
    assert ids_of(tmp_path / "out") == [30 - i for i in in_order(0, 30)]


def test_shuffled_copies_are_read_by_small_chunks_at_no_extra_cost(
    source: Path, tmp_path: Path
) -> None:
    shuffle_into(source, tmp_path / "out", row_group_rows=500)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path / "out", batch_size=500, split_rows=500, shuffle=True
    )
    got = [batch["id"].tolist() for batch in loader]
    assert sorted(i for batch in got for i in batch) == list(range(3_000))


def test_repeating_values_are_written_once(tmp_path: Path) -> None:
    rows = 20_000
    table = pa.table(
        {
            "unique": np.random.default_rng(0).random(rows),
            "few": np.arange(rows) % 5,
            "word": [f"word {i % 9}" for i in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    shuffle_into(tmp_path / "a.parquet", tmp_path / "out")
    group = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet").metadata.row_group(1)
    encoded = {group.column(i).path_in_schema: group.column(i).encodings for i in range(3)}
    dictionary = {name: "RLE_DICTIONARY" in how for name, how in encoded.items()}
    assert dictionary == {"unique": False, "few": True, "word": True}


LIMITED = """
import resource, sys, threading, time
import pyarrow as pa
from headrace import shuffle_into

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

before = peak = resident()
done = threading.Event()
def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, resident())
watcher = threading.Thread(target=watch)
watcher.start()
try:
    shuffle_into(sys.argv[1], sys.argv[2], memory_bytes="32MiB")
finally:
    done.set()
watcher.join()
print(pa.default_memory_pool().max_memory(), peak - before)
"""


def test_memory_stays_within_its_limit(tmp_path: Path) -> None:
    """Shuffle five times as much data as memory, in a process that has used no memory before."""
    rng = np.random.default_rng(0)
    (tmp_path / "source").mkdir()
    for file in range(4):
        ids = np.arange(file * 250_000, (file + 1) * 250_000)
        columns = {f"c{i}": rng.random(250_000) for i in range(18)}
        table = pa.table({"id": ids, **columns, "t": [f"row number {i}" for i in ids]})
        pq.write_table(table, tmp_path / "source" / f"{file}.parquet", row_group_size=10_000)
    result = run_warm("-c", LIMITED, tmp_path / "source", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    allocated, resident = map(int, result.stdout.split())
    assert allocated < 36 << 20
    assert resident < 160 << 20  # of 172 MB; includes code, indices, and memory kept by allocators
    ids = np.array(ids_of(tmp_path / "out"))
    assert np.array_equal(ids, in_order(0, 1_000_000))
