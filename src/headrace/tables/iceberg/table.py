"""An Iceberg table while it is open: finds snapshots, and what there is to read in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.model import IcebergDataFileInfo
from headrace.storage import Access
from headrace.tables.iceberg.catalog import load_table, reading_metadata
from headrace.tables.iceberg.discovery import Scan, discover_snapshot
from headrace.tables.iceberg.snapshots import Wanted, is_known, pin, pin_again

__all__ = ["IcebergTable"]


class IcebergTable:
    """A table and what is wanted of it. Bound to its process, as the catalog is."""

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any] | Catalog | None,
        wanted: Wanted,
        scan: Scan,
    ) -> None:
        self._name = name
        self._config = config
        self._wanted = wanted
        self._scan = scan
        self._table: Table = load_table(name, config)

    @classmethod
    def load(
        cls,
        name: str,
        config: Mapping[str, Any] | Catalog | None,
        *,
        wanted: Mapping[str, Any],
        columns: Sequence[str] | None,
        filter: ds.Expression | None,
        scan_filter: BooleanExpression | None,
        access: Callable[[Callable[[], Mapping[str, Any]]], Access],
        split_rows: int | None,
        split_bytes: int,
    ) -> IcebergTable:
        """A table of a catalog; ``wanted`` says which of its snapshots."""
        if scan_filter is not None and not isinstance(scan_filter, BooleanExpression):
            raise OptionError(
                f"scan_filter must be a pyiceberg expression, not {scan_filter!r}; a pyarrow "
                "expression is given as filters"
            )

        def is_cut(file: IcebergDataFileInfo) -> bool:
            if split_rows is not None:
                return (file.record_count or 0) > split_rows
            return (file.file_size or 0) > split_bytes

        scan = Scan(columns, filter, scan_filter, access, is_cut)
        return cls(name, config, Wanted(**wanted), scan)

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Ids of the snapshot that is wanted, and of the schema that goes with it."""
        if reload:
            self._table = load_table(self._name, self._config)
        return pin(self._name, self._table, self._wanted).version

    def discover(self, version: tuple[int, int]) -> Discovered:
        """What there is to read in a snapshot, which may be younger than what was loaded."""
        if not is_known(self._table, version):
            self._table = load_table(self._name, self._config)
        pinned = pin_again(self._name, self._table, version)
        return reading_metadata(
            self._name, self._table, lambda: discover_snapshot(pinned, self._scan)
        )
