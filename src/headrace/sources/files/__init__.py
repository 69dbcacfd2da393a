"""Tabular files: what is in them, and their rows as Arrow tables."""

from headrace.sources.files.discovery import discover
from headrace.sources.files.protocol import FileFacts, Format
from headrace.sources.files.registry import FORMAT_NAMES

__all__ = ["FORMAT_NAMES", "FileFacts", "Format", "discover"]
