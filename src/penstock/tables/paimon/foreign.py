"""Rows that pypaimon reads: merged ones, and files of formats that only it knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import MissingExtraError, PenstockError, ReadError
from penstock.formats.blocks import in_blocks, rows_only
from penstock.formats.schemas import align
from penstock.model import RowRange

if TYPE_CHECKING:
    from pypaimon.read.split import DataSplit
    from pypaimon.table.file_store_table import FileStoreTable

__all__ = ["ForeignRows"]


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """Reads splits with pypaimon, in the process that wants their rows."""

    table: FileStoreTable = field(repr=False)
    """holds the options of the catalog"""
    splits: Mapping[str, DataSplit] = field(repr=False)
    """by the path of the first file"""

    def read(
        self, path: str, rows: RowRange | None, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """The rows of a split; ``rows`` are by their place in the split, before deletes."""
        where = path if rows is None else f"{path}, rows {rows.offset}-{rows.stop}"
        split: Any = self.splits[path]
        with _explained(where):
            if rows is not None:
                split = _some(split, rows)
            for table in in_blocks(self._tables(split, schema), block_bytes):
                if not len(schema):
                    yield rows_only(table.num_rows)
                else:
                    yield align(table, schema, {}, where)

    def _tables(self, split: Any, schema: pa.Schema) -> Iterator[pa.Table]:
        builder = self.table.new_read_builder().with_projection(list(schema.names))
        reader = builder.new_read().to_arrow_batch_reader([split], parallelism=1)
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _some(split: DataSplit, rows: RowRange) -> Any:
    """A split of some rows, by their row ids where the table tracks them."""
    from pypaimon.globalindex.indexed_split import IndexedSplit
    from pypaimon.utils.range import Range

    starts = [file.first_row_id for file in split.files if file.first_row_id is not None]
    base = min(starts, default=0)
    return IndexedSplit(split, [Range(base + rows.offset, base + rows.stop - 1)])


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """What pypaimon raises has all kinds of types; what is missing is the cause of its cause."""
    try:
        yield
    except (PenstockError, MemoryError, GeneratorExit):
        raise
    except (RuntimeError, OSError, ValueError, TypeError, KeyError, ImportError) as error:
        missing = _missing_module(error)
        if missing is not None:
            raise MissingExtraError(
                f"{where}: pypaimon reads such files with the package {missing}, which is not "
                "installed"
            ) from None
        raise ReadError(f"{where}: {type(error).__name__}: {error}") from None
    except pa.ArrowException as error:
        raise ReadError(f"{where}: {error}") from None


def _missing_module(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            return error.name
        error = error.__cause__ or error.__context__
    return None
