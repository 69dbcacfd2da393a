"""``headrace shuffle-into``: a copy of a source whose rows are in random order."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from headrace.cli.sources import add_copy_arguments, copy_options, open_source
from headrace.cli.terminal import counted, progress_bar
from headrace.write import ROW_GROUP_ROWS, shuffle_into


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a file, a directory, a glob, a URL; a table, tars"
    )
    parser.add_argument("target", metavar="TARGET", help="a directory or a URL, made by this")
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
    parser.add_argument("--partitioning", choices=["hive"], help="columns in the source's paths")
    add_copy_arguments(parser)


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    source, options = open_source(arguments.source, arguments)
    with progress_bar() as bar:
        report = shuffle_into(
            source,
            arguments.target,
            target_format=arguments.to,
            seed=arguments.seed,
            memory_bytes=arguments.memory,
            row_group_rows=arguments.row_group_rows,
            file_rows=arguments.file_rows,
            file_bytes=arguments.file_bytes,
            compression=arguments.compression,
            partitioning=arguments.partitioning,
            progress=bar,
            **copy_options(arguments),
            **options,
        )
    parts = counted(len(report.parts), f"{report.format} part")
    print(f"{report.rows:,} rows in {parts}: {report.target}")
    return 0
