"""The ``headrace`` command: from arguments to an exit code."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import headrace
from headrace.cli.command import Command
from headrace.errors import HeadraceError

__all__ = ["COMMANDS", "main"]

_INTERRUPTED = 130
"""what a shell says of a command that was ended by Ctrl-C"""

COMMANDS = (
    Command("inspect", "Show what a location holds."),
    Command("audit", "Kill, resume and resize a loader, and count its rows."),
    Command("convert", "Write a source in another form, in its order."),
    Command("index", "Index tars, so that any member is read at once."),
    Command("shuffle-into", "Copy a source, its rows in random order."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; ``arguments`` are those of the process unless given."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser(next((word for word in arguments if not word.startswith("-")), None))
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        return int(parsed.run(parsed))
    except HeadraceError as error:
        print(f"headrace {parsed.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"headrace {parsed.command}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser(chosen: str | None) -> ArgumentParser:
    """Return a parser that knows the arguments of the chosen command only."""
    parser = ArgumentParser(prog="headrace", description="Feed PyTorch training from data files.")
    parser.add_argument("--version", action="version", version=f"headrace {headrace.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name, help=command.summary, description=command.summary
        )
        if command.name == chosen:
            module = command.load()
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser
