"""``headrace inspect``: show what a location holds, from metadata alone."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from headrace.convert.arrays import dense_type
from headrace.sources.files.discovery import FORMAT_NAMES, discover
from headrace.sources.kind import kind_of
from headrace.sources.tar.source import TarBackend
from headrace.storage import shown_location

_BATCH_SIZE = 1024
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def examine(location: str, format: str | None) -> dict[str, Any]:
    """Return the facts in the metadata of every file; None if only reading the data would tell."""
    is_tar = format == "tar" or (format is None and kind_of(location) == "tar")
    found = TarBackend(location).found() if is_tar else discover(location, format)
    files = found.files
    sizes = [file.file_size for file in files]
    groups = [file.row_groups for file in files]
    counts = [file.record_count for file in files]
    rows = None if None in counts else sum(count or 0 for count in counts)
    return {
        "location": shown_location(location),
        "format": found.reader.source.name,
        "files": len(files),
        "size_bytes": None if None in sizes else sum(size or 0 for size in sizes),
        "rows": rows,
        "row_groups": None if None in groups else sum(len(group or ()) for group in groups),
        "batch_size": _BATCH_SIZE,
        "batches": None if rows is None else -(-rows // _BATCH_SIZE),
        "columns": [
            {"name": field.name, "type": str(field.type), "torch": _torch_form(field.type)}
            for field in found.reader.schema
        ],
    }


def _torch_form(type_: pa.DataType) -> str:
    """
    >>> _torch_form(pa.uint16()), _torch_form(pa.list_(pa.float32(), 16)), _torch_form(pa.string())
    ('torch.int32', 'torch.float32[16]', 'list')
    """
    dense = dense_type(type_, for_torch=True)
    if dense is None:
        return "dict" if pa.types.is_struct(type_) else "list"
    shape = [dense.shape[axis] for axis in dense.axes or range(len(dense.shape))]
    return f"torch.{dense.dtype}{shape or ''}"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("location", metavar="URL", help="a file, a directory, a glob or a URL")
    parser.add_argument(
        "--format",
        help=f"{', '.join(FORMAT_NAMES)} or tar (default: by the extension)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    report = examine(arguments.location, arguments.format)
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(_lines(report)))
    return 0


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    size, columns = report["size_bytes"], report["columns"]
    yield f"location    {report['location']}"
    yield f"format      {report['format']}"
    yield f"files       {report['files']:,}"
    yield f"size        {'unknown' if size is None else _human_size(size)}"
    yield f"rows        {_count(report['rows'])}"
    yield f"row groups  {_count(report['row_groups'])}"
    yield f"batches     {_count(report['batches'])} of {report['batch_size']:,} rows"
    yield f"columns     {len(columns):,}"
    names = max((len(column["name"]) for column in columns), default=0)
    types = max((len(column["type"]) for column in columns), default=0)
    for column in columns:
        yield f"  {column['name']:<{names}}  {column['type']:<{types}}  {column['torch']}"


def _count(number: int | None) -> str:
    return "unknown until read" if number is None else f"{number:,}"


def _human_size(size_bytes: int) -> str:
    """
    >>> _human_size(512), _human_size(3 * 2**20)
    ('512 bytes', '3.0 MiB')
    """
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[0]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
