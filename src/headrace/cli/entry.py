"""The ``headrace`` command: from arguments to an exit code."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import headrace
from headrace.cli.terminal import as_flags
from headrace.errors import HeadraceError

_INTERRUPTED = 130
"""The exit code of a command that was ended by Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. A HeadraceError out of ``run`` becomes one line and exit code 2.

    Its module in this package has ``add_arguments(parser)`` and ``run(arguments)``, and is
    imported only for this command: several commands need no torch.

    Attributes:
        name: The word that is typed. Its module has the same name, with underscores.
        summary: One line for ``headrace --help``.
    """

    name: str
    summary: str

    def load(self) -> ModuleType:
        """Import and return the module of the command."""
        return import_module(f"headrace.cli.{self.name.replace('-', '_')}")


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
    parser = _parser(arguments)
    parsed = parser.parse_args(arguments)
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
    """Return a parser that knows the arguments of the given command only."""
    chosen = next((word for word in given if not word.startswith("-")), None)
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
            if hasattr(module, "add_form_arguments"):
                module.add_form_arguments(subparser, given)
            subparser.set_defaults(run=module.run)
    return parser
