"""Tabular files: what is in them, and their rows as Arrow tables."""

from headrace.formats.discovery import Discovered, discover
from headrace.formats.protocol import FileFacts, Format
from headrace.formats.reader import Source, TabularReader
from headrace.formats.registry import FORMAT_NAMES

__all__ = [
    "FORMAT_NAMES",
    "Discovered",
    "FileFacts",
    "Format",
    "Source",
    "TabularReader",
    "discover",
]
