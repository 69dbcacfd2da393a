"""Interrupted shuffles: killed at any moment, without disk space, or with a changed source."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shuffled_rows import beside, copied, ids_of, write_numbered
from warm_interpreters import run_warm

from headrace import FileChangedError, StateMismatchError, WriteError, shuffle_into

SCRIPT = Path(__file__).with_name("killed_shuffles.py")
ROWS = 30_000


class Stop(Exception):
    """Ends a shuffle as an interrupt does."""


def stop_at(stage: str, share: float):
    def progress(now: str, done: float) -> None:
        if now == stage and done >= share:
            raise Stop

    return progress


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_numbered(tmp_path / "source", files=3, rows=ROWS // 3, group=1_000)
    return tmp_path / "source"


def stopped(source: Path, target: Path, stage: str = "sorting", **options: object) -> None:
    how = {"memory_bytes": "1MiB", "file_rows": 7_000} | options
    with pytest.raises(Stop):
        shuffle_into(source, target, progress=stop_at(stage, 0.3), **how)


def go_on(source: Path, target: Path, **options: object):
    return shuffle_into(source, target, **({"memory_bytes": "1MiB", "file_rows": 7_000} | options))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "count", "kind", "there"),
    [
        ("events", 21, "parquet", "new"),
        ("late", 9, "arrow", "old"),
    ],
)
def test_killed_and_run_again(tmp_path: Path, how: str, count: int, kind: str, there: str) -> None:
    source, copies = tmp_path / "source", tmp_path / "copies"
    write_numbered(source, files=2, rows=8_000, group=1_000)
    copies.mkdir()
    done = run_warm(SCRIPT, source, copies, how, count, kind, there)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["different"] == []
    stages = {
        "events": {"beginning", "sorting", "writing", "done"},
        "late": {"writing", "done"},
    }
    assert stages[how] <= set(report["kills"]), report["kills"]
    assert sum(report["kills"].values()) >= count // 2, report["kills"]


@pytest.mark.parametrize("stage", ["sorting", "writing"])
def test_it_goes_on_where_it_was(source: Path, tmp_path: Path, stage: str) -> None:
    go_on(source, tmp_path / "whole")
    stopped(source, tmp_path / "out", stage)
    assert not (tmp_path / "out").exists()
    calls: list[tuple[str, float]] = []
    report = go_on(source, tmp_path / "out", progress=lambda *now: calls.append(now))
    assert report.resumed
    later = [share for now, share in calls if now == stage and share > 0]
    assert min(later) >= 0.2, "finished work was done again"
    assert copied(tmp_path / "out").equals(copied(tmp_path / "whole"))
    for path in (tmp_path / "whole").glob("part-*"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_with_less_memory_than_before(source: Path, tmp_path: Path) -> None:
    go_on(source, tmp_path / "whole")
    stopped(source, tmp_path / "out", memory_bytes="4MiB", stage="writing")
    assert go_on(source, tmp_path / "out", memory_bytes="1MiB").resumed
    assert copied(tmp_path / "out").equals(copied(tmp_path / "whole"))


def test_parts_that_were_lost_are_written_again(source: Path, tmp_path: Path) -> None:
    go_on(source, tmp_path / "whole")
    with pytest.raises(Stop):
        go_on(source, tmp_path / "out", progress=stop_at("writing", 0.8))
    parts = sorted((tmp_path / ".out.headrace-parts").glob("part-*.parquet"))
    assert len(parts) >= 3
    parts[1].unlink()
    go_on(source, tmp_path / "out")
    assert copied(tmp_path / "out").equals(copied(tmp_path / "whole"))


def test_parts_of_work_that_was_given_up_do_not_come_back(source: Path, tmp_path: Path) -> None:
    stopped(source, tmp_path / "out", "writing", file_rows=1_000)
    shutil.rmtree(tmp_path / ".out.headrace-work")
    assert not go_on(source, tmp_path / "out").resumed
    assert len(list((tmp_path / "out").glob("part-*"))) == 5
    assert sorted(ids_of(tmp_path / "out")) == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"columns": ["id"]}, "columns"),
        ({"filters": [("id", ">", 5)]}, "filters"),
        ({"file_rows": 8_000}, "rows"),
        ({"target_format": "arrow"}, "format"),
    ],
)
def test_other_options_are_refused(
    source: Path, tmp_path: Path, options: dict[str, object], named: str
) -> None:
    stopped(source, tmp_path / "out")
    with pytest.raises(StateMismatchError) as refused:
        go_on(source, tmp_path / "out", **options)
    assert re.search(rf"these differ: .*{named}", str(refused.value))
    assert str(tmp_path / ".out.headrace-work") in str(refused.value)
    assert go_on(source, tmp_path / "out").rows == ROWS


def test_a_source_that_changed_between_runs(source: Path, tmp_path: Path) -> None:
    stopped(source, tmp_path / "out")
    pq.write_table(pa.table({"id": [1], "text": ["a"], "x": [1.0]}), source / "001.parquet")
    with pytest.raises(
        StateMismatchError, match=r"source files.*headrace-work|headrace-work.*files"
    ):
        go_on(source, tmp_path / "out")


def test_a_source_that_changes_meanwhile(source: Path, tmp_path: Path) -> None:
    def progress(stage: str, share: float) -> None:
        if share == 0:
            pq.write_table(pa.table({"id": [1], "text": ["a"], "x": [1.0]}), source / "002.parquet")

    with pytest.raises(FileChangedError, match=r"002\.parquet"):
        go_on(source, tmp_path / "out", progress=progress)
    assert not (tmp_path / "out").exists()


def test_a_line_of_the_journal_that_was_cut_short(source: Path, tmp_path: Path) -> None:
    stopped(source, tmp_path / "out", "writing")
    journal = tmp_path / ".out.headrace-work" / "headrace.jsonl"
    lines = journal.read_bytes()
    journal.write_bytes(lines[:-20])
    go_on(source, tmp_path / "out")
    assert sorted(ids_of(tmp_path / "out")) == list(range(ROWS))


def test_one_at_a_time(source: Path, tmp_path: Path) -> None:
    def progress(stage: str, share: float) -> None:
        if stage == "sorting" and share == 0:
            with pytest.raises(WriteError, match="another process is working"):
                go_on(source, tmp_path / "out")

    assert go_on(source, tmp_path / "out", progress=progress).rows == ROWS


SMALL_DISK = """
import resource, signal, sys
from headrace import WriteError, shuffle_into
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
try:
    shuffle_into(sys.argv[1], sys.argv[2], memory_bytes="1MiB", file_rows=7_000)
except WriteError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [40_000, 150_000])
def test_no_room(source: Path, tmp_path: Path, limit: int) -> None:
    done = run_warm("-c", SMALL_DISK, source, tmp_path / "out", limit)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert "free some space and run the same command again" in done.stdout
    assert not (tmp_path / "out").exists()
    assert go_on(source, tmp_path / "out").rows == ROWS
    assert sorted(ids_of(tmp_path / "out")) == list(range(ROWS))
    assert beside(tmp_path / "out") == []
