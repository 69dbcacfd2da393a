"""``headrace shuffle-into``: a copy of a source whose rows are in random order."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from headrace.cli.sources import add_options, add_source_arguments, given_options, open_source
from headrace.cli.terminal import counted, progress_bar
from headrace.options import RowCopyOptions, known_options
from headrace.write import shuffle_into


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a file, a directory, a glob, a URL; a table, tars"
    )
    parser.add_argument("target", metavar="TARGET", help="a directory or a URL; it is created")
    parser.add_argument(
        "--to", dest="target_format", help=known_options(RowCopyOptions)["target_format"].doc
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random order (default: 0)")
    parser.add_argument("--memory", default="1GiB", help="for data at a time (default: 1GiB)")
    add_source_arguments(parser)
    add_options(parser, RowCopyOptions, without=["target_format"])


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    source, options = open_source(arguments.source, arguments)
    with progress_bar() as bar:
        report = shuffle_into(
            source,
            arguments.target,
            seed=arguments.seed,
            memory_bytes=arguments.memory,
            progress=bar,
            **given_options(arguments, RowCopyOptions),
            **options,
        )
    print(f"{report.rows:,} rows in {counted(len(report.parts), 'part')}: {report.target}")
    return 0
