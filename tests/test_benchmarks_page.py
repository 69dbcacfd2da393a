"""The published benchmark figures are the same in the picture, on the page and in the README."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "benchmarks"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "results.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "benchmarks" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_IMPORT_ARMS = """
import importlib, pathlib

for path in sorted(pathlib.Path("arms").glob("*.py")):
    try:
        importlib.import_module(f"arms.{path.stem}")
    except ModuleNotFoundError as error:
        print(error.name.partition(".")[0])
"""


def test_arms_find_all_modules_but_those_of_peers() -> None:
    peers = {
        "datasets",
        "litdata",
        "pypaimon",
        "ray",
        "s3fs",
        "streaming",
        "webdataset",
        "webshart",
    }
    command = [sys.executable, "-c", _IMPORT_ARMS]
    done = subprocess.run(
        command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= peers | {"torch_dataloader_utils"}


def test_picture_shows_the_published_ratios(picture: ModuleType, results: dict[str, Any]) -> None:
    ratios = {key: row["ratio"] for key, row in results["rows"].items()}
    drawn = (DOCS / "comparison.svg").read_text(encoding="utf-8")
    assert drawn == picture.svg(ratios), "run: python benchmarks/picture.py"
    assert len(picture.BARS) == 10


def test_page_begins_with_the_picture_and_names_its_commit(results: dict[str, Any]) -> None:
    page = (DOCS / "README.md").read_text(encoding="utf-8")
    assert page.index("](comparison.svg)") < page.index("| work |")
    assert re.search(r"commit [0-9a-f]{7}", results["published"])
    assert results["published"] in page


def test_ratios_of_the_readme_are_published_ones(results: dict[str, Any]) -> None:
    """Check that every number in the README's table is a published ratio, rounded to its digits."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"compared with \| ratio \|\n.*?\n\n", text, re.DOTALL)
    assert table is not None
    cells = [row.split("|")[3] for row in table.group().splitlines()[2:] if row]
    numbers = [number.strip() for cell in cells for number in cell.split(",")]
    assert len(numbers) >= 10
    published = [row["ratio"] for row in results["rows"].values()]
    for number in numbers:
        digits = len(number.partition(".")[2])
        assert any(f"{ratio:.{digits}f}" == number for ratio in published), number
    assert re.search(r"commit [0-9a-f]{7}", results["published"])[0] in text  # type: ignore[index]
