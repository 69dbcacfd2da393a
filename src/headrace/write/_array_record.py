"""``write_array_record``: rows as records of ArrayRecord files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from headrace.access import Backend
from headrace.errors import HeadraceError, OptionError, SchemaError
from headrace.options import CopyOptions, check_count, documented, resolve
from headrace.sources.array_record.codecs import (
    LabelPayload,
    RawRecords,
    WritingCodec,
    writing_codec,
)
from headrace.sources.array_record.files import native
from headrace.sources.values import Misfit, plain_value, table_of, type_of
from headrace.storage import Options, atomic_write
from headrace.write._copier import Journal, Runner, copy
from headrace.write._folders import FolderTarget, file_at, folder_at
from headrace.write._rows import PartSizes, as_rows, row_parts
from headrace.write._targets import PathLike, Receipt, TargetOptions, writing

_MARKER = "_headrace_records.json"
_NOT_ROWS = (
    *(str, bytes, os.PathLike, Mapping, Backend),
    *(pa.Table, pa.RecordBatch, pa.RecordBatchReader),
)
"""Types of sources that are not rows one after the other."""
_ROWS_AT_ONCE = 1024
"""Rows that become one table; the first table decides the columns and their types."""


@dataclass(frozen=True, slots=True)
class ArrayRecordReport:
    """A copy as ArrayRecord files.

    Attributes:
        target: The file, or the directory of the files.
        rows: The number of records.
        files: The files.
        resumed: True if earlier, unfinished work was continued.
    """

    target: str
    rows: int
    files: tuple[str, ...]
    resumed: bool = False


@documented(CopyOptions)
def write_array_record(
    source: Any,
    path: PathLike,
    *,
    codec: str | None = None,
    group_size: int = 1,
    compression: str = "zstd:3",
    shard_records: int | None = None,
    writer_options: Mapping[str, Any] | str | None = None,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    **options: Unpack[CopyOptions],
) -> ArrayRecordReport:
    """Write rows as ArrayRecord files, in order.

    Args:
        source: A table; tables or record batches one after the other; a backend or a dataset of
            this library; paths of files; or rows one after the other: dicts, bytes, or tuples of a
            label and bytes.
        path: The file to write; with ``shard_records`` a directory, or a URL of an object store.
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
        **options: Keywords of all copies.

    Returns:
        The number of rows, and the files.

    Raises:
        OptionError: The target exists, or an option does not fit.
        SchemaError: Rows do not fit the codec, or the columns of the rows before.
        WriteError: The target cannot be written.

    Examples:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/train.array_record"
        >>> write_array_record(({"x": i, "y": i / 2} for i in range(100)), path).rows
        100
    """
    packing = _packing(group_size, compression, shard_records, writer_options)
    given = resolve(CopyOptions, options)
    target = TargetOptions.of(path, given)
    location = target.location
    folder = _place(target, shard_records)
    if not Journal.exists(target.work_dir):
        folder.refuse()  # before rows are taken that come but once
    source, fitting = _tables_of(source)
    rows = as_rows(source, format=format, columns=columns, storage_options=storage_options)
    encoder = _Encoder(codec or fitting, packing)
    writing_codec(encoder.codec, rows.schema)
    copied = copy(
        rows,
        partial(row_parts, rows, PartSizes(shard_records)),
        FolderTarget(folder, encoder),
        target,
        Runner.of(given),
        work={"work": "array_record", **asdict(encoder), "shard_records": shard_records},
    )
    files = (
        [location]
        if shard_records is None
        else [f"{location}/{r['name']}" for r in copied.receipts]
    )
    return ArrayRecordReport(location, copied.rows, tuple(files), copied.resumed)


def _place(target: TargetOptions, shard_records: int | None) -> Any:
    if shard_records is not None:
        return folder_at(target, _MARKER)
    if "://" in target.location:
        raise OptionError(
            f"{target.location} is not on this machine, where a single file is written; give "
            "shard_records to write files into a folder there"
        )
    return file_at(target)


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Writes a file of records."""

    codec: str
    options: str

    def __call__(
        self, folder: Path, part: int, schema: pa.Schema, tables: Iterator[pa.Table]
    ) -> Receipt:
        path = folder / f"part-{part:05d}.array_record"
        codec: WritingCodec = writing_codec(self.codec, schema)
        rows = 0
        with writing(path), atomic_write(path) as partial_path:
            try:
                writer = native().ArrayRecordWriter(str(partial_path), self.options)
            except ValueError as error:
                raise OptionError(f"compression or writer_options: {error}") from error
            for table in tables:
                with _as_os_errors():
                    for record in codec.records(table):
                        writer.write(record)
                rows += table.num_rows
            with _as_os_errors():
                writer.close()
        return {"name": path.name, "rows": rows, "size_bytes": path.stat().st_size}


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise errors of the package as those of the system, which name the file and the cure."""
    try:
        yield
    except HeadraceError:
        raise
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _tables_of(source: Any) -> tuple[Any, str]:
    """Return rows one after the other as tables, any other source as it is; and what codec fits."""
    known = isinstance(source, _NOT_ROWS) or hasattr(source, "pipeline")
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
    """Yield tables of rows; the columns are given, or those of the first rows."""
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


def _packing(
    group_size: int,
    compression: str,
    shard_records: int | None,
    more: Mapping[str, Any] | str | None,
) -> str:
    """Return the options of the package's writer, as text."""
    check_count("group_size", group_size)
    if shard_records is not None:
        check_count("shard_records", shard_records)
    if not isinstance(compression, str):
        raise OptionError(f'compression must be a str such as "zstd:3", not {compression!r}')
    packing = "uncompressed" if compression == "none" else compression
    if not isinstance(more, Mapping | str | None):
        raise OptionError(f"writer_options must be a mapping or a str, not {more!r}")
    if isinstance(more, Mapping):
        more = ",".join(f"{name}:{value}" for name, value in more.items())
    return ",".join(filter(None, [f"group_size:{group_size}", packing, more]))
