"""``penstock convert``: a source in another form, its rows in the order that they have.

What a form needs beside a source and a target stands in a group of its own. ``--codec`` and
``--overwrite`` are shared: which codecs there are depends on ``--to``.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from penstock.archives.record_codecs import CODECS
from penstock.cli import convert_video
from penstock.cli.command import Command
from penstock.cli.shuffle_into import Bar
from penstock.cli.sources import TABLES, chosen_columns, chosen_source, chosen_storage
from penstock.errors import OptionError
from penstock.write.array_record import write_array_record

__all__ = ["CONVERT"]


_FORMS = ("array-record", "video-frames")


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", nargs="+", help="files, directories, globs, URLs"
    )
    parser.add_argument("target", metavar="TARGET", help="a file or a directory, made by this")
    parser.add_argument("--to", required=True, choices=_FORMS, help="the form of TARGET")
    parser.add_argument("--codec", help="how a row or a frame is packed")
    parser.add_argument("--overwrite", action="store_true", help="replace what is at TARGET")
    parser.add_argument("--storage-options", metavar="JSON", help="credentials for SOURCE")
    records = parser.add_argument_group("array-record", "rows of tabular files as records")
    records.add_argument("--group-size", type=int, default=1, help="records compressed as one")
    records.add_argument("--compression", default="zstd:3", help="such as zstd:3, brotli:6, none")
    records.add_argument(
        "--shard-records", type=int, help="records of a file; TARGET is then a directory"
    )
    records.add_argument("--format", help="of the source; iceberg and paimon are tables")
    records.add_argument("--catalog", metavar="JSON", help="catalog_config of a table")
    records.add_argument("--columns", metavar="A,B", help="the columns to write (default: all)")
    convert_video.add_arguments(parser)


def _run(arguments: Namespace) -> int:
    if arguments.to == "video-frames":
        return convert_video.run(arguments)
    bar = Bar(sys.stderr)
    is_table = arguments.format in TABLES
    try:
        report = write_array_record(
            _source(arguments),
            arguments.target,
            codec=arguments.codec or CODECS[0],
            group_size=arguments.group_size,
            compression=arguments.compression,
            shard_records=arguments.shard_records,
            format=None if is_table else arguments.format,
            columns=None if is_table else chosen_columns(arguments),
            storage_options=None if is_table else chosen_storage(arguments),
            overwrite=arguments.overwrite,
            progress=bar,
        )
    finally:
        bar.close()
    files = len(report.files)
    print(f"{report.rows:,} rows in {files:,} file{'s' if files != 1 else ''}: {report.target}")
    return 0


def _source(arguments: Namespace) -> Any:
    if len(arguments.source) == 1:
        return chosen_source(arguments.source[0], arguments)
    if arguments.format in TABLES:
        raise OptionError(f"one table of {arguments.format} is converted at a time")
    return chosen_source(arguments.source, arguments)


CONVERT = Command("convert", "Write a source in another form, in its order.", _add_arguments, _run)
