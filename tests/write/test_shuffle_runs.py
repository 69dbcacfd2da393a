"""The parts of a shuffle: runs, ranges of keys, the journal, and what is read ahead."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import IcebergDataFileInfo, StateMismatchError
from headrace.model import FileList
from headrace.sources.files.discovery import discover
from headrace.write.gather import Place, ShuffledRows
from headrace.write.journal import Journal
from headrace.write.keys import row_keys
from headrace.write.parts import PartSizes
from headrace.write.ranges import LAST_KEY, fitting_ranges, parts_of_a_run
from headrace.write.runs import open_run, write_run
from headrace.write.source import FileRows

POWERS = st.sampled_from([1, 2, 4, 16, 64])
SIZES = st.lists(
    POWERS.flatmap(lambda n: st.lists(st.integers(0, 10_000), min_size=n, max_size=n)), max_size=5
)


@given(SIZES, st.integers(100, 5_000), st.integers(0, LAST_KEY))
def test_ranges_follow_each_other_and_fit(
    sizes: list[list[int]], limit: int, first_key: int
) -> None:
    runs = [np.array(parts, np.int64) for parts in sizes]
    ranges = list(fitting_ranges(runs, limit, first_key))
    assert (ranges[0].first, ranges[-1].last) == (first_key, LAST_KEY)
    assert all(one.last + 1 == other.first for one, other in pairwise(ranges))
    for keys in ranges:
        held = 0.0
        for parts in sizes:
            width = 2**64 / len(parts)
            for place, size in enumerate(parts):
                low, high = max(keys.first, place * width), min(keys.last + 1, (place + 1) * width)
                held += size * max(0.0, high - low) / width
        assert held <= limit * 1.001


def test_ranges_of_nothing() -> None:
    assert [(keys.first, keys.last) for keys in fitting_ranges([], 100)] == [(0, LAST_KEY)]


@pytest.mark.parametrize(
    ("run", "expected", "in_range", "parts"),
    [
        (1 << 28, 1 << 28, 1 << 28, 2),
        (1 << 28, 1 << 34, 1 << 28, 128),
        (1 << 28, 1 << 50, 1 << 20, 4096),
        (1 << 18, 1 << 50, 1 << 20, 4),
        (10, 10, 1 << 28, 1),
    ],
)
def test_parts_are_not_too_large_and_not_too_small(
    run: int, expected: int, in_range: int, parts: int
) -> None:
    assert parts_of_a_run(run, expected, in_range) == parts


@given(
    st.integers(1, 300),
    POWERS,
    st.lists(st.integers(0, LAST_KEY), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_a_run_gives_exactly_the_rows_of_a_range(
    tmp_path_factory: pytest.TempPathFactory, rows: int, parts: int, between: list[int]
) -> None:
    path = tmp_path_factory.mktemp("run") / "a.arrow"
    tables = [pa.table({"row": range(rows)}).slice(start, 7) for start in range(0, rows, 7)]
    write_run(path, tables, seed=5, first_row=1_000, parts=parts)
    assert tables == []
    run, reader = open_run(path)
    assert int(run.rows.sum()) == rows
    found = [table.column("row").to_pylist() for table in run.read(reader, *between)]
    keys = row_keys(5, 1_000, rows)
    inside = [int(i) for i in np.argsort(keys) if between[0] <= int(keys[i]) <= between[1]]
    assert [row for part in found for row in part] == inside


def test_rows_are_taken_from_any_place_on(tmp_path: Path) -> None:
    paths = [tmp_path / "0.arrow", tmp_path / "1.arrow"]
    write_run(paths[0], [pa.table({"row": range(700)})], seed=1, first_row=0, parts=4)
    write_run(paths[1], [pa.table({"row": range(700, 900)})], seed=1, first_row=700, parts=1)
    schema = pa.schema([("row", pa.int64())])
    expected = np.argsort(row_keys(1, 0, 900)).tolist()
    places = [(0, Place())]
    with ShuffledRows(paths, schema, range_bytes=2_000, start=Place()) as rows:
        while table := rows.take(130):
            start, _ = places[-1]
            assert table["row"].to_pylist() == expected[start : start + 130]
            places.append((start + table.num_rows, rows.place))
    assert places[-1][0] == 900
    for start, place in places:
        for range_bytes in (500, 2_000, 1 << 30):
            with ShuffledRows(paths, schema, range_bytes=range_bytes, start=place) as rows:
                assert rows.take(1_000)["row"].to_pylist() == expected[start:]


def test_all_ranges_have_the_same_dictionary(tmp_path: Path) -> None:
    """Also those that hold no row of a run whose values are others."""
    paths = [tmp_path / "0.arrow", tmp_path / "1.arrow"]
    many = pa.table({"c": pa.array(["a", "b"] * 2_000).dictionary_encode()})
    few = pa.table({"c": pa.array(["z", "b"]).dictionary_encode()})
    write_run(paths[0], [many], seed=1, first_row=0, parts=16)
    write_run(paths[1], [few], seed=1, first_row=4_000, parts=16)
    with ShuffledRows(paths, many.schema, range_bytes=4_000, start=Place()) as rows:
        found = []
        while table := rows.take(100):
            assert table["c"].num_chunks == 1
            found.append(table["c"].chunk(0))
    assert {tuple(column.dictionary.to_pylist()) for column in found} == {("a", "b", "z")}
    values = [value for column in found for value in column.to_pylist()]
    assert sorted(values) == ["a"] * 2_000 + ["b"] * 2_001 + ["z"]


def test_another_snapshot_of_the_same_files_is_another_source(tmp_path: Path) -> None:
    """It may have other deletes."""
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    found = discover(tmp_path / "a.parquet")
    facts = []
    for snapshot in (1, 2, 1):
        file = found.files[0]
        listed = IcebergDataFileInfo(file.path, file.file_size, 2, snapshot_id=snapshot)
        facts.append(FileRows.of(found.reader, FileList([listed])).facts)
    assert facts[0] == facts[2] != facts[1]


def test_a_journal_keeps_whole_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"what": "ä"})
    journal.note({"run": 1})
    journal.note({"run": 2})
    journal.close()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    for seen in ([1], [1, 3]):
        journal = Journal(tmp_path, {"what": "ä"})
        assert journal.resumed
        assert [entry["run"] for entry in journal.all("run")] == seen
        if seen == [1]:
            journal.note({"run": 3})
        journal.close()
    with pytest.raises(StateMismatchError, match="not the same: what"):
        Journal(tmp_path, {"what": "b"})
    Journal(tmp_path, {"what": "ä"}).close()  # what was refused does not hold the lock


@pytest.mark.parametrize(
    ("rows", "size_bytes", "sizes", "parts"),
    [
        (1_000, 8_000, PartSizes(100, None, 4_000), [500, 500]),
        (1_050, 8_400, PartSizes(100, None, 4_900), [600, 450]),
        (1_000, 8_000, PartSizes(100, None, 1), [100] * 10),
        (1_000, 8_000, PartSizes(100, 350, 1), [350, 350, 300]),
        (0, 0, PartSizes(100, None, 4_000), [0]),
    ],
)
def test_parts_of_a_copy(rows: int, size_bytes: int, sizes: PartSizes, parts: list[int]) -> None:
    layout = sizes.layout(rows, size_bytes)
    assert [layout.rows_in(part) for part in range(layout.parts)] == parts
