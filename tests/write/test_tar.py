"""``write_tar``: folders, rows and tars as tar shards, killed at any moment, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.s3 import S3Server
from tars_written import hidden, samples
from warm_interpreters import run_warm

import headrace
from headrace import (
    FileChangedError,
    OptionError,
    StateMismatchError,
)
from headrace.write import write_array_record, write_tar

SCRIPT = Path(__file__).with_name("killed_copies.py")


class Stop(Exception):
    """Ends a copy as an interrupt does."""


def stopping(at: float) -> Callable[[str, float], None]:
    """Return a progress function that stops the copy when a share of it is done."""

    def progress(stage: str, share: float) -> None:
        if share >= at:
            raise Stop

    return progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    for n in range(40):
        path = root / ("train" if n % 2 else "val.1") / f"{n:03d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{n:03d}.jpg").write_bytes(bytes([n]) * 1000 * (n % 5))
        path.with_name(f"{n:03d}.json").write_text(json.dumps({"n": n}))
    (root / "train" / "README").write_text("no dot")
    (root / "train" / "001.seg.PNG").write_bytes(b"more of a sample")
    (root / ".hidden.jpg").write_bytes(b"")
    return root


def test_a_folder(folder: Path, tmp_path: Path) -> None:
    shares: list[float] = []
    report = write_tar(
        folder, tmp_path / "out", shard_samples=16, progress=lambda _, share: shares.append(share)
    )
    assert (report.rows, report.resumed) == (41, False)
    assert [part["name"] for part in report.parts] == [f"shard_0000{n}.tar" for n in range(3)]
    found = samples(tmp_path / "out")
    assert list(found) == sorted(found)
    assert len(found) == 41
    assert found["train/README"] == {"": b"no dot"}
    assert found["train/001"] == {
        "jpg": bytes([1]) * 1000,
        "json": b'{"n": 1}',
        "seg.PNG": b"more of a sample",
    }
    assert found["val.1/004"]["jpg"] == bytes([4]) * 4000
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert not hidden(tmp_path)
    rows = headrace.open(str(tmp_path / "out")).backend
    assert rows.num_rows == 40  # README belongs to no sample
    assert rows.get_row(0)["__key__"] == "train/001"


def test_large_files_come_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = np.random.default_rng(0).bytes((9 << 20) + 13)
    (tmp_path / "in" / "a.mp4").write_bytes(data)
    write_tar(tmp_path / "in", tmp_path / "out")
    assert samples(tmp_path / "out") == {"a": {"mp4": data}}


def test_files_by_number(folder: Path, tmp_path: Path) -> None:
    write_tar(folder, tmp_path / "out", keys="number")
    assert list(samples(tmp_path / "out"))[:2] == ["000000000", "000000001"]


def test_only_tars_have_paths_to_put_before_keys(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match='keys="prefix" has an effect only if the source is tars'):
        write_tar(folder, tmp_path / "out", keys="prefix")


def test_tars_of_tars(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "README").unlink()  # it belongs to no sample
    write_tar(folder, tmp_path / "one", shard_samples=5)
    (tmp_path / "one" / "shard_00001.idx.arrow").unlink()  # so the tar is scanned
    report = write_tar(tmp_path / "one", tmp_path / "two", shard_samples=12, index="json")
    assert (report.rows, len(report.parts)) == (40, 4)
    assert samples(tmp_path / "two") == samples(tmp_path / "one")
    write_tar(tmp_path / "two", tmp_path / "three", shard_samples=5)
    for path in sorted((tmp_path / "one").glob("*.tar")):
        assert path.read_bytes() == (tmp_path / "three" / path.name).read_bytes()


def test_records_and_back(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "README").unlink()  # it belongs to no sample
    write_tar(folder, tmp_path / "tars")
    records = tmp_path / "a.array_record"
    write_array_record(headrace.open(str(tmp_path / "tars")).backend, records)
    write_tar(headrace.open(str(records)).backend, tmp_path / "again")
    lowered = {
        key: {field.lower() or "__data__": data for field, data in fields.items()}
        for key, fields in samples(tmp_path / "tars").items()
    }
    again = samples(tmp_path / "again")
    assert {k: {f or "__data__": d for f, d in v.items()} for k, v in again.items()} == lowered


@pytest.mark.timeout(300)
def test_a_copy_that_is_killed(tmp_path: Path) -> None:
    """Kill copies of rows, whose tars follow a decision in the journal; the rest is shared code."""
    source = tmp_path / "rows.parquet"
    table = pa.table({"id": range(60), "bin": [bytes([n]) * 999 for n in range(60)]})
    pq.write_table(table, source, row_group_size=25)
    (tmp_path / "work").mkdir()
    done = run_warm(SCRIPT, source, tmp_path / "work", 23, "tar")
    assert done.returncode == 0, done.stderr
    shares = json.loads(done.stdout)
    assert shares["wrong"] == [], done.stderr
    assert shares["killed"] >= 4
    assert shares["resumed"] >= 2


def test_a_copy_that_is_stopped(tmp_path: Path) -> None:
    whole, out, source = tmp_path / "whole", tmp_path / "out", tmp_path / "rows.parquet"
    table = pa.table({"bin": [bytes([n % 250]) * 900 for n in range(400)]})
    pq.write_table(table, source, row_group_size=64)
    write_tar(source, whole, shard_samples=50)
    for share in (0.2, 0.4, 0.6):
        with pytest.raises(Stop):
            write_tar(source, out, shard_samples=50, progress=stopping(share))
        assert not out.exists()
    staged = sorted((tmp_path / ".out.headrace-parts").glob("*.tar"))
    assert len(staged) > 2
    written = {path.name: path.stat().st_mtime_ns for path in staged}
    report = write_tar(source, out, shard_samples=50)
    assert (report.rows, report.resumed) == (400, True)
    for path in whole.glob("shard_*"):
        assert path.read_bytes() == (out / path.name).read_bytes()
    assert {name: (out / name).stat().st_mtime_ns for name in written} == written
    assert not hidden(tmp_path)


def test_another_source_or_other_options(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stop):
        write_tar(folder, out, shard_samples=4, progress=stopping(0.0))
    assert not hidden(tmp_path)  # no tar was complete, so there is nothing to resume
    for n in range(40):
        (folder / f"{n}.txt").write_text("x")
    with pytest.raises(Stop):
        write_tar(folder, out, shard_samples=3, progress=stopping(0.5))
    with pytest.raises(StateMismatchError, match=r"shard samples.*delete that directory"):
        write_tar(folder, out, shard_samples=4)
    (folder / "new.txt").write_text("x")
    with pytest.raises(StateMismatchError, match="source files"):
        write_tar(folder, out, shard_samples=3)
    (folder / "new.txt").unlink()
    assert write_tar(folder, out, shard_samples=3).resumed


def test_parts_that_are_gone_are_written_again(tmp_path: Path) -> None:
    pq.write_table(pa.table({"bin": [b"x" * 900] * 400}), tmp_path / "rows.parquet")
    source, out = tmp_path / "rows.parquet", tmp_path / "out"
    with pytest.raises(Stop):
        write_tar(source, out, shard_samples=50, progress=stopping(0.6))
    (tmp_path / ".out.headrace-parts" / "shard_00001.tar").unlink()
    kept = tmp_path / ".out.headrace-parts" / "shard_00002.tar"
    before = kept.stat().st_mtime_ns
    assert write_tar(source, out, shard_samples=50).resumed
    assert (out / "shard_00002.tar").stat().st_mtime_ns == before
    write_tar(source, tmp_path / "whole", shard_samples=50)
    assert samples(out) == samples(tmp_path / "whole")


def test_a_file_that_changes(folder: Path, tmp_path: Path) -> None:
    def change(stage: str, share: float) -> None:
        (folder / "val.1" / "038.json").write_text("longer than it was before")

    with pytest.raises(FileChangedError, match=r"038\.json"):
        write_tar(folder, tmp_path / "out", progress=change)
    assert not (tmp_path / "out").exists()


def test_into_its_own_source(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is inside the source"):
        write_tar(folder, folder / "tars")
    with pytest.raises(OptionError, match="is inside the target"):
        write_tar(folder, tmp_path, overwrite=True)
    tars = tmp_path / "tars"
    write_tar(folder, tars)
    for target in (tars, tars / "below"):
        with pytest.raises(OptionError, match="is inside the"):
            write_tar(tars, target, overwrite=True)
        with pytest.raises(OptionError, match="is inside the"):
            write_array_record(headrace.open(str(tars)).backend, target / "x.array_record")
    assert sorted(path.name for path in tars.iterdir()) == [
        *("_headrace_copy.json", "shard_00000.idx.arrow", "shard_00000.tar")
    ]


def test_what_is_there_already(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(OptionError, match="is not empty"):
        write_tar(folder, out)
    assert (out / "mine").exists()
    write_tar(folder, out, overwrite=True)
    assert not (out / "mine").exists()
    assert not hidden(tmp_path)


def test_into_a_store(
    folder: Path, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = s3_server.make_bucket(f"tars-{uuid4().hex[:12]}")
    access = {"storage_options": s3_server.storage_options}
    target = {"target_options": s3_server.storage_options, "shard_samples": 25}
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"bin": [bytes([n]) * 99 for n in range(200)]}), rows)
    with pytest.raises(Stop):
        write_tar(rows, f"s3://{bucket}/rows", progress=stopping(0.3), **target)
    before = s3_server.keys(bucket)
    assert before[:2] == ["rows/shard_00000.idx.arrow", "rows/shard_00000.tar"]
    assert write_tar(rows, f"s3://{bucket}/rows", **target).resumed
    names = [f"shard_{n:05d}{ending}" for n in range(8) for ending in (".idx.arrow", ".tar")]
    assert s3_server.keys(bucket) == [f"rows/{name}" for name in ["_headrace_copy.json", *names]]
    again = write_tar(f"s3://{bucket}/rows", tmp_path / "back", shard_samples=25, **access)
    write_tar(rows, tmp_path / "here", shard_samples=25)
    assert again.rows == 200
    assert samples(tmp_path / "back") == samples(tmp_path / "here")
    with pytest.raises(OptionError, match="is not empty"):
        write_tar(rows, f"s3://{bucket}/rows", **target)
    with pytest.raises(OptionError, match="is inside the source"):
        write_tar(f"s3://{bucket}/rows", f"s3://{bucket}/rows/below", **target, **access)
    for path in folder.rglob("val.1/*"):
        s3_server.put(bucket, f"files/{path.relative_to(folder)}", path.read_bytes())
    write_tar(f"s3://{bucket}/files", tmp_path / "files", **access)
    found = samples(tmp_path / "files")
    assert len(found) == 20
    assert found["val.1/004"] == {"jpg": bytes([4]) * 4000, "json": b'{"n": 4}'}
