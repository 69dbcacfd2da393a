"""The command line: its output, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.cli import COMMANDS, main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in range(2):
        table = pa.table({"id": range(1_500), "weight": pa.array([0.5] * 1_500, pa.float32())})
        pq.write_table(table, tmp_path / f"part-{part}.parquet", row_group_size=500)
    return tmp_path


def test_inspect_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "location": str(folder),
        "format": "parquet",
        "files": 2,
        "size_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "rows": 3_000,
        "row_groups": 6,
        "batch_size": 1024,
        "batches": 3,
        "columns": [
            {"name": "id", "type": "int64", "torch": "torch.int64"},
            {"name": "weight", "type": "float", "torch": "torch.float32"},
        ],
    }


def test_inspect_as_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "*.parquet")]) == 0
    fields = {line.split(maxsplit=1)[0]: line for line in capsys.readouterr().out.splitlines()}
    assert fields["files"] == "files       2"
    assert fields["rows"] == "rows        3,000"
    assert fields["batches"] == "batches     3 of 1,024 rows"
    assert fields["weight"] == "  weight  float  torch.float32"


def test_inspect_says_what_only_reading_would_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("id,name\n1,a\n2,b\n")
    assert main(["inspect", str(tmp_path / "rows.csv"), "--format", "csv"]) == 0
    output = capsys.readouterr().out
    assert "rows        unknown until read" in output
    assert "size        16 bytes" in output


def test_error_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.parquet"
    assert main(["inspect", str(missing)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("headrace inspect: ")
    assert str(missing) in output.err
    assert output.err.count("\n") == 1


def test_unknown_format_is_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(folder), "--format", "parket"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_version_of_module_and_command() -> None:
    command = [sys.executable, "-m", "headrace", "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == f"headrace {headrace.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr().out
    assert COMMANDS
    assert all(command.name in output and command.summary in output for command in COMMANDS)


def test_an_option_without_its_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["convert", "a", "b", "--to"])
    assert "argument --to: expected one argument" in capsys.readouterr().err
