"""The copier: tasks in processes, their errors, kills, and reports of the speed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warm_interpreters import WarmProcess, write_executable

from headrace import FileChangedError, MissingExtraError, OptionError, shuffle_into
from headrace.write import copy_rows, write_tar
from headrace.write._copier import Runner
from headrace.write._journal import Journal
from headrace.write._row_sources import as_rows
from headrace.write._rows import PartSizes, row_parts

PATIENCE_S = 60.0


def wait_for(condition: Callable[[], Any], description: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {description}")


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files but the marker, which names the run."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if not path.name.startswith("_")
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(30):
        (tmp_path / "in" / f"{number:02d}.bin").write_bytes(bytes([number]) * 5_000)
    return tmp_path / "in"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    for file in range(3):
        ids = range(file * 1_000, (file + 1) * 1_000)
        table = pa.table({"id": ids, "text": [f"row {i}" for i in ids]})
        pq.write_table(table, tmp_path / "rows" / f"{file}.parquet", row_group_size=150)
    return tmp_path / "rows"


@pytest.mark.usefixtures("warm_workers")
def test_processes_write_the_same_bytes(rows: Path, tmp_path: Path) -> None:
    """Check uncounted rows, and files cut by bytes, too: no part waits for another one."""
    lines = "".join(f"{n},{'x' * (n % 50)}\n" for n in range(20_000))
    (tmp_path / "rows.csv").write_text("id,txt\n" + lines)
    writes: dict[str, Callable[..., Any]] = {
        "tar": lambda out, **how: write_tar(tmp_path / "rows.csv", out, shard_bytes="3MB", **how),
        "shuffle": lambda out, **how: shuffle_into(
            rows, out, file_rows=700, memory_bytes="1MiB", **how
        ),
    }
    for name, write in writes.items():
        shares: list[float] = []

        def progress(stage: str, share: float, shares: list[float] = shares) -> None:
            shares += [share] if stage == "writing" else []

        write(tmp_path / f"{name}-here", workers=0)
        write(tmp_path / f"{name}-there", workers=2, progress=progress)
        here = contents(tmp_path / f"{name}-here")
        assert len(here) > 3
        assert contents(tmp_path / f"{name}-there") == here
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert all(path.stat().st_size < 3_200_000 for path in (tmp_path / "tar-here").glob("*.tar"))


@pytest.mark.parametrize("limits", [{"rows": 700}, {"size_bytes": 12_000, "group_rows": 50}])
def test_parts_are_cut_at_the_same_places_from_any_source(
    rows: Path, tmp_path: Path, limits: dict[str, int]
) -> None:
    """Check rows that are counted, rows that are not, and tables that can be read only once."""
    table = pq.read_table(rows)
    everything = [("text", "!=", "row 5x")]  # a filter that statistics cannot decide
    sources = {
        "counted": as_rows(str(rows)),
        "uncounted": as_rows(str(rows), filters=everything),
        "once": as_rows(table.to_batches(max_chunksize=77)),
    }
    assert sources["uncounted"].counts is None
    found = {}
    for name, source in sources.items():
        with closing(Journal(tmp_path / name, {})) as journal:
            parts = row_parts(source, PartSizes(**limits), journal, Runner(0))
            found[name] = [
                pa.concat_tables(parts.read(task))["id"].to_pylist() for task in parts.tasks
            ]
    ids = table["id"].to_pylist()
    for cut in found.values():
        assert [one for part in cut for one in part] == ids
        assert len(cut) > 3
    if "rows" in limits:
        assert found["once"] == [ids[start : start + 700] for start in range(0, 3_000, 700)]
        assert found["counted"] == found["uncounted"] == found["once"]
    else:
        for cut in (found["counted"], found["uncounted"]):
            sizes = [table.slice(part[0], len(part)).nbytes for part in cut[:-1]]
            assert all(8_000 < size < 16_000 for size in sizes)
        assert all(len(part) % 50 == 0 for cut in found.values() for part in cut[:-1])


def test_a_copy_that_continues_cuts_parts_as_the_first_run_did(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this even if another version of a library estimates the size of rows differently."""
    copy_rows(rows, tmp_path / "whole", file_bytes="12kB", row_group_rows=50)

    def stop(stage: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_rows(rows, tmp_path / "out", file_bytes="12kB", row_group_rows=50, progress=stop)
    monkeypatch.setattr("headrace.write._row_sources.MEASURED_ROWS", 1)
    assert copy_rows(rows, tmp_path / "out", file_bytes="12kB", row_group_rows=50).resumed
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("warm_workers")
def test_an_error_of_a_worker_arrives(folder: Path, tmp_path: Path) -> None:
    def change(stage: str, share: float) -> None:
        for path in folder.iterdir():
            path.write_bytes(b"shorter")

    with pytest.raises(FileChangedError, match=r"\.bin"):
        write_tar(folder, tmp_path / "out", shard_bytes="40kB", workers=2, progress=change)
    assert not (tmp_path / "out").exists()


def test_speed_and_remaining_time(rows: Path, tmp_path: Path) -> None:
    speeds = []

    def progress(stage: str, share: Any) -> None:
        if 0 < share < 1:
            speeds.append((share.bytes_per_s, share.remaining_s))

    copy_rows(rows, tmp_path / "out", file_rows=500, progress=progress)
    assert speeds
    assert all(speed > 0 and remaining >= 0 for speed, remaining in speeds)


def test_copies_to_one_target_do_not_share_files(rows: Path, tmp_path: Path) -> None:
    """Check that the last copy to finish wins, and that it is complete."""
    out = tmp_path / "out"
    inner = []

    def progress(stage: str, share: float) -> None:
        if share > 0.3 and not inner:
            inner.append(True)
            copy_rows(rows, out, file_rows=700, work_dir=tmp_path / "work", columns=["id"])

    copy_rows(rows, out, file_rows=500, overwrite=True, progress=progress)
    assert pq.read_table(out).equals(pq.read_table(rows))
    assert sorted(os.listdir(tmp_path)) == ["out", "rows"]


def test_a_target_that_is_not_utf8_is_refused(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not UTF-8"):
        copy_rows(rows, os.fsdecode(bytes(tmp_path) + b"/out\xff"))
    assert os.listdir(tmp_path) == ["rows"]


def test_ray_is_asked_for_by_name(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="pip install ray"):
        copy_rows(rows, tmp_path / "out", on="ray")
    with pytest.raises(OptionError, match='on must be "ray"'):
        copy_rows(rows, tmp_path / "out", on="dask")
    assert os.listdir(tmp_path) == ["rows"]


BUSY = """
import os, sys, threading
import pyarrow as pa
from headrace import DataFileInfo, SourceDataset
from headrace.write import copy_rows

class Silent:
    schema = pa.schema([("id", pa.int64())])
    files = [DataFileInfo(f"{n}", file_size=8, record_count=1) for n in range(2)]

    def __init__(self, folder):
        self.folder = folder

    def read(self, chunk, schema, block_bytes):
        open(f"{self.folder}/{os.getpid()}", "w").close()
        threading.Event().wait()

out, pids, sys.executable = sys.argv[1:]
copy_rows(SourceDataset(Silent(pids)), out, file_rows=1, workers=2)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_busy_workers_end_with_the_process_that_started_them(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """Let workers wait in a read that never ends, so that only their watch thread can end them."""
    (tmp_path / "pids").mkdir()
    python = write_executable(tmp_path)
    with WarmProcess("-c", BUSY, tmp_path / "out", tmp_path / "pids", python) as process:
        pids = wait_for(
            lambda: found if len(found := os.listdir(tmp_path / "pids")) == 2 else None, "workers"
        )
        os.kill(process.pid, ending)
        assert process.finish().returncode == -ending
        wait_for(lambda: not any(map(is_alive, pids)), "the end of the workers")
    assert not (tmp_path / "out").exists()


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_workers_of_a_killed_convert_end_and_the_next_one_continues(
    tmp_path: Path, folder: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "headrace", "convert", folder, out, "--to", "tar"]
    command += ["--shard-bytes", "10kB", "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        journal = tmp_path / ".out.headrace-work" / "headrace.jsonl"
        wait_for(lambda: journal.exists() and journal.read_text().count("\n") >= 3, "parts")
        pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        wait_for(lambda: not any(map(is_alive, pids)), "the end of the workers")
    finally:
        process.kill()
        process.communicate()
    if not out.exists():  # a fast machine may have finished
        assert len(pids) == 2
        assert write_tar(folder, out, shard_bytes="10kB").resumed
    write_tar(folder, tmp_path / "whole", shard_bytes="10kB")
    assert contents(out) == contents(tmp_path / "whole")
