"""What rows look like: which columns, in which format, what is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["RowForm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """The options of rows that have to do with columns; they are checked against a schema later."""

    columns: tuple[str, ...] | None
    output_format: str
    nulls: str | Mapping[str, Any] | None
    ragged: str
    decode: Mapping[str, Any]
    """by the name of the column: "image", or a function"""
    reformatted: bool = False
    """whether the other options were chosen for another format"""

    def projected(self, columns: Sequence[str], known: Sequence[str]) -> RowForm:
        """For some of the known columns: what is said of others is forgotten."""
        return replace(self._named({name: name for name in columns}, known), columns=tuple(columns))

    def renamed(self, old: str, new: str, known: Sequence[str]) -> RowForm:
        """For data in which one of the known columns has another name."""
        return self._named({name: new if name == old else name for name in known}, known)

    def of_all(self, replaced: Sequence[str], known: Sequence[str]) -> RowForm:
        """For data that has these columns only, some of which are no longer what they were."""
        kept = {name: name for name in known if name not in replaced}
        return replace(self._named(kept, known), columns=None)

    def formatted(self, output_format: str) -> RowForm:
        """In another format; what that has no place for comes back with the next one."""
        return replace(self, output_format=output_format, reformatted=True)

    def fitting(self) -> RowForm:
        """Without options that were chosen for another format, and that this has no place for."""
        if not self.reformatted:
            return self
        if self.output_format in ("arrow", "dict"):
            decode = {} if self.output_format == "arrow" else self.decode
            return replace(self, nulls=None, ragged="list", decode=decode)
        is_nested = self.output_format == "numpy" and self.ragged == "nested"
        return replace(self, ragged="list") if is_nested else self

    def _named(self, names: Mapping[str, str], known: Sequence[str]) -> RowForm:
        """What is said of columns under the names they have now, if they have any."""
        decode = {names[name]: how for name, how in self.decode.items() if name in names}
        if not isinstance(self.nulls, Mapping):
            return replace(self, decode=decode)
        nulls = {}
        for path, remedy in self.nulls.items():
            column = _column_of(path, known)
            if column in names:
                nulls[names[column] + path[len(column) :]] = remedy
        return replace(self, nulls=nulls, decode=decode)


def _column_of(path: str, known: Sequence[str]) -> str:
    """The column that a path is of: itself, or one with a field of that name."""
    if path in known:
        return path
    return max((name for name in known if path.startswith(f"{name}.")), key=len, default=path)
