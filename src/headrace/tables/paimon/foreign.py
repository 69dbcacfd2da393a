"""Rows that pypaimon reads: merged ones, and files of formats that only it knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import (
    AccessDeniedError,
    FileChangedError,
    HeadraceError,
    MissingExtraError,
    ReadError,
)
from headrace.formats.blocks import in_blocks, rows_only
from headrace.formats.schemas import align
from headrace.model import RowRange
from headrace.storage import Redaction
from headrace.storage.access import protocol_of
from headrace.storage.native import PYARROW_CLIENTS

if TYPE_CHECKING:
    from pypaimon.read.split import DataSplit
    from pypaimon.table.file_store_table import FileStoreTable

__all__ = ["ForeignRows"]

_FAILURES = (RuntimeError, OSError, ValueError, TypeError, KeyError, ImportError)
"""what pypaimon raises is of all kinds"""


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """Reads splits with pypaimon, in the process that wants their rows."""

    table: FileStoreTable = field(repr=False)
    """holds the options of the catalog"""
    splits: Mapping[str, DataSplit] = field(repr=False)
    """by the path of the first file"""
    hidden: Redaction = field(default_factory=Redaction, repr=False)
    """what errors must not tell"""

    def __post_init__(self) -> None:
        _note_use(next(iter(self.splits), ""))

    def read(
        self, path: str, rows: RowRange | None, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """The rows of a split; ``rows`` are by their place in the split, before deletes."""
        _note_use(path)
        where = path if rows is None else f"{path}, rows {rows.offset}-{rows.stop}"
        split: Any = self.splits[path] if rows is None else _some(self.splits[path], rows)
        tables = in_blocks(self._tables(split, schema), block_bytes)
        while (table := self._next(tables, where)) is not None:
            yield align(table, schema, {}, where) if len(schema) else table

    def _tables(self, split: Any, schema: pa.Schema) -> Iterator[pa.Table]:
        names = list(schema.names) or [self._counted]
        builder = self.table.new_read_builder().with_projection(names)
        reader = builder.new_read().to_arrow_batch_reader([split], parallelism=1)
        for batch in reader:
            yield pa.Table.from_batches([batch]) if len(schema) else rows_only(batch.num_rows)

    @property
    def _counted(self) -> str:
        """A column to count rows by: without any, pypaimon counts none in some formats."""
        fixed = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "DATE")
        names = [one.name for one in self.table.fields if str(one.type).split()[0] in fixed]
        return str([*self.table.primary_keys, *names, self.table.fields[0].name][0])

    def _next(self, tables: Iterator[pa.Table], where: str) -> pa.Table | None:
        """The next table; errors of pypaimon as ours, without theirs, which may hold secrets."""
        try:
            return next(tables, None)
        except (HeadraceError, MemoryError):
            raise
        except (*_FAILURES, pa.ArrowException) as error:
            ours = _ours(where, error, self.hidden(f"{type(error).__name__}: {error}"))
        raise ours


def _note_use(path: str) -> None:
    """Note that pypaimon asks pyarrow for files, which does not survive a fork unless local."""
    if protocol_of(path):
        PYARROW_CLIENTS.use()


def _some(split: DataSplit, rows: RowRange) -> Any:
    """A split of some rows, by their row ids where the table tracks them."""
    from pypaimon.globalindex.indexed_split import IndexedSplit
    from pypaimon.utils.range import Range

    starts = [file.first_row_id for file in split.files if file.first_row_id is not None]
    base = min(starts, default=0)
    return IndexedSplit(split, [Range(base + rows.offset, base + rows.stop - 1)])


def _ours(where: str, error: BaseException, told: str) -> HeadraceError:
    """Of the kind that an error is, or the first of those it came from that is of one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError):
            return MissingExtraError(
                f"{where}: pypaimon reads such files with the package {cause.name}, which is not "
                "installed"
            )
        if isinstance(cause, FileNotFoundError):
            return FileChangedError(
                f"{where}: a file vanished after it was discovered ({told}); make a new dataset "
                "to read the table as it is"
            )
        if isinstance(cause, PermissionError) or "ACCESS_DENIED" in str(cause):
            return AccessDeniedError(
                f"{where}: access is refused ({told}); check the credentials in catalog_options"
            )
        cause = cause.__cause__ or cause.__context__
    return ReadError(f"{where}: {told}")
