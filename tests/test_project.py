"""The project around the package: packaging, versions, rooms, scripts and the demo."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headrace"
TESTS = ROOT / "tests"
NO_ROOMS = ("gpu", "servers")  # their tests are of a device, and of the servers beside them
EXTRAS = {
    "s3",
    "gcs",
    "azure",
    "iceberg",
    "paimon",
    "lance",
    "array-record",
    "images",
    "cli",
    "all",
    "dev",
}
TABLE = """
| room | may import (beside errors and model) |
|---|---|
| storage, plan | nothing of ours |
| formats | storage |
| loader | all of the above |
| cli | anything; nothing imports them |
"""


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def check_imports() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_imports", ROOT / "scripts" / "check_imports.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_imports"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    return out


def run(*command: object, cwd: Path = ROOT, **environment: object) -> str:
    """Run a command that has to succeed and return its output."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def rooms() -> list[str]:
    return sorted(folder.name for folder in PACKAGE.iterdir() if any(folder.glob("*.py")))


def test_architecture_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert [room for room in rooms() if not re.search(rf"\b{room}/", text)] == []


def test_every_room_is_a_package() -> None:
    assert [room for room in rooms() if not (PACKAGE / room / "__init__.py").is_file()] == []


def test_tests_are_named_after_what_they_test() -> None:
    below = [path for path in TESTS.rglob("test_*.py") if path.parent != TESTS]
    misplaced = [
        str(path.relative_to(ROOT))
        for path in below
        if not any(f"{path.stem}_".startswith(f"test_{name}_") for name in names_for(path.parent))
    ]
    assert sorted(misplaced) == []


def names_for(folder: Path) -> set[str]:
    """Return the modules and folders after which the tests in a folder are named."""
    place = folder.relative_to(TESTS)
    code = folder if place.name in NO_ROOMS else PACKAGE / place
    if not code.is_dir():
        return set()
    if place.parts[0] == "sources" and len(place.parts) > 1:
        return {folder.name}
    tested_elsewhere = {path.name for path in folder.iterdir() if path.is_dir()}
    modules = {path.stem for path in code.iterdir() if path.name not in tested_elsewhere}
    return {name.lstrip("_") for name in modules} | {folder.name}


def test_tree_keeps_the_import_rules(check_imports: ModuleType) -> None:
    rules = check_imports.read_rules((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert [str(offence) for offence in check_imports.find_offences(PACKAGE, rules)] == []


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("from headrace.formats import protocol", "formats"),
        ("from ..formats import protocol", "formats"),
        ("def late():\n    import headrace.formats.protocol", "formats"),
        ("from headrace import StructuredDataset", "headrace"),
        ("from headrace import formats", "formats"),
    ],
)
def test_forbidden_imports_are_found(
    check_imports: ModuleType, tmp_path: Path, source: str, imported: str
) -> None:
    plant(tmp_path, {"plan/order.py": source, "formats/protocol.py": "from .. import model\n"})
    (offence,) = check_imports.find_offences(tmp_path, check_imports.read_rules(TABLE))
    line = source.count("\n") + 1
    expected = f"{tmp_path}/plan/order.py:{line}: plan may not import {imported}"
    assert str(offence) == expected


def test_private_modules_of_other_rooms_are_found(
    check_imports: ModuleType, tmp_path: Path
) -> None:
    files = {
        "loader/dataset.py": "from headrace.plan._lanes import Lane\n",
        "plan/order.py": "from headrace.plan._lanes import Lane\n",
    }
    plant(tmp_path, files)
    (offence,) = check_imports.find_offences(tmp_path, check_imports.read_rules(TABLE))
    assert str(offence).endswith("loader may not import headrace.plan._lanes.Lane")


def test_allowed_imports_are_not_found(check_imports: ModuleType, tmp_path: Path) -> None:
    files = {
        "plan/order.py": "import numpy, headrace.model\nfrom headrace.plan import lanes\n",
        "loader/dataset.py": "from headrace.plan import order\nfrom ..formats import protocol\n",
        "cli/entry.py": "import headrace\nfrom headrace.loader import dataset\n",
        "formats/protocol.py": "from headrace.storage import Store\nfrom . import registry\n",
    }
    plant(tmp_path, files)
    assert list(check_imports.find_offences(tmp_path, check_imports.read_rules(TABLE))) == []


def test_unnamed_room_is_an_error(check_imports: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, {"attic/box.py": ""})
    with pytest.raises(check_imports.RulesError, match="attic"):
        list(check_imports.find_offences(tmp_path, check_imports.read_rules(TABLE)))


def plant(package: Path, files: dict[str, str]) -> None:
    for name in ("model.py", "errors.py", *files):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(files.get(name, ""))


def test_extras(pyproject: dict) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    assert set(extras) >= EXTRAS
    named = re.findall(
        r'for_extra\(\s*"([\w-]+)"', "".join(p.read_text() for p in PACKAGE.rglob("*.py"))
    )
    assert set(named) <= set(extras)


def test_constraints_pin_what_is_installed_by_default(pyproject: dict) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines[0] == "torch==2.13.0"
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    project = pyproject["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert {re.split(r"[<>=\[]", requirement)[0] for requirement in wanted} <= pinned


def test_exports_exist() -> None:
    assert len(set(headrace.__all__)) == len(headrace.__all__)
    assert [name for name in headrace.__all__ if not hasattr(headrace, name)] == []


def test_workflows_name_tests_that_exist() -> None:
    files = [ROOT / "Makefile", *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    named = set(re.findall(r"\btests/[\w./]+", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {headrace.__version__}\n" in text


def test_wheel_and_sdist_pass_twine(dist: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())


def test_wheel_holds_the_whole_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob(f"headrace-{headrace.__version__}-py3-none-any.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert inside == {str(path.relative_to(PACKAGE.parent)) for path in sources}
    assert "headrace/py.typed" in inside


def test_wheel_alone_imports_and_reads_a_file(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    pq.write_table(pa.table({"id": range(3_000)}), tmp_path / "rows.parquet")
    program = (
        "import headrace\n"
        "loader, _ = headrace.StructuredDataset.create_dataloader('rows.parquet')\n"
        "print(headrace.__file__, sum(len(batch['id']) for batch in loader))\n"
    )
    where, rows = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=site).split()
    assert Path(where).is_relative_to(site)
    assert rows == "3000"


def test_demo_counts_every_row_once(tmp_path: Path) -> None:
    demo = ROOT / "examples" / "demo.py"
    output = run(sys.executable, demo, "--rows", 20_000, "--folder", tmp_path / "demo")
    assert "lost: 0   seen twice: 0" in output
    assert "same order as a run without a stop: yes" in output
    assert "\r" not in output


def test_step_is_quiet_until_it_fails() -> None:
    assert re.fullmatch(
        r"working \.\.\. done \(\d+s\)\n", run(ROOT / "scripts/step", "working", "echo", "chatter")
    )
    failed = subprocess.run(
        [ROOT / "scripts/step", "working", "sh", "-c", "echo chatter; exit 3"],
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 3
    assert "FAILED" in failed.stdout
    assert failed.stderr == "chatter\n"


def test_a_python_that_is_missing_is_named() -> None:
    found = subprocess.run(
        [ROOT / "scripts/find-python"],
        env=os.environ | {"PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "no-such-python" in found.stderr
    assert Path(run(ROOT / "scripts/find-python", PYTHON="").strip()).is_file()
