"""``headrace convert --to array-record``: its output, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from warm_interpreters import run_warm

from headrace.cli import main
from headrace.sources.array_record.backend import ArrayRecordBackend


@pytest.fixture
def source(tmp_path: Path) -> Path:
    table = pa.table({"id": range(500), "data": [b"x" * (i % 9) for i in range(500)]})
    pq.write_table(table, tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_a_file(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out" / "rows.array_record"
    arguments = [str(source), str(target), "--to", "array-record", "--group-size", "20"]
    assert main(["convert", *arguments, "--compression", "brotli:3"]) == 0
    output = capsys.readouterr()
    assert output.out == f"500 rows in 1 file: {target}\n"
    assert output.err.splitlines() == ["writing 0%", "writing 100%"]
    assert ArrayRecordBackend(target).table.equals(pq.read_table(source))


def test_shards_of_several_sources(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "more.parquet"
    pq.write_table(pq.read_table(source), other)
    target = tmp_path / "out"
    arguments = ["convert", str(source), str(other), str(target), "--to", "array-record"]
    assert main([*arguments, "--shard-records", "400", "--codec", "label-payload"]) == 0
    assert capsys.readouterr().out == f"1,000 rows in 3 files: {target}\n"
    backend = ArrayRecordBackend(target, decode="label-payload")
    assert backend.shard_rows.tolist() == [400, 400, 200]
    assert main([*arguments, "--columns", "id"]) == 2
    assert "exists; give --overwrite to replace it" in capsys.readouterr().err
    assert main([*arguments, "--columns", "id", "--overwrite"]) == 2
    assert "is a directory, which cannot be replaced by a file" in capsys.readouterr().err
    again = [*arguments, "--shard-records", "400", "--columns", "id", "--overwrite"]
    assert main(again) == 0
    assert ArrayRecordBackend(target).schema.names == ["id"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--group-size", "0"], "group_size must be an int of at least 1"),
        (["--codec", "raw"], "one column of bytes or text"),
        (["--compression", "zip"], "Unknown option zip"),
        (["--catalog", "{}"], "--catalog has no effect"),
        (["--storage-options", "nonsense"], "--storage-options must be JSON"),
        (["--columns", "nope"], "nope"),
    ],
)
def test_what_is_wrong(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    target = tmp_path / "x.array_record"
    assert main(["convert", str(source), str(target), "--to", "array-record", *options]) == 2
    assert message in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("kind", ["file", "directory", "part"])
def test_records_of_records(source: Path, tmp_path: Path, kind: str) -> None:
    places = {"file": "a.array_record", "directory": "parts", "part": "a.array_record"}
    first, second = tmp_path / places[kind], tmp_path / "b.array_record"
    shards = ["--shard-records", "200"] if kind == "directory" else []
    assert main(["convert", str(source), str(first), "--to", "array-record", *shards]) == 0
    named = f"{first}[100:150]" if kind == "part" else str(first)
    options = ["--to", "array-record", "--group-size", "50", "--columns", "id"]
    assert main(["convert", named, str(second), *options]) == 0
    ids = pq.read_table(source)["id"].to_pylist()
    expected = ids[100:150] if kind == "part" else ids
    assert ArrayRecordBackend(second).table.to_pydict() == {"id": expected}


LANCE = """
import sys, lance, pyarrow
from headrace.cli import main
lance.write_dataset(pyarrow.table({"id": range(300)}), sys.argv[1], max_rows_per_file=100)
sys.exit(main(["convert", sys.argv[1], sys.argv[2], "--to", "array-record"]))
"""


@pytest.mark.parametrize("name", ["t.lance", "t"])
def test_records_of_a_lance_table(tmp_path: Path, name: str) -> None:
    target = tmp_path / "a.array_record"
    result = run_warm("-c", LANCE, tmp_path / name, target)
    assert result.stdout == f"300 rows in 1 file: {target}\n", result.stderr
    assert ArrayRecordBackend(target).table["id"].to_pylist() == list(range(300))


def test_a_form_has_to_be_named(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", str(source), "x"])
    assert "--to" in capsys.readouterr().err


def test_each_form_has_options_of_its_own(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form, option in [
        ("array-record", "--quality"),
        ("video-frames", "--group-size"),
        ("tar", "--codec"),
        ("parquet", "--fields"),
    ]:
        with pytest.raises(SystemExit):
            main(["convert", str(source), str(tmp_path / "x"), "--to", form, option, "5"])
        assert f"unrecognized arguments: {option}" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["convert", "--to", form, "--help"])
        assert option not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    assert "--to FORM --help" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_rows_in_their_order(
    source: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--to", form, "--file-rows", "150", "--row-group-rows", "40", "--columns", "id"]
    assert main(["convert", str(source), str(tmp_path / "out"), *options]) == 0
    assert capsys.readouterr().out == f"500 rows in 4 parts: {tmp_path / 'out'}\n"
    table = ds.dataset(tmp_path / "out", format=form, exclude_invalid_files=True).to_table()
    assert table.to_pydict() == {"id": [*range(500)]}
    if form == "parquet":
        file = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet")
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert groups == [40, 40, 40, 30]
