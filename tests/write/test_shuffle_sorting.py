"""Rows sorted by random keys: runs, ranges of keys, and any part of the order."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from headrace.write._rows import PartSizes, even_tasks
from headrace.write._shuffle import SortedRows, ranges_of_keys, shuffle_keys, write_run


@pytest.mark.parametrize(
    ("size", "run", "memory", "ranges"),
    [
        (1 << 28, 1 << 28, 1 << 28, 3),
        (1 << 34, 1 << 28, 1 << 28, 129),
        (1 << 50, 1 << 28, 1 << 20, 4096),
        (1 << 50, 1 << 18, 1 << 20, 64),
        (10, 10, 1 << 28, 1),
        (0, 10, 1 << 28, 1),
    ],
)
def test_ranges_are_not_too_large_and_not_too_small(
    size: int, run: int, memory: int, ranges: int
) -> None:
    assert ranges_of_keys(size, run, memory) == ranges


def runs(tmp_path: Path, sizes: list[int], ranges: int, table: pa.Table) -> list[Path]:
    """Write runs of a table's rows, sorted by keys of seed 1."""
    paths, first = [], 0
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}.arrow"
        tables = [
            table.slice(start, min(7, first + size - start))
            for start in range(first, first + size, 7)
        ]
        write_run(path, tables, seed=1, first_row=first, ranges=ranges)
        assert tables == []
        paths.append(path)
        first += size
    return paths


def sorted_rows(paths: list[Path], schema: pa.Schema, memory_bytes: int, **how: int) -> SortedRows:
    sizes = {"part_rows": 100, "group_rows": 30} | how
    count = sum(ipc.open_file(path).read_all().num_rows for path in paths)
    tasks = even_tasks(count, sizes["part_rows"], count)
    return SortedRows(paths, schema, tasks, sizes["group_rows"], memory_bytes)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.sampled_from([1, 3, 16, 64]),
    st.integers(40, 200),
    st.sampled_from([500, 2_000, 1 << 30]),
)
def test_any_part_is_read_without_those_before_it(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    ranges: int,
    part_rows: int,
    memory_bytes: int,
) -> None:
    count = sum(sizes)
    table = pa.table({"row": range(count)})
    paths = runs(tmp_path_factory.mktemp("runs"), sizes, ranges, table)
    expected = np.argsort(shuffle_keys(1, 0, count)).tolist()
    rows = sorted_rows(paths, table.schema, memory_bytes, part_rows=part_rows)
    assert sum(task.rows or 0 for task in rows.tasks) == count
    for task in reversed(rows.tasks):
        fresh = pickle.loads(pickle.dumps(rows))
        tables = list(fresh.read(task))
        found = [row for one in tables for row in one["row"].to_pylist()]
        assert found == expected[task.first : task.first + task.rows]
        assert all(len(one) == 30 for one in tables[:-1])
    in_turn = [one for task in rows.tasks for one in rows.read(task)]
    assert pa.concat_tables(in_turn)["row"].to_pylist() == expected


def test_runs_with_different_dictionaries(tmp_path: Path) -> None:
    """Check ranges that hold no row of a run with other values, too."""
    paths = [tmp_path / "0.arrow", tmp_path / "1.arrow"]
    many = pa.table({"c": pa.array(["a", "b"] * 2_000).dictionary_encode()})
    few = pa.table({"c": pa.array(["z", "b"]).dictionary_encode()})
    write_run(paths[0], [many], seed=1, first_row=0, ranges=16)
    write_run(paths[1], [few], seed=1, first_row=4_000, ranges=16)
    rows = sorted_rows(paths, many.schema, 4_000, part_rows=5_000, group_rows=100)
    found = []
    for table in rows.read(rows.tasks[0]):
        assert table["c"].num_chunks == 1
        found.append(table["c"].chunk(0))
    values = [value for column in found for value in column.to_pylist()]
    assert sorted(values) == ["a"] * 2_000 + ["b"] * 2_001 + ["z"]


@pytest.mark.parametrize(
    ("rows", "size_bytes", "sizes", "part_rows"),
    [
        (1_000, 8_000, PartSizes(None, 4_000, 100), 500),
        (1_050, 8_400, PartSizes(None, 4_900, 100), 600),
        (1_000, 8_000, PartSizes(None, 1, 100), 100),
        (1_000, 8_000, PartSizes(350, None, 100), 350),
    ],
)
def test_parts_of_a_copy(rows: int, size_bytes: int, sizes: PartSizes, part_rows: int) -> None:
    assert sizes.rows_of_a_part(rows, size_bytes) == part_rows
