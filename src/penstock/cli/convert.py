"""``penstock convert``: a source in another form, its rows in the order that they have.

What a form needs beside a source and a target stands in a group of its own. ``--codec`` and
``--overwrite`` are shared: which codecs there are depends on ``--to``.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from penstock.access import Backend
from penstock.archives.record_codecs import CODECS
from penstock.cli import convert_video
from penstock.cli.command import Command
from penstock.cli.shuffle_into import Bar
from penstock.cli.sources import (
    TABLES,
    chosen_backend,
    chosen_columns,
    chosen_source,
    chosen_storage,
)
from penstock.errors import OptionError
from penstock.write.array_record import write_array_record

__all__ = ["CONVERT"]


_OPTIONS_OF = {
    "array-record": ["group_size", "compression", "shard_records", "format", "catalog", "columns"],
    "video-frames": [
        *("quality", "size", "fps", "every", "fragment_bytes"),
        *("on_error", "target_options", "work_dir"),
    ],
}
"""what is said by options that no other form has"""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="files, directories, globs, URLs; for records also a Lance table or ArrayRecord files",
    )
    parser.add_argument("target", metavar="TARGET", help="a file or a directory, made by this")
    parser.add_argument("--to", required=True, choices=list(_OPTIONS_OF), help="the form of TARGET")
    parser.add_argument("--codec", help="how a row or a frame is packed")
    parser.add_argument("--overwrite", action="store_true", help="replace what is at TARGET")
    parser.add_argument("--storage-options", metavar="JSON", help="credentials for SOURCE")
    records = parser.add_argument_group("array-record", "rows of tabular files as records")
    records.add_argument("--group-size", type=int, default=1, help="records compressed as one")
    records.add_argument("--compression", default="zstd:3", help="such as zstd:3, brotli:6, none")
    records.add_argument(
        "--shard-records", type=int, help="records of a file; TARGET is then a directory"
    )
    records.add_argument(
        "--format", help="of files, or one of iceberg, paimon, lance, array-record"
    )
    records.add_argument("--catalog", metavar="JSON", help="catalog_config of a table")
    records.add_argument("--columns", metavar="A,B", help="the columns to write (default: all)")
    convert_video.add_arguments(parser)
    parser.set_defaults(refuse=partial(_refuse_options, parser))


def _refuse_options(parser: ArgumentParser, arguments: Namespace) -> None:
    """End with a message if there are options of another form."""
    for form, names in _OPTIONS_OF.items():
        for name in names:
            if form != arguments.to and getattr(arguments, name) != parser.get_default(name):
                option = name.replace("_", "-")
                parser.error(f"--{option} has no effect with --to {arguments.to}: it is of {form}")


def _run(arguments: Namespace) -> int:
    arguments.refuse(arguments)
    convert = convert_video.run if arguments.to == "video-frames" else _to_array_record
    try:
        return convert(arguments)
    except OptionError as error:
        said = str(error).replace("overwrite=True", "--overwrite")
        raise OptionError(said.replace("shard_records", "--shard-records")) from error


def _to_array_record(arguments: Namespace) -> int:
    bar = Bar(sys.stderr)
    source = _source(arguments)
    is_path = isinstance(source, str | list)
    is_table = not is_path and not isinstance(source, Backend)
    try:
        report = write_array_record(
            source,
            arguments.target,
            codec=arguments.codec or CODECS[0],
            group_size=arguments.group_size,
            compression=arguments.compression,
            shard_records=arguments.shard_records,
            format=arguments.format if is_path else None,
            columns=None if is_table else chosen_columns(arguments),
            storage_options=chosen_storage(arguments) if is_path else None,
            overwrite=arguments.overwrite,
            progress=bar,
        )
    finally:
        bar.close()
    files = len(report.files)
    print(f"{report.rows:,} rows in {files:,} file{'s' if files != 1 else ''}: {report.target}")
    return 0


def _source(arguments: Namespace) -> Any:
    source = arguments.source
    if len(source) == 1:
        source = source[0]
    elif arguments.format in TABLES:
        raise OptionError(f"one table of {arguments.format} is converted at a time")
    backend = chosen_backend(source, arguments)
    return chosen_source(source, arguments) if backend is None else backend


CONVERT = Command("convert", "Write a source in another form, in its order.", _add_arguments, _run)
