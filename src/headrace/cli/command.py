"""A command of the command line: a module that is imported when the command is typed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

__all__ = ["Command"]


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. A HeadraceError out of ``run`` becomes one line and exit code 2.

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
