"""A Paimon table while it is open: finds snapshots, and what there is to read in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.dataset as ds
from pypaimon.table.file_store_table import FileStoreTable

from penstock.formats.discovered import Discovered
from penstock.storage import Access
from penstock.tables.paimon.catalog import explained, hiding, load_table
from penstock.tables.paimon.discovery import Scan, discover_snapshot
from penstock.tables.paimon.snapshots import Wanted, pin, pin_again

__all__ = ["PaimonTable"]


class PaimonTable:
    """A table and what is wanted of it."""

    def __init__(self, name: str, wanted: Wanted, scan: Scan) -> None:
        self._name = name
        self._wanted = wanted
        self._scan = scan
        self._hidden = hiding(scan.catalog_options)
        self._table: FileStoreTable = load_table(name, scan.catalog_options)

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
        access: Callable[[Mapping[str, Any]], Access],
    ) -> PaimonTable:
        """A table of a catalog; ``wanted`` says which of its snapshots."""
        scan = Scan(columns, filter, partition_filter, catalog_options, access)
        return cls(name, Wanted(**wanted), scan)

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Ids of the snapshot that is wanted, and of the schema that goes with it."""
        if reload:
            self._table = load_table(self._name, self._scan.catalog_options)
        with explained(f"table {self._name!r}", self._hidden):
            return pin(self._name, self._table, self._wanted).version

    def discover(self, version: tuple[int, int]) -> Discovered:
        """What there is to read in a snapshot."""
        with explained(f"table {self._name!r}", self._hidden):
            return discover_snapshot(pin_again(self._name, self._table, version), self._scan)
