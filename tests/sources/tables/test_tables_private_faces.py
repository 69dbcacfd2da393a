"""What is not documented of pypaimon and pylance is used in one module each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
NATIVE = {"pypaimon": ROOT / "sources/paimon/native.py", "lance": ROOT / "sources/lance/opened.py"}
UNDOCUMENTED = (
    "pypaimon.globalindex",
    "pypaimon.manifest.manifest_list_manager",
    "pypaimon.read.scanner",
    "pypaimon.utils",
)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Attributes with an underscore of anything but ``self`` and ``cls``, and modules like that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and not node.attr.startswith("__"):
                yield f"line {node.lineno}: {ast.unparse(node)}"
    for name in imported(tree):
        if name.startswith("headrace."):
            continue
        if name.startswith(UNDOCUMENTED) or any(part.startswith("_") for part in name.split(".")):
            yield f"import {name}"


@pytest.mark.parametrize("library", sorted(NATIVE))
def test_private_faces_are_used_in_one_module(library: str) -> None:
    users = 0
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        if path != NATIVE[library] and library in {n.partition(".")[0] for n in imported(tree)}:
            users += 1
            names = [use for use in private_uses(tree) if use != "import __future__"]
            assert not names, f"{path} uses what {library} does not document: {names}"
    assert users or library == "lance"


def test_private_uses_are_found() -> None:
    text = "from pypaimon.read.scanner.x import y\ntable._copy()\nself._mine\nself.table._scan.z"
    assert list(private_uses(ast.parse(text))) == [
        "line 2: table._copy",
        "line 4: self.table._scan",
        "import pypaimon.read.scanner.x",
    ]
