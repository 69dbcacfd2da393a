"""The rows of a data file that no delete names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ReadError
from headrace.formats.cache import BoundedCache
from headrace.formats.failures import naming
from headrace.matrices import rows_kept
from headrace.model import DataFileInfo, Int64Array
from headrace.storage import Store
from headrace.tables.iceberg.delete_files import (
    CACHE_BYTES,
    belonging_to,
    equality_values,
    positions,
)
from headrace.tables.iceberg.deletes import DeletesOf, EqualityDeleteFile, store_path
from headrace.tables.iceberg.equality_keys import EqualityKeys, stored_type
from headrace.tables.vectors import decode_vector, deleted_positions

__all__ = ["LiveRows"]


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Leaves out deleted rows. What delete files say is kept for all readers of a process."""

    cache_bytes: int = CACHE_BYTES
    """each for positions, for values, and for what was made of them"""

    def live(
        self,
        store: Store,
        deletes: DeletesOf,
        file: DataFileInfo,
        first_row: int,
        table: pa.Table,
        equality_columns: Mapping[int, str] | None = None,
        *,
        data_path: str | None = None,
    ) -> pa.Table:
        """The rows of a table that are left, in order; the table itself if that is all of them.

        The table begins at row ``first_row`` of the file and has no gaps. ``equality_columns``
        names its columns by the ids in ``deletes.field_ids``. ``data_path`` is the file's path as
        it stands in the manifest, where the store has another one.
        """
        if not deletes or not table.num_rows:
            return table
        path = file.path if data_path is None else data_path
        gone = self.deleted(store, deletes, file.record_count, path)
        first, last = np.searchsorted(gone, [first_row, first_row + table.num_rows])
        keep = np.ones(table.num_rows, bool)
        keep[gone[first:last] - first_row] = False
        if deletes.equalities and keep.any():
            with belonging_to(path):
                keep &= self._unequal(store, deletes, table, equality_columns or {})
        left = int(np.count_nonzero(keep))
        if left == table.num_rows:
            return table
        return rows_kept(table, keep) if left else table.slice(0, 0)

    def deleted(
        self, store: Store, deletes: DeletesOf, record_count: int | None, path: str
    ) -> Int64Array:
        """Return all positions of a data file that are deleted by position, ascending."""
        if deletes.vector is None and not deletes.positions:
            return np.empty(0, np.int64)
        return _positions.get_or_make(
            (store.identity, path, record_count, deletes.vector, deletes.positions),
            lambda: self._read_positions(store, deletes, record_count, path),
            limit_bytes=self.cache_bytes,
        )

    def _read_positions(
        self, store: Store, deletes: DeletesOf, record_count: int | None, path: str
    ) -> Int64Array:
        vector = deletes.vector
        if vector is not None:
            where = f"{vector.path}, bytes {vector.offset}-{vector.offset + vector.length}"
            puffin = DataFileInfo(store_path(vector.path), vector.size)
            with belonging_to(path):
                with naming(where), store.open(puffin) as source:
                    blob = bytes(source.read_at(vector.length, vector.offset))
                bitmap = decode_vector(blob, where)
            return deleted_positions(
                bitmap,
                vector=vector.path,
                file=path,
                rows=record_count,
                cardinality=vector.cardinality,
            )
        parts = [
            positions(store, delete, path, record_count=record_count, cache_bytes=self.cache_bytes)
            for delete in deletes.positions
        ]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))

    def _unequal(
        self,
        store: Store,
        deletes: DeletesOf,
        table: pa.Table,
        names: Mapping[int, str],
    ) -> npt.NDArray[np.bool_]:
        """Which rows have values that no equality delete has."""
        keep = np.ones(table.num_rows, bool)
        missing = sorted(deletes.field_ids - {i for i in names if names[i] in table.column_names})
        if missing:
            raise ReadError(
                f"rows are deleted by the values of the columns with the field ids {missing}, "
                "which were not read"
            )
        for field_ids in sorted({file.field_ids for file in deletes.equalities}):
            columns = [table.column(names[field_id]) for field_id in field_ids]
            types = tuple(stored_type(column.type) for column in columns)
            keep &= ~self._keys(store, deletes, field_ids, types).matches(columns)
        return keep

    def _keys(
        self,
        store: Store,
        deletes: DeletesOf,
        field_ids: tuple[int, ...],
        types: tuple[pa.DataType, ...],
    ) -> EqualityKeys:
        return _keys.get_or_make(
            (store.identity, deletes.equalities, field_ids, types),
            lambda: EqualityKeys.of(
                pa.concat_tables(
                    self._values(store, file, types)
                    for file in deletes.equalities
                    if file.field_ids == field_ids
                ).columns
            ),
            limit_bytes=self.cache_bytes,
        )

    def _values(
        self, store: Store, file: EqualityDeleteFile, types: tuple[pa.DataType, ...]
    ) -> pa.Table:
        return _values.get_or_make(
            (store.identity, file, types),
            lambda: equality_values(store, file, types),
            limit_bytes=self.cache_bytes,
        )


_positions: BoundedCache[Int64Array] = BoundedCache(lambda found: 200 + found.nbytes)
_values: BoundedCache[pa.Table] = BoundedCache(lambda table: 1000 + int(table.nbytes))
_keys: BoundedCache[EqualityKeys] = BoundedCache(lambda keys: 1000 + keys.nbytes)
