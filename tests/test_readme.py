"""The Python blocks of the README and of the documentation run, in order, without changes.

A block that cannot run here, such as one for another library, is marked ``py`` instead of
``python`` and is only compiled. The line before it is a comment with the reason.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
import headrace.access
import headrace.errors
import headrace.write

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
COMPILED_ONLY = re.compile(r"^([^\n]*)\n```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")
REPOSITORY_LINK = re.compile(r"https://github\.com/headrace/headrace/blob/main/([^)#\s]+)")
SITE_LINK = re.compile(r"https://headrace\.github\.io/headrace/([^)#\s]*)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folder ``data`` of the README and make its parent the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for number, ids in enumerate(np.array_split(np.arange(10_000), 4)):
        x = np.random.default_rng(number).normal(size=(len(ids), 16)).astype(np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 16)
        table = pa.table({"id": ids, "x": vectors, "y": x.sum(axis=1)})
        pq.write_table(table, tmp_path / "data" / f"part-{number}.parquet")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("folder")
def test_python_blocks_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        indent, code = block.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        # Add blank lines in front, so that a traceback shows the line of the page.
        above = "\n" * (text[: block.start()].count("\n") + 1)
        exec(compile(above + code, str(page), "exec"), namespace)
    for line_before, code in COMPILED_ONLY.findall(text):
        assert line_before.startswith("<!-- compiled only: "), f"say why, or run it:\n{code}"
        compile(code, str(page), "exec")


@pytest.mark.parametrize("name", sorted({*headrace.__all__, "open"}))
@pytest.mark.usefixtures("folder")
def test_examples_in_docstrings_run(name: str) -> None:
    text = inspect.getdoc(getattr(headrace, name)) or ""
    for kind, code in re.findall(r"^ +```(python|py)\n(.*?)^ +```", text, re.MULTILINE | re.DOTALL):
        compiled = compile(textwrap.dedent(code), name, "exec")
        if kind == "python":
            exec(compiled, {"__name__": "__main__"})


def test_readme_has_blocks_to_run() -> None:
    assert len(BLOCK.findall(PAGES[0].read_text(encoding="utf-8"))) >= 4


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"]
)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    in_repository = LINK.findall(text) + REPOSITORY_LINK.findall(text)
    assert [link for link in in_repository if not (ROOT / link).exists()] == []
    pages = {link.strip("/") for link in SITE_LINK.findall(text)}
    assert [page for page in pages if not _has_page(page)] == []


def _has_page(page: str) -> bool:
    folder = DOCS / page
    candidates = [folder.with_suffix(".md"), folder / "index.md", folder / "README.md"]
    return any(candidate.is_file() for candidate in candidates)


def test_links_of_the_readme_work_on_pypi() -> None:
    """Check that all links are absolute: PyPI shows the README without the repository."""
    assert LINK.findall(PAGES[0].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("package", [headrace, headrace.access, headrace.write])
def test_reference_has_every_public_name(package: ModuleType) -> None:
    pages = (DOCS / "reference").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    documented = set(re.findall(r"^::: headrace\.(?:\w+\.)*(\w+)$", text, re.MULTILINE))
    # The page of errors documents their module as a whole.
    assert set(package.__all__) - set(headrace.errors.__all__) - documented == set()
