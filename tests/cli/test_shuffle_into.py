"""``headrace shuffle-into``: its output, and its exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from warm_interpreters import run_warm

from headrace.cli import main
from headrace.cli.terminal import Bar


@pytest.fixture
def source(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(5_000), "b": range(5_000)}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_a_copy(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(source), str(tmp_path / "out"), "--file-rows", "2000", "--columns", "id"]
    assert main(["shuffle-into", *arguments, "--seed", "3", "--memory", "2MiB"]) == 0
    output = capsys.readouterr()
    assert output.out == f"5,000 rows in 3 parts: {tmp_path / 'out'}\n"
    assert output.err.splitlines() == ["sorting 0%", "writing 0%", "writing 100%"]
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == ["id"]
    assert sorted(table["id"].to_pylist()) == list(range(5_000)) != table["id"].to_pylist()


def test_a_target_that_is_there(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["shuffle-into", str(source), str(tmp_path / "out"), "--to", "arrow"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    errors = capsys.readouterr().err.splitlines()[-1]
    assert errors.startswith("headrace shuffle-into: ")
    assert "is not empty" in errors
    assert main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "lots"], "memory_bytes must be"),
        (["--to", "orc"], "target_format must be one of"),
        (["--storage-options", "{key:"], "--storage-options must be JSON"),
        (["--target-options", "[1]"], "--target-options must be JSON"),
        (["--columns", "id,c"], "there is no column 'c'"),
    ],
)
def test_what_makes_no_sense(
    source: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["shuffle-into", str(source), str(tmp_path / "out"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"headrace shuffle-into: {message}")
    assert errors.count("\n") == 1


def test_the_module_as_a_command(source: Path, tmp_path: Path) -> None:
    result = run_warm("-m", "headrace", "shuffle-into", source, tmp_path / "out")
    assert (result.returncode, result.stdout) == (
        0,
        f"5,000 rows in 1 part: {tmp_path}/out\n",
    )
    assert json.loads((tmp_path / "out" / "_headrace_copy.json").read_text())["rows"] == 5_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal() -> None:
    out = Terminal()
    bar = Bar(out)
    for stage, share in [("sorting", 0.0), ("sorting", 0.0001), ("writing", 0.5), ("writing", 1.0)]:
        bar(stage, share)
    bar.close()
    lines = out.getvalue().split("\n")
    assert [line.count("\r") for line in lines] == [1, 2, 0]
    assert lines[0] == f"\rsorting [{'-' * 30}]   0%"
    assert lines[1].endswith(f"\rwriting [{'#' * 30}] 100%")


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    with SqlCatalog("prod", **config) as catalog:
        catalog.create_namespace("db")
        rows = pa.table({"id": range(1_000), "b": range(1_000)})
        catalog.create_table("db.t", rows.schema).append(rows)
    out = tmp_path / "out"
    command = ["shuffle-into", "prod.db.t", str(out), "--columns", "id", "--format", "iceberg"]
    assert main([*command, "--catalog", json.dumps(config)]) == 0
    assert "1,000 rows" in capsys.readouterr().out
    table = pq.read_table(out)
    assert table.column_names == ["id"]
    assert sorted(table["id"].to_pylist()) == list(range(1_000)) != table["id"].to_pylist()


def test_a_catalog_of_no_table(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shuffle-into", str(source), str(tmp_path / "out"), "--catalog", "{}"]) == 2
    assert "--catalog has no effect" in capsys.readouterr().err
