"""Rows as the source of a copy: planned in parts, and read part by part."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    DataFileInfo,
    FileSplit,
    IcebergDataFileInfo,
    SourceDataset,
)
from headrace.model import FileList
from headrace.sources.files.discovery import discover
from headrace.write._copier import Journal, Runner
from headrace.write._rows import StoredRows, as_rows


def test_another_snapshot_of_the_same_files_is_another_source(tmp_path: Path) -> None:
    """It may have other deletes."""
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    found = discover(tmp_path / "a.parquet")
    facts = []
    for snapshot in (1, 2, 1):
        file = found.files[0]
        listed = IcebergDataFileInfo(file.path, file.file_size, 2, snapshot_id=snapshot)
        facts.append(StoredRows.of(found.reader, FileList([listed]), None).facts)
    assert facts[0] == facts[2] != facts[1]


class Numbers:
    """A source of files that hold consecutive numbers, three to a table."""

    schema = pa.schema([("n", pa.int64())])

    def __init__(self, counts: list[int], sizes: list[int], counted: bool) -> None:
        self.files = [
            DataFileInfo(f"{file}", file_size=size, record_count=count if counted else None)
            for file, (count, size) in enumerate(zip(counts, sizes, strict=True))
        ]
        self.numbers = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        whole = pa.table({"n": self.numbers[int(chunk.file.path)]})
        for start in range(0, whole.num_rows, 3):
            yield whole.slice(start, 3).select(schema.names)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 100)), min_size=1, max_size=8),
    st.booleans(),
    st.integers(1, 30) | st.none(),
    st.floats(1, 300) | st.just(math.inf),
    st.integers(1, 7),
)
def test_parts_follow_each_other_and_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[int, int]],
    counted: bool,
    part_rows: int | None,
    part_bytes: float,
    group_rows: int,
) -> None:
    counts, sizes = map(list, zip(*files, strict=True))
    dataset = SourceDataset(Numbers(counts, sizes, counted))
    with closing(Journal(tmp_path_factory.mktemp("work"), {})) as journal:
        rows = as_rows(dataset).counted(journal, Runner(0))
    tasks = rows.plan(part_rows, part_bytes, group_rows)
    assert [task.part for task in tasks] == [*range(len(tasks))]
    numbers = [
        [n for table in rows.read(task.first, task.rows) for n in table["n"].to_pylist()]
        for task in pickle.loads(pickle.dumps(tasks))
    ]
    assert [len(part) for part in numbers] == [task.rows for task in tasks]
    assert [n for part in numbers for n in part] == [*range(sum(counts))]
    assert all(len(part) <= (part_rows or len(part)) for part in numbers)
