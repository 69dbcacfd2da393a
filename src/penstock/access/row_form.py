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

    def projected(self, columns: Sequence[str]) -> RowForm:
        """For some columns only: what is said of others is forgotten."""
        kept = set(columns)
        return replace(
            self,
            columns=tuple(columns),
            nulls=self._nulls(lambda name: name if name in kept else None),
            decode={name: how for name, how in self.decode.items() if name in kept},
        )

    def renamed(self, old: str, new: str) -> RowForm:
        """For data in which a column has another name."""
        decode = {new if name == old else name: how for name, how in self.decode.items()}
        nulls = self._nulls(lambda name: new if name == old else name)
        return replace(self, nulls=nulls, decode=decode)

    def of_all(self, replaced: Sequence[str]) -> RowForm:
        """For data that has these columns only, some of which are no longer what they were."""
        kept = {name: how for name, how in self.decode.items() if name not in replaced}
        return replace(self, columns=None, decode=kept)

    def formatted(self, output_format: str) -> RowForm:
        """In another format, without what it has no place for."""
        form = replace(self, output_format=output_format)
        if output_format in ("arrow", "dict"):
            form = replace(form, nulls=None, ragged="list")
        return replace(form, decode={}) if output_format == "arrow" else form

    def _nulls(self, name_of: Any) -> str | Mapping[str, Any] | None:
        """Remedies under other names of columns; they may be of fields, as in ``column.field``."""
        if not isinstance(self.nulls, Mapping):
            return self.nulls
        changed = {}
        for path, remedy in self.nulls.items():
            column, dot, field = path.partition(".")
            name = name_of(column)
            if name is not None:
                changed[name + dot + field] = remedy
        return changed
