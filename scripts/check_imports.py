"""Check the imports of src/headrace against the table of rooms in ARCHITECTURE.md.

usage: python scripts/check_imports.py [ROOT]

A room is a folder of the package. The table's first column names rooms, and its second column the
rooms that they may import; ``errors``, ``model``, ``matrices``, ``options`` and ``process`` are
open to all. The modules beside the rooms (``__init__``, ``__main__``) may import anything. A module
whose name begins with an underscore belongs to its own room.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "headrace"
OPEN_TO_ALL = frozenset({"errors", "matrices", "model", "options", "process"})
HEADING = re.compile(r"\|\s*room\s*\|\s*may import\b.*\|", re.IGNORECASE)

Rules = dict[str, frozenset[str]]


class RulesError(Exception):
    """The table of rooms cannot be read."""


@dataclass(frozen=True, slots=True)
class Offence:
    """An import that the table does not allow."""

    path: Path
    line: int
    room: str
    imported: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.room} may not import {self.imported}"


def read_rules(text: str) -> Rules:
    """Return the table of rooms as {room: rooms it may import}."""
    lines = iter(text.splitlines())
    if not any(HEADING.fullmatch(line.strip()) for line in lines):
        raise RulesError("there is no table with the heading '| room | may import |'")
    rows: list[tuple[list[str], str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rooms, allowed = (cell.strip().replace("`", "") for cell in line.strip("| ").split("|", 1))
        if rooms.strip("-: "):
            rows.append((_names(rooms), allowed))
    every_room = [room for rooms, _ in rows for room in rooms]
    rules: Rules = {}
    for rooms, allowed in rows:
        permitted = _permitted(allowed, above=list(rules), every_room=every_room)
        rules.update({room: permitted | {room} for room in rooms})
    return rules


def _permitted(allowed: str, *, above: list[str], every_room: list[str]) -> frozenset[str]:
    words = allowed.partition(";")[0].strip()
    if words == "anything":
        return frozenset(every_room) | {PACKAGE}
    if words == "all of the above":
        return frozenset(above)
    if words == "nothing of ours":
        return frozenset()
    unknown = set(_names(words)) - set(every_room)
    if unknown:
        raise RulesError(f"the table of rooms says {words!r}: {sorted(unknown)} are no rooms of it")
    return frozenset(_names(words))


def _names(cell: str) -> list[str]:
    return [name.strip() for name in cell.split(",")]


def find_offences(package: Path, rules: Rules) -> Iterator[Offence]:
    """Yield every import of a file in a room that the room's row of the table does not allow."""
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        if len(inside) == 1:
            continue
        room = inside[0]
        if room not in rules:
            raise RulesError(f"{path} lies in the room {room!r}, which the table does not name")
        for line, imported, module in _imports(path, package):
            if imported not in rules[room] | OPEN_TO_ALL:
                yield Offence(path, line, room, imported)
            elif imported != room and any(part.startswith("_") for part in module):
                yield Offence(path, line, room, ".".join(module))


def _imports(path: Path, package: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the rooms and modules a file imports; the package itself counts as ``headrace``."""
    folder = [PACKAGE, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            modules = [(alias.name.split("."), "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) + 1 - node.level] if node.level else []
            module = start + (node.module.split(".") if node.module else [])
            modules = [(module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in modules:
            if module[0] == PACKAGE:
                yield node.lineno, _room_of(module, name, package), [*module, name]


def _room_of(module: list[str], name: str, package: Path) -> str:
    """Return the room of an import; ``from headrace import name`` counts only if there is one."""
    if len(module) > 1:
        return module[1]
    is_module = name and ((package / name).is_dir() or (package / f"{name}.py").is_file())
    return name if is_module else PACKAGE


def main(root: Path) -> int:
    """Print the offences; return 1 if there are any, 2 if the table cannot be read."""
    table = root / "ARCHITECTURE.md"
    try:
        rules = read_rules(table.read_text(encoding="utf-8"))
        offences = list(find_offences(root / "src" / PACKAGE, rules))
    except (RulesError, FileNotFoundError) as error:
        print(f"{table}: {error}", file=sys.stderr)
        return 2
    for offence in offences:
        print(offence, file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
