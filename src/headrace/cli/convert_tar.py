"""``headrace convert ... --to tar``: a folder, rows or other tars as indexed tar shards."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from headrace.cli.common import Bar, chosen_storage, json_options
from headrace.cli.sources import TABLES, chosen_backend, chosen_columns, chosen_source
from headrace.errors import OptionError
from headrace.loader.datasets import kind_of
from headrace.write.tar_copy import write_tar

__all__ = ["add_arguments", "run"]

_OPENED = ("lance", "array-record")
"""sources that have a backend; of tars members are copied as they are"""


def add_arguments(parser: ArgumentParser) -> None:
    """Options of tars; source, target and overwrite are those of all forms."""
    group = parser.add_argument_group("tar", "a folder, rows or tars as tar shards")
    group.add_argument("--shard-bytes", default="1GiB", help="of a tar at most (default: 1GiB)")
    group.add_argument("--shard-samples", type=int, help="of a tar at most")
    group.add_argument(
        "--pattern",
        default="shard_{:05d}.tar",
        help="of the names of tars (default: shard_{:05d}.tar)",
    )
    group.add_argument(
        "--index",
        choices=["json", "arrow", "none"],
        default="json",
        help="the form of the index beside each tar (default: json)",
    )
    group.add_argument("--geometry", action="store_true", help="note sizes of pictures")
    group.add_argument("--no-hash", action="store_true", help="note no SHA-256")
    group.add_argument("--no-sidecars", action="store_true", help="do not embed JSON sidecars")
    group.add_argument(
        "--field",
        metavar="COLUMN=FIELD",
        action="append",
        default=[],
        help="what a column is called in the tar, such as image=jpg; may be repeated",
    )
    group.add_argument("--key-column", help="holds the keys (default: __key__, or rows numbered)")
    group.add_argument(
        "--keys",
        choices=["keep", "prefix", "number"],
        default="keep",
        help="prefix: the path of each source tar before its keys; number: new ones",
    )
    group.add_argument("--metadata", help="where the indices of source tars are")


def run(arguments: Namespace) -> int:
    """Write the tars, and say how many there are."""
    bar = Bar(sys.stderr)
    source, options = _source(arguments)
    try:
        report = write_tar(
            source,
            arguments.target,
            shard_bytes=arguments.shard_bytes,
            shard_samples=arguments.shard_samples,
            pattern=arguments.pattern,
            index=None if arguments.index == "none" else arguments.index,
            geometry=arguments.geometry,
            hash=not arguments.no_hash,
            sidecars=not arguments.no_sidecars,
            fields=_fields(arguments.field),
            key_column=arguments.key_column,
            keys=arguments.keys,
            metadata=arguments.metadata,
            target_options=json_options("--target-options", arguments.target_options),
            work_dir=arguments.work_dir,
            overwrite=arguments.overwrite,
            progress=bar,
            **options,
        )
    finally:
        bar.close()
    tars = len(report.shards)
    print(f"{report.samples:,} samples in {tars:,} tar{'s' if tars != 1 else ''}: {report.target}")
    return 0


def _source(arguments: Namespace) -> tuple[Any, dict[str, Any]]:
    """What is read, and what is to be said of it: of a table nothing, for it has been opened."""
    source = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    if (arguments.format or kind_of(arguments.source[0])) in _OPENED:
        return chosen_backend(source, arguments), {"columns": chosen_columns(arguments)}
    if arguments.format in TABLES:
        if isinstance(source, list):
            raise OptionError(f"one table of {arguments.format} is converted at a time")
        return chosen_source(source, arguments), {}
    chosen = chosen_source(source, arguments)
    storage, columns = chosen_storage(arguments), chosen_columns(arguments)
    return chosen, {"format": arguments.format, "columns": columns, "storage_options": storage}


def _fields(given: list[str]) -> dict[str, str]:
    fields = {}
    for text in given:
        column, equals, field = text.rpartition("=")
        if not equals or not column or not field:
            raise OptionError(f"--field must be like image=jpg, not {text!r}")
        fields[column] = field
    return fields
