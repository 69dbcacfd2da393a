"""What a person types: ``penstock COMMAND``. A command is one file, and one line in COMMANDS."""

from penstock.cli.command import Command
from penstock.cli.entry import COMMANDS, main

__all__ = ["COMMANDS", "Command", "main"]
