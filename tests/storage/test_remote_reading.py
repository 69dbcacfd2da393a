"""What is asked of a server, seen from its side: how many requests, and for how many bytes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served_folders import WRITERS, Asked, Served, arrow, numbers, parquet, put, rows_of, served
from served_folders import wide as wide_table

from headrace.storage import Requests

FORMATS = tuple(WRITERS)
ROWS, GROUP_ROWS = 40_000, 10_000
SELECTIONS: dict[str, list[str] | None] = {
    "all columns": None,
    "two of many": ["x3", "x12"],
    "strings": ["s0", "s1"],
    "nested": ["many", "point"],
}
LONG_FOOTER_COLUMNS = 700
LINES = 120_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return wide_table(ROWS)


@pytest.fixture(scope="module")
def bucket(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("reading") / "reading"
    for name, write in WRITERS.items():
        put(folder, f"wide/{name}/a.{name}", write(table, GROUP_ROWS))
        for part in range(4):
            put(folder, f"parts/{name}/{part}.{name}", write(numbers(3000, 3000 * part), 1000))
    put(folder, "arrow-lz4/a.arrow", arrow(table, GROUP_ROWS, compression="lz4"))
    long_footer = pa.table({f"c{i}": np.arange(3) for i in range(LONG_FOOTER_COLUMNS)})
    put(folder, "long-footer/a.parquet", parquet(long_footer))
    put(folder, "one-group/a.parquet", parquet(one_group(), 250_000, use_dictionary=False))
    csv = b"id,x,s\n" + b"".join(b"%d,%.15f,name %d\n" % line for line in lines())
    jsonl = b"".join(b'{"id": %d, "x": %.15f, "s": "name %d"}\n' % line for line in lines())
    put(folder, "csv/a.csv", csv)
    put(folder, "csv-gz/a.csv.gz", gzip.compress(csv, 1))
    put(folder, "jsonl/a.jsonl", jsonl)
    put(folder, "jsonl-gz/a.jsonl.gz", gzip.compress(jsonl, 1))
    with served(folder) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def fresh_log(bucket: Served) -> None:
    bucket.taken()


def one_group() -> pa.Table:
    rng = np.random.default_rng(3)
    texts = pa.array([f"{value:x}" for value in rng.integers(1 << 60, size=250_000)])
    return numbers(250_000, columns=18).append_column("text", texts)


def lines() -> list[tuple[int, float, int]]:
    values = np.random.default_rng(1).random(LINES)
    return [(i, value, i % 97) for i, value in enumerate(values)]


def size_of(bucket: Served, name: str) -> int:
    return (bucket.folder / name).stat().st_size


def batches_of(loader: Any) -> dict[str, list[Any]]:
    """All rows, column by column."""
    columns: dict[str, list[Any]] = {}
    for batch in loader:
        for name, values in batch.items():
            columns.setdefault(name, []).extend(values)
    return columns


def tails(bucket: Served, asked: Asked) -> list[str]:
    """Objects whose last bytes were asked for: with these begins every look at a footer."""
    found = []
    for request in asked.reads:
        name = request.path.removeprefix(f"/{bucket.folder.name}/")
        if int(request.range.rpartition("-")[2]) == size_of(bucket, name) - 1:
            found.append(name)
    return sorted(found)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_bytes_of_the_wanted_columns_and_no_others_are_fetched(
    bucket: Served, table: pa.Table, format: str, selection: str
) -> None:
    columns = SELECTIONS[selection]
    wanted = table if columns is None else table.select(columns)
    loader, _ = bucket.loader(f"wide/{format}/", format, columns=columns, output_format="dict")
    found = bucket.taken()
    rows = batches_of(loader)
    asked = bucket.taken()
    assert rows == wanted.to_pydict()
    alone = len(WRITERS[format](wanted, GROUP_ROWS))  # a file that has these columns only
    assert 0.9 * alone <= asked.bytes <= 1.1 * alone
    assert {request.method for request in asked.log} == {"GET"}
    assert loader.stats()["requests"] == len(found.log) + len(asked.log)


@pytest.mark.parametrize("columns", [["x3", "x12"], ["s0"], None])
def test_compressed_arrow_columns(
    bucket: Served, table: pa.Table, columns: list[str] | None
) -> None:
    wanted = table if columns is None else table.select(columns)
    loader, _ = bucket.loader("arrow-lz4/", "arrow", columns=columns, output_format="dict")
    bucket.taken()
    assert batches_of(loader) == wanted.to_pydict()
    assert bucket.taken().bytes <= 1.1 * len(arrow(wanted, GROUP_ROWS, compression="lz4"))


def test_requests_are_those_that_were_planned(bucket: Served) -> None:
    footer = pq.read_metadata(bucket.folder / "wide/parquet/a.parquet")
    names = footer.schema.to_arrow_schema().names
    for options in (
        {"columns": ["x3", "x12"]},
        {"columns": ["x3", "x5", "x6"], "max_gap_bytes": "100KiB"},
        {"columns": ["x3", "x12"], "max_request_bytes": "40000"},
        {"max_request_bytes": "1MiB"},
    ):
        places = [names.index(name) for name in options.get("columns", [])]
        wanted = [
            (column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size)
            for group in range(footer.num_row_groups)
            for place in (places or range(footer.num_columns))
            for column in [footer.row_group(group).column(place)]
        ]
        plan = Requests(
            max_gap_bytes=100 << 10 if "max_gap_bytes" in options else None,
            max_request_bytes={"40000": 40_000, "1MiB": 1 << 20}.get(
                options.get("max_request_bytes", ""), 8 << 20
            ),
        ).plan([(start, start + length) for start, length in wanted])
        loader, _ = bucket.loader("wide/parquet/", output_format="dict", **options)
        bucket.taken()
        batches_of(loader)
        asked = {request.range for request in bucket.taken().log}
        assert asked == {f"bytes={start}-{stop - 1}" for start, stop in plan}


@pytest.mark.parametrize("format", FORMATS)
def test_a_footer_is_one_request_and_comes_once(bucket: Served, format: str) -> None:
    """Not again in the next epoch, nor by a loader that goes on from a state."""
    loader, _ = bucket.loader(f"parts/{format}/", format, shuffle=True, batch_size=500)
    found = bucket.taken()
    assert tails(bucket, found) == [f"parts/{format}/{part}.{format}" for part in range(4)]
    beginnings = 4 if format == "arrow" else 0  # whether it is a file or a stream
    heads_of_batches = 4 * 2 if format == "arrow" else 0
    assert len(found.reads) <= 4 + beginnings + heads_of_batches
    assert sorted(rows_of(loader)) == list(range(12_000))
    assert sorted(rows_of(loader)) == list(range(12_000))
    iterator = iter(loader)
    before = [next(iterator)["id"] for _ in range(5)]
    state = loader.state_dict()
    del iterator
    loader.load_state_dict(state)
    rest = rows_of(loader)
    assert sorted(rest + [int(i) for batch in before for i in batch]) == list(range(12_000))
    asked = bucket.taken()
    assert tails(bucket, asked) == []
    assert not asked.listings
    assert not asked.heads


def test_a_long_footer_is_two_requests(bucket: Served) -> None:
    footer = pq.read_metadata(bucket.folder / "long-footer/a.parquet").serialized_size
    assert footer > 64 << 10
    loader, _ = bucket.loader("long-footer/", columns=["c1"])
    found = bucket.taken()
    assert len(found.reads) == 2
    assert found.bytes <= (64 << 10) + footer + 8
    assert rows_of(loader, "c1") == [0, 1, 2]
    assert rows_of(loader, "c1") == [0, 1, 2]
    assert tails(bucket, bucket.taken()) == []


def test_worker_processes_fetch_no_footer(bucket: Served) -> None:
    loader, _ = bucket.loader("parts/parquet/", num_workers=2, batch_size=500)
    bucket.taken()
    assert sorted(rows_of(loader)) == list(range(12_000))
    asked = bucket.taken()
    assert asked.reads
    assert tails(bucket, asked) == []
    assert {request.method for request in asked.log} == {"GET"}
    assert not asked.listings
    assert asked.bytes <= 1.1 * sum(size_of(bucket, f"parts/parquet/{i}.parquet") for i in range(4))
    assert loader.stats()["fetched_bytes"] >= asked.bytes


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("split_bytes", [None, "1500KB"])
def test_text_is_fetched_once(bucket: Served, format: str, split_bytes: str | None) -> None:
    loader, _ = bucket.loader(f"{format}/", format, split_bytes=split_bytes)
    bucket.taken()
    assert rows_of(loader) == list(range(LINES))
    asked = bucket.taken()
    size = size_of(bucket, f"{format}/a.{format}")
    assert size > 3 << 20
    assert asked.bytes <= 1.1 * size
    assert len(asked.reads) <= 1 + size // 1_500_000


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_compressed_text_is_streamed(bucket: Served, format: str) -> None:
    loader, _ = bucket.loader(f"{format}-gz/", format, max_request_bytes="500KB")
    bucket.taken()
    assert rows_of(loader) == list(range(LINES))
    asked = bucket.taken()
    size = size_of(bucket, f"{format}-gz/a.{format}.gz")
    # CSV is looked at twice: the first MiB of text, and then from its beginning.
    assert asked.bytes <= 1.1 * size + (1 << 20)
    assert len(asked.reads) >= size // 500_000


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ["id", "text"]},
        {"columns": ["text"]},
        {"columns": ["x1", "x3", "x17"]},
        {"split_rows": 50_000},
    ],
    ids=str,
)
def test_a_large_row_group_is_fetched_once(bucket: Served, options: dict[str, Any]) -> None:
    """It is decoded page by page, or whole by several threads, and looked into before that."""
    footer = pq.read_metadata(bucket.folder / "one-group/a.parquet")
    group = footer.row_group(0)
    names = footer.schema.to_arrow_schema().names
    needed = sum(
        group.column(names.index(name)).total_compressed_size
        for name in options.get("columns", names)
    )
    loader, _ = bucket.loader("one-group/", output_format="dict", **options)
    bucket.taken()
    assert sum(len(next(iter(batch.values()))) for batch in loader) == 250_000
    asked = bucket.taken()
    assert needed <= asked.bytes <= 1.1 * needed
    ranges = [request.range for request in asked.reads]
    assert len(ranges) == len(set(ranges))


def test_parts_of_one_row_group_may_share_what_was_decoded(bucket: Served) -> None:
    loader, _ = bucket.loader("one-group/", split_rows=25_000, shuffle=True, columns=["id", "x2"])
    bucket.taken()
    assert sorted(rows_of(loader)) == list(range(250_000))
    asked = bucket.taken()
    group = pq.read_metadata(bucket.folder / "one-group/a.parquet").row_group(0)
    needed = group.column(0).total_compressed_size + group.column(3).total_compressed_size
    assert asked.bytes <= 1.1 * needed


def test_statistics_count_what_the_server_saw(bucket: Served) -> None:
    loader, _ = bucket.loader("parts/orc/", "orc", columns=["id", "x1"])
    rows_of(loader)
    asked = bucket.taken()
    stats = loader.stats()
    assert stats["requests"] == len(asked.log)
    assert stats["fetched_bytes"] == asked.bytes
    assert stats["retries"] == 0


def test_row_groups_that_statistics_rule_out_are_not_fetched(
    bucket: Served, table: pa.Table
) -> None:
    keep = [("id", ">=", 30_000)]
    loader, _ = bucket.loader("wide/parquet/", filters=keep, columns=["id", "x3"])
    bucket.taken()
    assert rows_of(loader) == list(range(30_000, ROWS))
    alone = len(WRITERS["parquet"](table.select(["id", "x3"]).slice(30_000), GROUP_ROWS))
    assert bucket.taken().bytes <= 1.25 * alone
