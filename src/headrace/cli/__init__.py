"""The command line: ``headrace COMMAND``. A command is one file, and one line in COMMANDS."""

from headrace.cli.command import Command
from headrace.cli.entry import COMMANDS, main

__all__ = ["COMMANDS", "Command", "main"]
