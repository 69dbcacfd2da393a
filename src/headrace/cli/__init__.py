"""The command line: ``headrace COMMAND``. A command is one file, and one line in COMMANDS."""

from headrace.cli.entry import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]
