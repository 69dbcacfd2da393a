"""``headrace shuffle-into``: a copy of a source whose rows are in random order."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from headrace.cli.common import Bar, chosen_storage, json_options
from headrace.cli.sources import chosen_columns, opened_source
from headrace.write import ROW_GROUP_ROWS, shuffle_into

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a file, a directory, a glob, a URL; a table, tars"
    )
    parser.add_argument("target", metavar="TARGET", help="a directory or a URL, made by this")
    parser.add_argument(
        "--format",
        help="of the source; taken from the extension if left out; iceberg and paimon are tables",
    )
    parser.add_argument(
        "--catalog", metavar="JSON", help="catalog_config or catalog_options of a table"
    )
    parser.add_argument(
        "--to",
        help="parquet (default), arrow, lance or paimon; .arrow and .lance at TARGET's end do too",
    )
    parser.add_argument("--seed", type=int, default=0, help="which random order (default: 0)")
    parser.add_argument("--memory", default="1GiB", help="for data at a time (default: 1GiB)")
    parser.add_argument(
        "--row-group-rows",
        type=int,
        default=ROW_GROUP_ROWS,
        help=f"rows of a row group (default: {ROW_GROUP_ROWS})",
    )
    parser.add_argument("--file-rows", type=int, help="rows of a file")
    parser.add_argument("--file-bytes", help="size of a file's data in memory (default: 512MiB)")
    parser.add_argument("--compression", help="of the files, such as zstd or none")
    parser.add_argument("--columns", metavar="A,B", help="the columns to copy (default: all)")
    parser.add_argument("--partitioning", choices=["hive"], help="columns in the source's paths")
    parser.add_argument("--work-dir", help="for what is on its way (default: beside TARGET)")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in TARGET")
    for side in ("storage", "target"):
        whose = "SOURCE" if side == "storage" else "TARGET"
        parser.add_argument(
            f"--{side}-options", metavar="JSON", help=f"credentials and the like for {whose}"
        )


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    bar = Bar(sys.stderr)
    source = opened_source(arguments.source, arguments)
    is_path = isinstance(source, str)
    try:
        report = shuffle_into(
            source,
            arguments.target,
            format=arguments.format if is_path else None,
            target_format=arguments.to,
            seed=arguments.seed,
            memory_bytes=arguments.memory,
            row_group_rows=arguments.row_group_rows,
            file_rows=arguments.file_rows,
            file_bytes=arguments.file_bytes,
            compression=arguments.compression,
            columns=chosen_columns(arguments) if is_path else None,
            partitioning=arguments.partitioning,
            storage_options=chosen_storage(arguments) if is_path else None,
            target_options=json_options("--target-options", arguments.target_options),
            work_dir=arguments.work_dir,
            overwrite=arguments.overwrite,
            progress=bar,
        )
    finally:
        bar.close()
    parts = len(report.parts)
    print(
        f"{report.rows:,} rows in {parts:,} {report.format} part{'s' if parts != 1 else ''}: "
        f"{report.target}"
    )
    return 0
