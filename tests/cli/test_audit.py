"""``headrace audit``: factories by name, locations by URL, exit codes, the documented example."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warm_interpreters import run_warm

from headrace.cli import main
from headrace.cli.audit import LocationLoaders
from headrace.errors import OptionError
from headrace.testing.auditing import ColumnIds

ROOT = Path(__file__).parents[2]
PATIENTLY = ("--timeout", "300")
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
RIGHT = """
class Loader:
    def __init__(self, rank, world_size, num_workers):
        self.ids, self.place = range(rank, 20, world_size), 0

    def __iter__(self):
        start, self.place = self.place, 0
        for place in range(start, len(self.ids)):
            self.place = place + 1
            yield {"number": [self.ids[place]]}
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"] STEP


def ids(batch):
    return batch["number"]
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    for part in range(2):
        ids = range(100 * part, 100 * part + 100)
        pq.write_table(pa.table({"key": ids}), tmp_path / f"part-{part}.parquet")
    return tmp_path


def write_module(folder: Path, name: str, step: str) -> str:
    (folder / f"{name}.py").write_text(RIGHT.replace("STEP", step))
    return f"{name}:Loader"


def audit_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "headrace", "audit", *arguments, *PATIENTLY, cwd=cwd)


def test_a_factory_of_the_working_directory_is_found_and_acquitted(tmp_path: Path) -> None:
    target = write_module(tmp_path, "right_loader", "")
    options = ("--row-id", "right_loader:ids", "--schedules", "2", "--sizes", "1x0,2x0")
    result = audit_command(target, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].endswith(
        "nothing lost, nothing twice, nothing out of order"
    )
    assert result.stderr == ""


def test_a_broken_factory_is_convicted(tmp_path: Path) -> None:
    target = write_module(tmp_path, "broken_loader", "+ 1")
    options = ("--row-id", "broken_loader:ids", "--schedules", "2", "--sizes", "1x0")
    result = audit_command(target, *options, cwd=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(r"row \d+ lost \(epoch \d, leg \d\)", result.stdout)


def test_a_location_and_the_number_of_its_rows(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--id", "key", "--batch-size", "8", "--shuffle", "--schedules", "2"]
    command = ["audit", str(rows), "--format", "parquet", *options, "--sizes", "1x0,2x0"]
    command += PATIENTLY
    assert main([*command, "--expected-rows", "200"]) == 0, capsys.readouterr().out
    assert "4 runs of 2 × 200 rows" in capsys.readouterr().out
    assert main([*command, "--schedules", "0", "--expected-rows", "201"]) == 1
    assert capsys.readouterr().out.endswith("an epoch has 200 rows; 201 were expected\n")


def test_a_column_that_is_missing_is_named(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["audit", str(rows), "--format", "parquet", "--sizes", "1x0", *PATIENTLY]
    assert main(command) == 1
    assert "no column 'id' among key in a dict; name the column (--id)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_module:Loader"], "no_such_module:Loader cannot be imported"),
        (["json:no_such_function"], "json:no_such_function cannot be imported"),
        (["json:loads", "--sizes", "2"], "--sizes must be ranks x workers"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *arguments]) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"headrace audit: {message}")
    assert output.count("\n") == 1


def test_what_may_be_dropped_depends_on_ranks_counts_and_even(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "b.parquet")
    counted, text = str(tmp_path / "b.parquet"), str(tmp_path / "a.csv")
    for location, batches, least in ((counted, {}, 2), (text, {"batch_size": 8}, 16)):
        assert LocationLoaders(location, options=batches).may_drop(3) == least
        assert LocationLoaders(location, options=batches).may_drop(1) == 0
        assert LocationLoaders(location, options={"even": False}).may_drop(3) == 0


def test_ids_of_lists_and_of_columns_that_are_missing() -> None:
    assert list(ColumnIds("key")({"key": ["a", "b"]})) == ["a", "b"]
    with pytest.raises(OptionError, match="no column 'id' among key"):
        ColumnIds("id")({"key": [1]})


def test_the_documented_example_prints_what_the_documentation_shows(tmp_path: Path) -> None:
    (module,) = re.findall(r"`forgetful.py`:\n\n<!-- .*? -->\n```py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "forgetful.py").write_text(module)
    command, expected = re.findall(
        r"```console\n\$ headrace audit (forgetful.*?)\n(.*?)```", PAGE, re.DOTALL
    )[0]
    result = audit_command(*command.split(), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, expected), result.stderr
