"""Row groups of those files of which a manifest does not say enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.formats import FileFacts
from headrace.model import IcebergDataFileInfo
from headrace.storage import Store, side_by_side
from headrace.tables.columns import Column, field_id, nested_fields
from headrace.tables.iceberg.rows import FORMATS

__all__ = ["Footers"]

_THREADS = 16
_WAITING_THREADS = 48


@dataclass(frozen=True, slots=True)
class Footers:
    """Looks into files for their row groups, and rules out those that a filter does not want."""

    store: Store
    filter: ds.Expression | None
    filtered: Sequence[Column]
    """the columns of the filter"""

    def read(
        self, files: Mapping[int, IcebergDataFileInfo], formats: Callable[[int], str]
    ) -> dict[int, IcebergDataFileInfo]:
        """The same files, by the same numbers, with their row groups."""
        threads = _THREADS if self.store.local else _WAITING_THREADS
        found = side_by_side(lambda at: self._look(files[at], formats(at)), files, threads=threads)
        return dict(zip(files, found, strict=True))

    def _look(self, file: IcebergDataFileInfo, format_: str) -> IcebergDataFileInfo:
        facts = FORMATS[format_].inspect(self.store, file, self.filter)
        if self.filter is not None and not self._comparable(facts):
            facts = FORMATS[format_].inspect(self.store, file)
        return replace(file, row_groups=facts.row_groups)

    def _comparable(self, facts: FileFacts) -> bool:
        """Whether the file's own names and types of the filter's columns are those of the table.

        Else its statistics are of other columns, or an expression may come out differently.
        """
        return all(self._same(facts.schema, column) for column in self.filtered)

    def _same(self, schema: pa.Schema, column: Column) -> bool:
        place = schema.get_field_index(column.name)
        if place < 0:
            return False
        return _is_same(schema.field(place), column)


def _is_same(stored: pa.Field, column: Column) -> bool:
    """Whether ids and types are the same, of all that is inside too."""
    inside = nested_fields(stored.type)
    return (
        field_id(stored) == column.id
        and stored.type == column.type
        and len(inside) == len(column.children)
        and all(map(_is_same, inside, column.children))
    )
