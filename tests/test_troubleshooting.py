"""The messages that docs/troubleshooting.md quotes exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r'^### "(.*)"$', re.MULTILINE)
QUOTES = HEADING.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))


@cache
def messages() -> str:
    """Return all string literals of the package, one a line, with ``…`` for each inserted value."""
    texts: list[str] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        texts.extend(_texts(ast.parse(path.read_text(encoding="utf-8"))))
    return "\n".join(text.replace("\n", " ") for text in texts)


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_twenty_messages_are_explained() -> None:
    assert len(QUOTES) >= 20


@pytest.mark.parametrize("quote", QUOTES)
def test_quoted_messages_exist(quote: str) -> None:
    pattern = ".*".join(re.escape(part) for part in quote.split("…"))
    assert re.search(pattern, messages()), "the message was reworded: change the page, too"
