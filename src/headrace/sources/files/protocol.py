"""The protocol of a file format: it inspects a file, and reads its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.model import DataFileInfo, FileSplit, RowGroups
from headrace.storage import Store


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The result of inspecting one file.

    Attributes:
        schema: The file's own columns, without metadata of the schema.
        record_count: See `DataFileInfo`.
        row_groups: The row groups that may hold rows for the filter.
        body_offset: See `DataFileInfo`.
        splittable: See `DataFileInfo`.
    """

    schema: pa.Schema
    record_count: int | None = None
    row_groups: RowGroups | None = None
    body_offset: int = 0
    splittable: bool = True

    def added_to(self, file: DataFileInfo) -> DataFileInfo:
        """Return a file with these facts."""
        return replace(
            file,
            record_count=self.record_count,
            row_groups=self.row_groups,
            body_offset=self.body_offset,
            splittable=self.splittable,
        )


class Format(Protocol):
    """A file format. Its instances hold only options: they pickle, and any thread may use them."""

    @property
    def name(self) -> str:
        """Name of the format, as users call it."""
        ...

    @property
    def extensions(self) -> tuple[str, ...]:
        """Extensions of its files, with the dot."""
        ...

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        """Read metadata (a footer, a first block) and exclude row groups that cannot match.

        ``keep`` is a filter over the file's own columns; the facts leave out row groups that
        statistics exclude.
        """
        ...

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield exactly the rows of ``chunk``, in order, in tables of about ``block_bytes`` each.

        ``schema`` names the wanted columns with the types of the data set. Tables hold the wanted
        columns that the file has, in any order, in the file's own types if it has types.
        """
        ...
