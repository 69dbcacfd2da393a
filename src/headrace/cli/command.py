"""What a command of the command line consists of."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Command"]


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. A HeadraceError out of ``run`` becomes one line and exit code 2."""

    name: str
    summary: str
    """one line for ``headrace --help``"""
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    """does the work, prints to stdout, returns the exit code"""
