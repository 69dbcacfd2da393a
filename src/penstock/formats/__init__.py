"""Tabular files: what is in them, and their rows as Arrow tables."""

from penstock.formats.discovered import Discovered
from penstock.formats.discovery import discover
from penstock.formats.protocol import FileFacts, Format
from penstock.formats.reader import TabularReader
from penstock.formats.registry import FORMAT_NAMES

__all__ = ["FORMAT_NAMES", "Discovered", "FileFacts", "Format", "TabularReader", "discover"]
