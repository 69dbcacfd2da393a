"""``headrace convert``: a source in another form, its rows in the order that they have.

What a form needs beside a source and a target stands in a group of its own. ``--codec`` and
``--overwrite`` are shared: which codecs there are depends on ``--to``.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.access import Backend
from headrace.cli import convert_tar, convert_video
from headrace.cli.common import Bar, chosen_storage
from headrace.cli.sources import TABLES, chosen_backend, chosen_columns, chosen_source
from headrace.errors import OptionError
from headrace.sources.array_record.codecs import CODECS
from headrace.write.array_record import write_array_record

__all__ = ["add_arguments", "run"]


_OF_SOURCE, _OF_TARGET = ("format", "catalog", "columns"), ("target_options", "work_dir")
_OPTIONS_OF = {
    "array-record": ["group_size", "compression", "shard_records", *_OF_SOURCE],
    "tar": [
        *("shard_bytes", "shard_samples", "pattern", "index", "geometry", "no_hash", "no_sidecars"),
        *("field", "key_column", "keys", "metadata", *_OF_SOURCE, *_OF_TARGET),
    ],
    "video-frames": [
        *("quality", "size", "fps", "every", "fragment_bytes", "on_error", *_OF_TARGET),
    ],
}
"""what is said by options that not all forms have"""
_CODECS = ("array-record", "video-frames")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="files, directories, globs, URLs; or a Lance table, ArrayRecord files, tars",
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
    convert_tar.add_arguments(parser)
    convert_video.add_arguments(parser)
    source = parser.add_argument_group("array-record and tar", "what is read")
    source.add_argument(
        "--format", help="of files, or one of folder, tar, iceberg, paimon, lance, array-record"
    )
    source.add_argument("--catalog", metavar="JSON", help="catalog_config of a table")
    source.add_argument("--columns", metavar="A,B", help="the columns to write (default: all)")
    target = parser.add_argument_group("tar and video-frames", "what is written")
    target.add_argument("--target-options", metavar="JSON", help="credentials for TARGET")
    target.add_argument("--work-dir", help="for what is on its way (default: beside TARGET)")
    parser.set_defaults(refuse=partial(_refuse_options, parser))


def _refuse_options(parser: ArgumentParser, arguments: Namespace) -> None:
    """End with a message if there are options of another form."""
    known = _OPTIONS_OF[arguments.to]
    for name in dict.fromkeys(name for names in _OPTIONS_OF.values() for name in names):
        if name not in known and getattr(arguments, name) != parser.get_default(name):
            forms = [form for form, names in _OPTIONS_OF.items() if name in names]
            option = name.replace("_", "-")
            parser.error(
                f"--{option} has no effect with --to {arguments.to}: it is of {' and '.join(forms)}"
            )
    if arguments.codec is not None and arguments.to not in _CODECS:
        parser.error(f"--codec has no effect with --to {arguments.to}")


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    arguments.refuse(arguments)
    try:
        return _FORMS[arguments.to](arguments)
    except OptionError as error:
        said = str(error)
        for name, option in _SAID.items():
            said = said.replace(name, option)
        raise OptionError(said) from error


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


_FORMS: dict[str, Callable[[Namespace], int]] = {
    "array-record": _to_array_record,
    "tar": convert_tar.run,
    "video-frames": convert_video.run,
}
_SAID = {
    "overwrite=True": "--overwrite",
    "shard_records": "--shard-records",
    'keys="number"': "--keys number",
    'keys="prefix"': "--keys prefix",
    "(fields=)": "(--field)",
}
"""what is called otherwise on the command line"""
