"""The ``penstock`` command: from arguments to an exit code."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import penstock
from penstock.cli.audit import AUDIT
from penstock.cli.command import Command
from penstock.cli.convert import CONVERT
from penstock.cli.index import INDEX
from penstock.cli.inspect import INSPECT
from penstock.cli.shuffle_into import SHUFFLE_INTO
from penstock.errors import PenstockError

__all__ = ["COMMANDS", "main"]

_INTERRUPTED = 130
"""what a shell says of a command that was ended by Ctrl-C"""

COMMANDS: tuple[Command, ...] = (INSPECT, AUDIT, CONVERT, INDEX, SHUFFLE_INTO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; ``arguments`` are those of the process unless given."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        return int(parsed.run(parsed))
    except PenstockError as error:
        print(f"penstock {parsed.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"penstock {parsed.command}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="penstock", description="Feed PyTorch training from data files.")
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name, help=command.summary, description=command.summary
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser
