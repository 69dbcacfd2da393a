"""``LanceBackend``: rows of a Lance dataset by index."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import MissingExtraError, NothingFoundError, ReadError
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords, whole_number
from headrace.process import PerProcess
from headrace.sources.backend import Backend
from headrace.sources.files.protocol import rows_only
from headrace.sources.lance.opened import Handle, LanceFailure, lance_options, located
from headrace.storage import (
    Access,
    Options,
    Redaction,
    ResolvedOptions,
    protocol_of,
    resolve_options,
)

T = TypeVar("T")
_BATCH_BYTES = 8 << 20
_FIRST_ROWS = 64


class _OpenVersion(NamedTuple):
    """An open version, and the options with which it was opened.

    Attributes:
        handle: The open version.
        resolved: The options of the user, and how long they are valid.
        hidden: Hides the secrets of the options in errors.
    """

    handle: Handle
    resolved: ResolvedOptions
    hidden: Redaction


@dataclass(slots=True)
class _Own:
    """The handle of the version that this process has opened."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: _OpenVersion | None = None


@checked_keywords
class LanceBackend(Backend):
    """Rows of a Lance dataset at one version; its fragments are the shards.

    ``version`` is a number or a tag; None is the newest version at this time. It is looked up once,
    when the backend is made: copies in other processes read the same rows, even if the dataset
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
        self._row_bytes: dict[tuple[str, ...], float] = {}
        self.uri = located(uri)
        """Location of the dataset."""
        self._access = Access(storage_options=storage_options or {})  # which does not show them
        self._own = PerProcess(_Own)
        self._version = version
        self._metadata = self._ask(Handle.metadata)
        self._version = self._metadata.version

    @property
    def name(self) -> str:
        return "lance"

    @property
    def version(self) -> int:
        """Number of the version that is read."""
        return self._metadata.version

    @property
    def schema(self) -> pa.Schema:
        return self._metadata.schema

    @computed_once
    def shard_rows(self) -> Int64Array:
        return np.array(self._metadata.rows, np.int64)

    @property
    def shard_names(self) -> Sequence[str]:
        return [f"{self.uri}/fragment {number}" for number in self._metadata.fragments]

    @property
    def locations(self) -> Sequence[str]:
        return [self.uri]

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        return self._metadata.sizes

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return self._metadata.files

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
        if not len(schema):
            return rows_only(len(rows))  # Lance does not read rows without columns
        self._opened()
        try:
            return self._columns(schema, ask)
        except ReadError as error:
            failed = error
        for shard, places, _ in self.located(rows):
            try:
                self._columns(schema, _taking(rows[places], schema))
            except ReadError as found:
                file = self._metadata.files[shard]
                failed = ReadError(f"{found}; it is in {self.shard_names[shard]} (data/{file})")
                break
        raise failed

    def _columns(self, schema: pa.Schema, ask: Callable[[Handle], pa.Table]) -> pa.Table:
        table = self._ask(ask)
        same = table.schema.equals(schema, check_metadata=True)
        return table if same else pa.Table.from_arrays(table.columns, schema=schema)

    def _ask(self, ask: Callable[[Handle], T]) -> T:
        opened = self._opened()
        try:
            return ask(opened.handle)
        except LanceFailure as error:
            reason = opened.hidden(str(error))
        raise ReadError(f"{self.uri} (version {self._version}) cannot be read: {reason}")

    def _opened(self) -> _OpenVersion:
        """Return the version, opened in this process."""
        own = self._own.get()
        with own.lock:
            if own.opened is None or own.opened.resolved.stale:
                own.opened = self._open()
            return own.opened

    def _open(self) -> _OpenVersion:
        if importlib.util.find_spec("lance") is None:
            raise MissingExtraError.for_extra("lance", "pylance")
        if protocol_of(self.uri) == "" and not os.path.isdir(f"{self.uri}/_versions"):
            raise NothingFoundError(
                f"{self.uri} is not a Lance dataset: it has no directory _versions"
            )
        resolved = resolve_options(self._access.storage_options)
        given, expires_at = lance_options(self.uri, resolved.options)
        if expires_at is not None:
            resolved = replace(resolved, expires_at=expires_at.timestamp(), renewable=True)
        hidden = Redaction({**resolved.options, **(given or {})})
        try:
            return _OpenVersion(Handle(self.uri, self._version, given), resolved, hidden)
        except LanceFailure as error:
            reason = hidden(str(error))
        if self._version is not None and "not found" in reason.lower():
            raise NothingFoundError(
                f"{self.uri} has no version or tag {self._version!r}: it never existed, or was "
                f"removed by a cleanup ({reason})"
            )
        raise ReadError(f"{self.uri} cannot be opened as a Lance dataset: {reason}")

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
