"""A Paimon table while it is open: finds snapshots, and what there is to read in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow.dataset as ds
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.storage import Access
from headrace.tables.paimon.catalog import explained, hiding, load_table
from headrace.tables.paimon.discovery import Scan, discover_snapshot
from headrace.tables.paimon.snapshots import Wanted, pin, pin_again

__all__ = ["PaimonTable"]

T = TypeVar("T")


class PaimonTable:
    """A table and what is wanted of it."""

    def __init__(self, name: str, wanted: Wanted, scan: Scan) -> None:
        self._name = name
        self._wanted = wanted
        self._scan = scan
        self._table: FileStoreTable = load_table(name, scan.catalog_options)
        self._hidden = hiding(scan.catalog_options)

    @classmethod
    def load(
        cls,
        name: str,
        catalog_options: Mapping[str, Any],
        *,
        wanted: Mapping[str, Any],
        columns: Sequence[str] | None,
        filter: ds.Expression | None,
        partition_filter: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        blobs: str,
        access: Callable[[Mapping[str, Any]], Access],
    ) -> PaimonTable:
        """A table of a catalog; ``wanted`` says which of its snapshots."""
        if blobs not in ("bytes", "descriptors"):
            raise OptionError(f'blobs must be "bytes" or "descriptors", not {blobs!r}')
        described = blobs == "descriptors"
        scan = Scan(columns, filter, partition_filter, described, catalog_options, access)
        return cls(name, Wanted(**wanted), scan)

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Ids of the snapshot that is wanted, and of the schema that goes with it."""
        if reload:
            self._table = load_table(self._name, self._scan.catalog_options)
        return self._explained(lambda: pin(self._name, self._table, self._wanted).version)

    def discover(self, version: tuple[int, int]) -> Discovered:
        """What there is to read in a snapshot."""
        return self._explained(
            lambda: discover_snapshot(pin_again(self._name, self._table, version), self._scan)
        )

    def _explained(self, action: Callable[[], T]) -> T:
        return explained(f"table {self._name!r}", self._hidden, action)
