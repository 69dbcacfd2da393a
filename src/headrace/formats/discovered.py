"""A data set as it was found, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.dataset as ds

from headrace.formats.reader import TabularReader
from headrace.model import FileList
from headrace.storage import Listing

__all__ = ["Discovered"]


@dataclass(frozen=True, slots=True)
class Discovered:
    """All that planning and reading need."""

    reader: TabularReader
    files: FileList
    """those that may hold rows, in their order"""
    roots: Sequence[str] = ()
    """directories that hold the files; what counts of a path is below them"""
    filter: ds.Expression | None = None
    """what was asked for, unless paths alone settled it; the reader applies what is still open"""
    broken: Sequence[str] = ()
    """why files were left out under ``on_error="skip"``, a line each"""
    counts: Mapping[str, int] = field(default_factory=dict)
    """what was asked of the store"""
    listing: Listing | None = None
    """what can be saved as a manifest, where files were listed"""
    version: tuple[int, int] | None = None
    """of a table: its snapshot and schema, by their ids"""
    has_deletes: bool = False
    """whether rows of the files are deleted, so that only reading them tells how many are left"""

    @property
    def counted(self) -> bool:
        """Whether the number of rows that will come out is known."""
        known = bool((self.files.counts >= 0).all())
        return known and self.reader.filter is None and not self.has_deletes
