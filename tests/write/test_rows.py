"""Rows as the source of a copy: planned in parts, and read part by part."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warm_interpreters import run_warm

from headrace import (
    DataFileInfo,
    FileSplit,
    IcebergDataFileInfo,
    OptionError,
    SourceDataset,
    shuffle_into,
)
from headrace.model import FileList
from headrace.sources.files.discovery import discover
from headrace.write import CopyReport, copy_rows, write_array_record, write_tar
from headrace.write._copier import Runner
from headrace.write._journal import Journal
from headrace.write._row_sources import StoredRows, as_rows
from headrace.write._rows import even_tasks


def test_another_snapshot_of_the_same_files_is_another_source(tmp_path: Path) -> None:
    """Check that a snapshot is part of the identity, because it may have other deletes."""
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    found = discover(tmp_path / "a.parquet")
    facts = []
    for snapshot in (1, 2, 1):
        file = found.files[0]
        listed = IcebergDataFileInfo(file.path, file.file_size, 2, snapshot_id=snapshot)
        facts.append(StoredRows.of(found.reader, FileList([listed]), None).origin.facts)
    assert facts[0] == facts[2] != facts[1]


@pytest.mark.parametrize("write", [copy_rows, write_array_record])
def test_all_copies_of_rows_take_the_keywords_of_sources(
    tmp_path: Path, write: Callable[..., CopyReport]
) -> None:
    for day in ("a", "b"):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / f"day={day}" / "0.parquet")
    chosen = {"partitioning": "hive", "filters": [("id", ">", 1), ("day", "==", "b")]}
    target = tmp_path / "out.x"
    assert (
        write([tmp_path / "day=a", tmp_path / "day=b"], target, **chosen, columns=["id"]).rows == 2
    )
    with pytest.raises(OptionError, match="filters applies to paths only"):
        write(pa.table({"id": [1]}), tmp_path / "other", filters=[("id", ">", 1)])


class Numbers:
    """A source of files that hold consecutive numbers, three to a table."""

    schema = pa.schema([("n", pa.int64())])

    def __init__(self, counts: list[int], sizes: list[int], counted: bool) -> None:
        self.files = [
            DataFileInfo(f"{file}", file_size=size, record_count=count if counted else None)
            for file, (count, size) in enumerate(zip(counts, sizes, strict=True))
        ]
        self.numbers = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
        self.reads: list[str] = []

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        self.reads.append(chunk.file.path)
        whole = pa.table({"n": self.numbers[int(chunk.file.path)]})
        for start in range(0, whole.num_rows, 3):
            yield whole.slice(start, 3).select(schema.names)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 100)), min_size=1, max_size=8),
    st.booleans(),
    st.integers(1, 30) | st.none(),
)
def test_parts_follow_each_other_and_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[int, int]],
    counted: bool,
    part_rows: int | None,
) -> None:
    counts, sizes = map(list, zip(*files, strict=True))
    dataset = SourceDataset(Numbers(counts, sizes, counted))
    with closing(Journal(tmp_path_factory.mktemp("work"), {})) as journal:
        rows = as_rows(dataset).counted(journal, Runner(0))
    tasks = even_tasks(rows.num_rows, part_rows, rows.size_bytes)
    assert [task.part for task in tasks] == [*range(len(tasks))]
    numbers = [
        [n for table in rows.read(task) for n in table["n"].to_pylist()]
        for task in pickle.loads(pickle.dumps(tasks))
    ]
    assert [len(part) for part in numbers] == [task.rows for task in tasks]
    assert [n for part in numbers for n in part] == [*range(sum(counts))]
    assert all(len(part) <= (part_rows or len(part)) for part in numbers)


@pytest.mark.parametrize("form", ["rows", "bytes", "tar", "record"])
def test_rows_that_no_metadata_count_are_counted_first(tmp_path: Path, form: str) -> None:
    source = Numbers([100, 0, 70, 41], [800, 8, 560, 328], counted=False)
    dataset = SourceDataset(source)
    shares: list[float] = []
    stages: dict[str, list[float]] = {"counting": [], "writing": shares}

    def progress(stage: str, share: float) -> None:
        stages[stage].append(float(share))

    out = tmp_path / "out"
    if form == "tar":
        report = write_tar(dataset, out, shard_samples=50, progress=progress)
        assert (report.rows, len(report.parts)) == (211, 5)
    elif form == "record":
        assert write_array_record(dataset, out, progress=progress).rows == 211
    else:
        limit = {"file_rows": 50} if form == "rows" else {"file_bytes": 420, "row_group_rows": 25}
        copied = copy_rows(dataset, out, progress=progress, **limit)
        assert [part["rows"] for part in copied.parts] == [50, 50, 50, 50, 11]
        assert pq.read_table(out)["n"].to_pylist() == [*range(211)]
    assert source.reads[:4] == ["0", "1", "2", "3"]
    assert stages["counting"]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1
    if form != "record":
        assert any(0.3 < share < 0.7 for share in shares)


def test_rows_of_python_are_a_source_of_all_copies(tmp_path: Path) -> None:
    rows = ({"id": n, "txt": f"row {n}"} for n in range(3_000))
    assert copy_rows(rows, tmp_path / "out", file_rows=1_200, columns=["id"]).rows == 3_000
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == [*range(3_000)]
    assert write_tar([{"__key__": "a", "txt": "x"}], tmp_path / "tars").rows == 1
    with pytest.raises(OptionError, match="source must be a path"):
        shuffle_into([{"id": 1}], tmp_path / "shuffled")
    with pytest.raises(OptionError, match=r"rows \(dicts, bytes"):
        copy_rows([], tmp_path / "nothing")


@pytest.mark.parametrize("form", ["parquet", "arrow", "lance", "tar", "record"])
def test_an_error_of_the_source_is_not_one_of_writing(tmp_path: Path, form: str) -> None:
    def rows() -> Iterator[dict[str, object]]:
        for number in range(3_000):
            if number == 2_000:
                raise FileNotFoundError("no picture")
            yield {"n": number}

    copy: Callable[..., object] = {"tar": write_tar, "record": write_array_record}.get(
        form, partial(copy_rows, target_format=form)
    )
    with pytest.raises(FileNotFoundError, match=r"^no picture$"):
        copy(rows(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] in ([], ["out"] if form == "lance" else [])


def test_a_copy_of_uncounted_rows_begins_again_where_it_stopped(tmp_path: Path) -> None:
    """The chunks before that are not read again."""

    class Stop(Exception):
        pass

    def stop(stage: str, share: float) -> None:
        if stage == "writing" and share > 0.7:
            raise Stop

    source = Numbers([100] * 10, [800] * 10, counted=False)
    with pytest.raises(Stop):
        copy_rows(SourceDataset(source), tmp_path / "out", file_rows=40, progress=stop)
    source.reads.clear()
    assert copy_rows(SourceDataset(source), tmp_path / "out", file_rows=40).resumed
    assert set(source.reads) <= {"5", "6", "7", "8", "9"}
    assert pq.read_table(tmp_path / "out")["n"].to_pylist() == [*range(1_000)]


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0)])
def test_a_copy_of_uncounted_rows_continues_with_other_workers(
    tmp_path: Path, first: int, then: int
) -> None:
    """Several processes count first, and write the same files."""
    lines = "".join(f"{n},{'x' * (n % 50)}\n" for n in range(20_000))
    (tmp_path / "rows.csv").write_text("id,txt\n" + lines)

    def copy(out: str, **options: object) -> object:
        return copy_rows(
            tmp_path / "rows.csv", tmp_path / out, file_bytes="50kB", row_group_rows=100, **options
        )

    class Stop(Exception):
        pass

    def stop(stage: str, share: float) -> None:
        journal = tmp_path / ".out.headrace-work" / "headrace.jsonl"
        if journal.exists() and journal.read_text().count('"writing"') >= 3:
            raise Stop

    copy("whole", workers=0)
    with pytest.raises(Stop):
        copy("out", workers=first, progress=stop)
    copy("out", workers=then)
    files = sorted(path.name for path in (tmp_path / "whole").glob("*.parquet"))
    assert len(files) > 5
    assert files == sorted(path.name for path in (tmp_path / "out").glob("*.parquet"))
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_copy_of_a_csv_that_is_killed_at_any_moment_is_continued(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(500)))
    (tmp_path / "work").mkdir()
    script = Path(__file__).with_name("killed_copies.py")
    done = run_warm(script, tmp_path / "rows.csv", tmp_path / "work", 2, "rows")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == [], done.stderr
    assert found["killed"] >= 10
    assert found["resumed"] >= 3
