"""``headrace index``: its output, and its exit codes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.sources.tar.index_files import read_index


def write_tar(path: Path, names: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 600
            tar.addfile(info, io.BytesIO(b"{}".ljust(600)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one.tar", "deep/one.tar"):
        write_tar(tmp_path / "tars" / name, ["a.jpg", "a.json", "b.jpg"])
    return tmp_path / "tars"


def test_indexing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(folder), "--geometry", "--hash", "--workers", "2"]) == 0
    output = capsys.readouterr()
    assert output.out == "6 members of 2 tars indexed\n"
    assert output.err.splitlines() == ["indexing 0%", "indexing 100%"]
    index = read_index(folder / "deep" / "one.idx.arrow")
    assert index.names.to_pylist() == ["a.jpg", "a.json", "b.jpg"]
    assert index.facts.has_geometry
    assert len(index.facts.hash_lfs or "") == 64
    assert main(["index", str(folder)]) == 0
    assert capsys.readouterr().out == "6 members of 2 tars indexed (2 of them before)\n"


def test_some_of_the_tars_elsewhere(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["index", str(folder), "--out", str(out), "--format", "arrow", "--no-sidecars"]
    assert main([*arguments, "--range", "1,2"]) == 0
    assert [path.name for path in out.rglob("*") if path.is_file()] == ["one.idx.arrow"]
    assert capsys.readouterr().out == "3 members of 1 tar indexed\n"


def test_a_broken_tar(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar = folder / "one.tar"
    tar.write_bytes(tar.read_bytes()[: 1536 + 700])
    (folder / "none.tar").write_bytes(b"x" * 600)
    assert main(["index", str(tar)]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"headrace index: {tar}: it ends inside member 'a.json'")
    assert "the last good member is 'a.jpg'" in message
    assert main(["index", str(folder), "--keep-going"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"not indexed: {folder}/none.tar is not a tar")
    assert lines[1] == "truncated: one.tar, the last good member is 'a.jpg'"
    assert lines[2] == "4 members of 2 tars indexed"
    assert read_index(folder / "one.idx.arrow").facts.last_good == "a.jpg"


def test_verifying(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["index", str(folder), "--out", str(out), "--hash"]) == 0
    assert main(["index", str(folder), "--verify", "--metadata", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 indices right, 0 not"
    write_tar(folder / "one.tar", ["a.jpg", "other.json", "b.jpg"])
    assert main(["index", str(folder), "--verify", "--metadata", str(out)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("one.tar: ") and "a.json" in line for line in lines)
    assert lines[-1] == "1 index right, 1 not"


def test_converting(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(folder), "--format", "json"]) == 0
    before = {path: json.loads(path.read_text()) for path in folder.rglob("*.json")}
    capsys.readouterr()
    assert main(["index", str(folder), "--from-json"]) == 0
    assert capsys.readouterr().out.startswith(f"written: {folder}/deep/one.idx.arrow and 1 more")
    for path in before:
        path.unlink()
    assert main(["index", str(folder), "--to-json"]) == 0
    assert {path: json.loads(path.read_text()) for path in before} == before
    one = tmp_path / "all.arrow"
    assert main(["index", str(folder), "--from-json", "--one-file", str(one)]) == 0
    assert main(["index", str(one), "--to-json", "--out", str(tmp_path / "back")]) == 0
    back = json.loads((tmp_path / "back/deep/one.json").read_text())
    assert back == before[folder / "deep/one.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--range", "3"], "--range must be two numbers"),
        (["--range", "5,9"], "only 2"),
        (["--metadata", "x"], "--metadata has no effect without --verify"),
        (["--verify", "--keep-going"], "--keep-going has no effect with --verify"),
        (["--from-json", "--no-sidecars"], "--no-sidecars has no effect with --from-json"),
        (["--to-json", "--one-file", "x"], "no index"),
        (["--storage-options", "{"], "--storage-options must be JSON"),
        (["--out", "x", "--one-file", "y"], "one_file is one index for all"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_source_without_tars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert main(["index", str(tmp_path)]) == 2
    assert "no tar in" in capsys.readouterr().err
