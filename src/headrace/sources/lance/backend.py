"""``LanceBackend``: rows of a Lance dataset by index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.errors import ReadError
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords, whole_number
from headrace.sources.backend import Backend
from headrace.sources.lance.opened import Handle, LanceVersion
from headrace.storage import Options

_BATCH_BYTES = 8 << 20
_FIRST_ROWS = 64


@checked_keywords
class LanceBackend(Backend):
    """Rows of a Lance dataset at one version; its fragments are the shards.

    ``version`` is a number or a tag; None is the newest version at this time. It is looked up when
    the backend is made, and kept: copies in other processes read the same rows, even if the dataset
    changes. Deleted rows do not count. Blob columns come as bytes.

    ``storage_options`` take the names that all datasets know, and Lance's own. ``batch_readahead``
    is the number of batches that Lance reads ahead within a run of rows.

    Lance does not survive a fork: the user's own ``DataLoader`` needs
    ``multiprocessing_context="forkserver"``.
    """

    fork_safe = False

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        version: int | str | None = None,
        storage_options: Options | None = None,
        batch_readahead: int = 8,
    ) -> None:
        if not isinstance(version, str | None):
            version = whole_number("version", version, 1)
        self._batch_readahead = whole_number("batch_readahead", batch_readahead, 1)
        self._rows = LanceVersion(uri, storage_options or {}, version)
        self._row_bytes: dict[tuple[str, ...], float] = {}

    @property
    def name(self) -> str:
        return "lance"

    @property
    def uri(self) -> str:
        """Location of the dataset."""
        return self._rows.uri

    @property
    def version(self) -> int:
        """Number of the version that is read."""
        return self._rows.found.version

    @property
    def schema(self) -> pa.Schema:
        return self._rows.found.schema

    @computed_once
    def shard_rows(self) -> Int64Array:
        return np.array(self._rows.found.rows, np.int64)

    @property
    def shard_names(self) -> Sequence[str]:
        return [f"{self.uri}/fragment {number}" for number in self._rows.found.fragments]

    @property
    def locations(self) -> Sequence[str]:
        return [self.uri]

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        return self._rows.found.sizes

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return self._rows.found.files

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        return self._read(rows, schema, _taking(rows, schema))

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        ahead = self._batch_readahead
        return self._read(
            np.arange(start, start + length),
            schema,
            lambda handle: handle.slice(start, length, schema.names, ahead),
        )

    def _read(
        self, rows: Int64Array, schema: pa.Schema, ask: Callable[[Handle], pa.Table]
    ) -> pa.Table:
        """Return rows; an error names the first fragment of these rows from which it comes."""
        self._rows.open()
        try:
            return self._rows.read(len(rows), schema, ask)
        except ReadError as error:
            failed = error
        for shard, places, _ in self.located(rows):
            try:
                self._rows.read(len(places), schema, _taking(rows[places], schema))
            except ReadError as found:
                file = self._rows.found.files[shard]
                failed = ReadError(f"{found}; it is in {self.shard_names[shard]} (data/{file})")
                break
        raise failed

    def _batches(self, shard: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return self._streamed(shard, schema, _BATCH_BYTES)

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield rows that follow each other, in tables of about ``block_bytes``.

        Each table is a scan: one scan of all rows is several times slower, and takes more memory.
        """
        names, stop = tuple(schema.names), start + length
        while start < stop:
            row_bytes = self._row_bytes.get(names)
            rows = _FIRST_ROWS if row_bytes is None else max(1, int(block_bytes / row_bytes))
            table = self._slice(start, min(rows, stop - start), schema)
            self._row_bytes[names] = max(table.nbytes / table.num_rows, 1.0)
            start += table.num_rows
            yield table


def _taking(rows: Int64Array, schema: pa.Schema) -> Callable[[Handle], pa.Table]:
    return lambda handle: handle.take(rows.tolist(), schema.names)
