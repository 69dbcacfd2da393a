"""The ``headrace`` command: from arguments to an exit code."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import headrace
from headrace.cli.audit import AUDIT
from headrace.cli.command import Command
from headrace.cli.convert import CONVERT
from headrace.cli.index import INDEX
from headrace.cli.inspect import INSPECT
from headrace.cli.shuffle_into import SHUFFLE_INTO
from headrace.cli.sources import as_flags
from headrace.errors import HeadraceError

__all__ = ["COMMANDS", "main"]

_INTERRUPTED = 130
"""the exit code of a command that was ended by Ctrl-C"""

COMMANDS: tuple[Command, ...] = (INSPECT, AUDIT, CONVERT, INDEX, SHUFFLE_INTO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; ``arguments`` are those of the process unless given."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = _parser(given)
    parsed = parser.parse_args(given)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        return int(parsed.run(parsed))
    except HeadraceError as error:
        message = as_flags(" ".join(str(error).split()))
        print(f"headrace {parsed.command}: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"headrace {parsed.command}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser(given: Sequence[str]) -> ArgumentParser:
    parser = ArgumentParser(prog="headrace", description="Feed PyTorch training from data files.")
    parser.add_argument("--version", action="version", version=f"headrace {headrace.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name, help=command.summary, description=command.summary
        )
        command.add_arguments(subparser)
        if command.add_more is not None:
            command.add_more(subparser, given)
        subparser.set_defaults(run=command.run)
    return parser
