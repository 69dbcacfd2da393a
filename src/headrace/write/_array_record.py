"""``write_array_record``: rows as records of ArrayRecord files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from headrace.errors import HeadraceError, OptionError
from headrace.options import RecordCopyOptions, RowSourceOptions, documented, resolve, split_options
from headrace.sources.array_record.codecs import (
    WritingCodec,
    writing_codec,
)
from headrace.sources.array_record.files import native
from headrace.write._copier import CopyReport, Runner, TargetOptions, copy
from headrace.write._folders import OneFile, file_at, files_at
from headrace.write._places import PathLike
from headrace.write._row_sources import TablesAtHand, as_rows
from headrace.write._rows import PartSizes, row_parts

_FITTING: dict[type, str] = {bytes: "raw", tuple: "label-payload"}
"""The codecs that fit rows of these types."""


@documented(RecordCopyOptions)
def write_array_record(
    source: Any,
    path: PathLike,
    *,
    writer_options: Mapping[str, Any] | str | None = None,
    **options: Unpack[RecordCopyOptions],
) -> CopyReport:
    """Write rows as ArrayRecord files, in order.

    Args:
        source: A table; tables or record batches one after the other; a backend or a dataset of
            this library; paths of files; or rows one after the other: dicts, bytes, or tuples of a
            label and bytes.
        path: The file to write; with ``shard_records`` a directory, or a URL of an object store.
        writer_options: Other options of ``ArrayRecordWriter``.
        **options: Keywords of sources of rows, and of all copies to ArrayRecord files.

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
    given = resolve(RecordCopyOptions, options)
    packing = _packing(given["group_size"], given["compression"], writer_options)
    place = TargetOptions.of(path, given)
    shard_records = given["shard_records"]
    rows = as_rows(source, **split_options(given, RowSourceOptions)[0])
    fitting = _FITTING.get(rows.kind, "columns") if isinstance(rows, TablesAtHand) else "columns"
    codec = given["codec"] or fitting
    writing_codec(codec, rows.schema)  # columns that it cannot pack are refused now
    encoder = OneFile("array_record", partial(_write_records, codec, packing))
    single = shard_records is None
    return copy(
        rows.origin,
        partial(row_parts, rows, PartSizes(shard_records)),
        file_at(place, encoder) if single else files_at(place, encoder),
        place,
        Runner.of(given),
        work={
            "work": "array_record",
            "codec": codec,
            "options": packing,
            "shard_records": shard_records,
        },
    )


def _write_records(
    codec: str, options: str, path: Path, schema: pa.Schema, tables: Iterator[pa.Table]
) -> int:
    packing: WritingCodec = writing_codec(codec, schema)
    rows = 0
    try:
        writer = native().ArrayRecordWriter(str(path), options)
    except ValueError as error:
        raise OptionError(f"compression or writer_options: {error}") from error
    for table in tables:
        with _as_os_errors():
            for record in packing.records(table):
                writer.write(record)
        rows += table.num_rows
    with _as_os_errors():
        writer.close()
    return rows


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise errors of the package as those of the system, which name the file and the cure."""
    try:
        yield
    except HeadraceError:
        raise
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _packing(group_size: int, compression: str, more: object) -> str:
    """Return the options of the package's writer, as text."""
    packing = "uncompressed" if compression == "none" else compression
    if not isinstance(more, Mapping | str | None):
        raise OptionError(f"writer_options must be a mapping or a str, not {more!r}")
    if isinstance(more, Mapping):
        more = ",".join(f"{name}:{value}" for name, value in more.items())
    return ",".join(filter(None, [f"group_size:{group_size}", packing, more]))
