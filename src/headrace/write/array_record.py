"""Rows as records of ArrayRecord files, which appear under their names when they are whole."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.access import Backend
from headrace.errors import OptionError, SchemaError, WriteError
from headrace.sources.array_record.codecs import (
    LabelPayload,
    Misfit,
    RawRecords,
    WritingCodec,
    plain_value,
    table_of,
    type_of,
    writing_codec,
)
from headrace.sources.array_record.files import native
from headrace.storage import Options
from headrace.storage.file_locks import close_locked
from headrace.write.durable import flush_directory
from headrace.write.incoming import Incoming
from headrace.write.source import SourceRows
from headrace.write.work import Progress

__all__ = ["ArrayRecordReport", "write_array_record"]

_PART = re.compile(r"part-\d+\.array_record")
_KNOWN = (
    *(str, bytes, os.PathLike, Mapping, Backend, SourceRows),
    *(pa.Table, pa.RecordBatch, pa.RecordBatchReader),
)
"""sources that are not rows one after the other"""
_ROWS_AT_ONCE = 1024
"""that become a table; the first of them say which columns and types there are"""
_WORK, _NEW, _OLD = ".partial", "new", "old"


@dataclass(frozen=True, slots=True)
class ArrayRecordReport:
    """What was written."""

    target: str
    rows: int
    files: tuple[str, ...]


def write_array_record(
    source: Any,
    path: str | os.PathLike[str],
    *,
    codec: str | None = None,
    group_size: int = 1,
    compression: str = "zstd:3",
    shard_records: int | None = None,
    writer_options: Mapping[str, Any] | str | None = None,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ArrayRecordReport:
    """Write rows as ArrayRecord files, in order.

    Args:
        source: A table; tables or record batches one after the other; a backend or a dataset of
            this library; paths of files; or rows one after the other: dicts, bytes, or tuples of a
            label and bytes.
        path: The file to write; with ``shard_records`` a directory.
        codec: ``"columns"``, ``"label-payload"`` or ``"raw"``; None: what fits the source, which is
            ``"raw"`` for bytes, ``"label-payload"`` for tuples, and else ``"columns"``.
        group_size: How many records are compressed together: 1 if they are to be read at random,
            hundreds to stream them.
        compression: ``zstd`` or ``brotli`` (both with a level: ``zstd:3``), ``snappy`` or ``none``.
        shard_records: How many records a file has.
        writer_options: Other options of ``ArrayRecordWriter``.
        format: The format of the files that ``source`` names.
        columns: The columns to write.
        storage_options: Credentials for the files that ``source`` names.
        overwrite: Replace what is at ``path``.
        progress: Called with a stage and the share of it that is done.

    Returns:
        The number of rows, and the files.

    Raises:
        OptionError: The target exists, or an option does not fit.
        SchemaError: Rows do not fit the codec, or the columns of the rows before.
        WriteError: The target cannot be written.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/train.array_record"
        >>> write_array_record(({"x": i, "y": i / 2} for i in range(100)), path).rows
        100
    """
    options = _options(group_size, compression, shard_records, writer_options)
    target = _local(path)
    if target.exists() and not overwrite:
        raise OptionError(f"{target} exists; give overwrite=True to replace it")
    _check_replaceable(target, shard_records)
    source, fitting = _tables_of(source)
    rows = Incoming.of(
        source, format=format, columns=columns, storage_options=storage_options, progress=progress
    )
    rows.refuse_within(str(target))
    writer = _Writer(writing_codec(codec or fitting, rows.schema), options)
    with _appearing(target) as aside:
        if shard_records is None:
            count, names = writer.write(rows.tables, aside), None
        else:
            count, names = writer.write_shards(rows.tables, aside, shard_records)
        _check_replaceable(target, shard_records)  # again: writing may have taken hours
    if progress is not None:
        progress("writing", 1.0)
    files = [target] if names is None else [target / name for name in names]
    return ArrayRecordReport(str(target), count, tuple(map(str, files)))


def _tables_of(source: Any) -> tuple[Any, str]:
    """Return rows one after the other as tables, any other source as it is; and what codec fits."""
    known = isinstance(source, _KNOWN) or hasattr(source, "pipeline")
    if known or not isinstance(source, Iterable):
        return source, "columns"
    rows = iter(source)
    first = next(rows, None)
    rows = chain([first], rows)
    if isinstance(first, Mapping):
        return _tables(rows, None), "columns"
    if isinstance(first, bytes):
        return _tables(({"record": one} for one in rows), RawRecords.schema), "raw"
    if isinstance(first, tuple):
        return _tables(map(_labelled, rows), LabelPayload.schema), "label-payload"
    return (rows if isinstance(source, Iterator) else source), "columns"


def _labelled(row: Any) -> dict[str, Any]:
    if not isinstance(row, tuple) or len(row) != 2:
        raise SchemaError(f"a row should be a label and bytes, but is {row!r:.80}")
    return {"label": row[0], "payload": row[1]}


def _tables(rows: Iterable[Any], schema: pa.Schema | None) -> Iterator[pa.Table]:
    """Return tables of rows; the columns are given, or those of the first rows."""
    number = 0
    while block := list(islice(rows, _ROWS_AT_ONCE)):
        for place, row in enumerate(block):
            if not isinstance(row, Mapping):
                raise SchemaError(f"row {number + place} is {row!r:.80}, and not a dict")
        plain = [{key: plain_value(value) for key, value in row.items()} for row in block]
        schema = _schema_of(plain) if schema is None else schema
        try:
            yield table_of(plain, schema, schema, {}, inferred=True)
        except Misfit as misfit:
            raise SchemaError(
                f"row {number + misfit.place} does not fit the columns of the first rows: {misfit};"
                " change the row, or write tables, which say what their types are"
            ) from misfit
        number += len(block)


def _schema_of(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the columns of a first row, in types that hold some rows."""
    fields = []
    for name in rows[0]:
        try:
            fields.append(pa.field(name, type_of([row.get(name) for row in rows])))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaError(f"{name!r} is no column: {error}") from error
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes files of records."""

    codec: WritingCodec
    options: str

    def write(self, tables: Iterable[pa.Table], path: Path) -> int:
        """Write a file of all rows, and return their number."""
        writer = self._opened(path)
        rows = 0
        for table in tables:
            for record in self.codec.records(table):
                with _as_write_error(path):
                    writer.write(record)
            rows += table.num_rows
        with _as_write_error(path):
            writer.close()
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        return rows

    def _opened(self, path: Path) -> Any:
        module = native()
        try:
            return module.ArrayRecordWriter(str(path), self.options)
        except ValueError as error:
            raise OptionError(f"compression or writer_options: {error}") from error

    def write_shards(
        self, tables: Iterable[pa.Table], folder: Path, shard_records: int
    ) -> tuple[int, list[str]]:
        """Write files of so many rows each into a new folder; at least one."""
        folder.mkdir()
        rows, names = 0, []
        for shard, parts in groupby(_numbered(tables, shard_records), key=itemgetter(0)):
            names.append(f"part-{shard:05d}.array_record")
            rows += self.write((table for _, table in parts), folder / names[-1])
        if not names:
            names = ["part-00000.array_record"]
            self.write((), folder / names[0])
        flush_directory(folder)
        return rows, names


def _numbered(tables: Iterable[pa.Table], shard_records: int) -> Iterator[tuple[int, pa.Table]]:
    """Return tables cut where shards end, each with the number of its shard."""
    written = 0
    for table in tables:
        start = 0
        while start < table.num_rows:
            shard, held = divmod(written, shard_records)
            part = table.slice(start, shard_records - held)
            yield shard, part
            start += part.num_rows
            written += part.num_rows


def _check_replaceable(target: Path, shard_records: int | None) -> None:
    """Raise an OptionError if more than files of records would go with what is there."""
    if not target.is_dir():
        if shard_records is not None and target.exists():
            raise OptionError(f"{target} is a file, and with shard_records a directory is written")
        return
    if shard_records is None:
        raise OptionError(
            f"{target} is a directory, which no file replaces; name a file, or give shard_records"
        )
    others = [path.name for path in target.iterdir() if not _is_part(path)]
    if others:
        raise OptionError(
            f"{target} holds {min(others)!r}: only directories that hold nothing but "
            "part-*.array_record files are replaced; choose another target"
        )


def _is_part(path: Path) -> bool:
    return _PART.fullmatch(path.name) is not None and path.is_file()


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Give a place for a file or folder; what is there after the block replaces the target.

    It is in a hidden folder of this run's own. An error leaves nothing; what a killed run left is
    cleared by the next one.
    """
    with _as_write_error(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
        work, lock = _own_folder(target)
    try:
        aside = work / _NEW
        yield aside
        with _as_write_error(target):
            _put(aside, target, work / _OLD)
            flush_directory(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        close_locked(lock)


def _own_folder(target: Path) -> tuple[Path, int]:
    """Return a new folder beside the target, and its lock, which others see while it is used."""
    while True:
        work = Path(tempfile.mkdtemp(_WORK, f".{target.name}.", target.parent))
        lock = os.open(work, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if work.exists():  # and nobody took it for a leftover before it was locked
            return work, lock
        close_locked(lock)


def _put(aside: Path, target: Path, replaced: Path) -> None:
    if not target.is_dir():
        aside.replace(target)
        return
    target.rename(replaced)  # for no rename replaces a folder
    try:
        aside.rename(target)
    except OSError:
        if not target.exists():
            replaced.rename(target)
        raise


def _clear_leftovers(target: Path) -> None:
    """Remove the folders of runs that have ended, which nobody holds the lock of."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_WORK}"):
        try:
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if {_NEW, _OLD}.issuperset(os.listdir(lock)):  # and nothing that is not ours
                shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            close_locked(lock)


@contextmanager
def _as_write_error(place: Path) -> Iterator[None]:
    """Raise errors of the system or of the package as a WriteError of ``place``."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise WriteError(f"{place} cannot be written: {error}") from error


def _options(
    group_size: int,
    compression: str,
    shard_records: int | None,
    more: Mapping[str, Any] | str | None,
) -> str:
    """Return the options of the package's writer, as text."""
    for name, value in (("group_size", group_size), ("shard_records", shard_records)):
        if name == "shard_records" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be an int of at least 1, not {value!r}")
    if not isinstance(compression, str):
        raise OptionError(f'compression must be a str such as "zstd:3", not {compression!r}')
    packing = "uncompressed" if compression == "none" else compression
    if not isinstance(more, Mapping | str | None):
        raise OptionError(f"writer_options must be a mapping or a str, not {more!r}")
    if isinstance(more, Mapping):
        more = ",".join(f"{name}:{value}" for name, value in more.items())
    return ",".join(filter(None, [f"group_size:{group_size}", packing, more]))


def _local(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        raise OptionError(
            f"{text} is not on this machine, where records are written; copy the files there "
            "when they are whole"
        )
    return Path(text.removeprefix("file://")).expanduser().absolute()
