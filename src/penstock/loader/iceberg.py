"""``IcebergDataset``: the rows of an Iceberg table at one snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from penstock.errors import MissingExtraError, OptionError
from penstock.formats.discovered import Discovered
from penstock.formats.filters import to_expression
from penstock.loader.agreement import Agreement
from penstock.loader.creating import LoaderOptions, create_loader
from penstock.loader.dataloader import StatefulLoader
from penstock.loader.dataset import TabularDataset
from penstock.loader.fingerprint import Fingerprint
from penstock.loader.ranks import Ranks, is_initialised
from penstock.loader.settings import DatasetOptions, Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression

    from penstock.tables.iceberg.table import IcebergTable

__all__ = ["IcebergDataset", "IcebergOptions"]

logger = logging.getLogger(__name__)


class IcebergOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``IcebergDataset.create_dataloader``."""

    catalog_config: Mapping[str, Any] | Catalog | None
    scan_filter: BooleanExpression | None
    snapshot_id: int | None
    tag: str | None
    branch: str | None
    as_of: datetime | str | int | None


class IcebergDataset(TabularDataset):
    """Rows of an Iceberg table, as it was at one snapshot.

    The snapshot is chosen when the dataset is made (the newest one, unless ``snapshot_id``,
    ``tag``, ``branch`` or ``as_of`` say which) and kept until ``refresh``. A state that was taken
    in another snapshot takes the dataset back to that one.
    """

    def __init__(
        self,
        table: str,
        catalog_config: Mapping[str, Any] | Catalog | None = None,
        *,
        scan_filter: BooleanExpression | None = None,
        snapshot_id: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | int | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        try:
            from penstock.tables.iceberg.table import IcebergTable
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pyiceberg":
                raise
            raise MissingExtraError.for_extra("iceberg", "pyiceberg") from error
        self._table: IcebergTable | None = IcebergTable.load(
            table,
            catalog_config,
            wanted={"snapshot_id": snapshot_id, "tag": tag, "branch": branch, "as_of": as_of},
            columns=settings.columns,
            filter=to_expression(settings.filters),
            scan_filter=scan_filter,
            access=settings.access,
            split_rows=settings.split_rows,
            split_bytes=settings.largest_chunk_bytes,
        )
        self._is_fixed = snapshot_id is not None
        pinned = self._agreed(self._table.newest(), settings.ranks)
        super().__init__(self._table.discover(pinned), settings)

    @classmethod
    def create_dataloader(
        cls, table: str, **options: Unpack[IcebergOptions]
    ) -> tuple[StatefulLoader, IcebergDataset]:
        """A DataLoader over the rows of a table, and the dataset behind it.

        ``catalog_config`` goes to pyiceberg as it is. See ``StructuredDataset.create_dataloader``
        for workers and ranks.
        """
        return create_loader(partial(cls, table), options)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None of a table into which nothing was ever written."""
        return self._version[0] if self._version[0] != -1 else None

    def refresh(self) -> int | None:
        """Go on with the table as it is now, from the next iteration on; gives its snapshot.

        What is being iterated goes on as it began. In a distributed job every rank calls it, and
        all take the snapshot that the first one sees. Credentials that the catalog lends are
        renewed.
        """
        lent = self._opened.lent
        version = self._agreed(self._opened.newest(reload=True), self.ranks)
        if version != self._version or self._opened.lent != lent:
            self._move(self._opened.discover(version))
        return self.snapshot_id

    def move_to(self, state: Mapping[str, Any]) -> None:
        version = Fingerprint.version_of(state)
        if version is not None and version != self._version:
            found = self._opened.discover(version)
            self._check_state_of(found, state)
            self._move(found)

    def _agreed(self, version: tuple[int, int], ranks: Ranks) -> tuple[int, int]:
        """The version that the first rank sees, where ranks can ask each other."""
        if ranks.size == 1 or self._is_fixed:
            return version
        if ranks.members is None or not is_initialised():
            logger.warning(
                "ranks cannot tell each other which snapshot they read, for torch.distributed is "
                "not initialised: it is %d here; give snapshot_id= if the table may change",
                version[0],
            )
            return version
        return _agreed(version, ranks)

    def _move(self, found: Discovered) -> None:
        before = self._version[0]
        self._read_from(found)
        logger.info("from snapshot %d to %d", before, self._version[0])

    @property
    def _version(self) -> tuple[int, int]:
        assert self._found.version is not None
        return self._found.version

    @property
    def _opened(self) -> IcebergTable:
        if self._table is None:
            raise OptionError("a copy of the dataset in another process stays at its snapshot")
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_table": None}  # workers never talk to the catalog


def _agreed(version: tuple[int, int], ranks: Ranks) -> tuple[int, int]:
    """The version that the first rank has; every rank calls it."""
    mine = version if ranks.rank == 0 else (-1, -1)
    agreement = Agreement(ranks, name="snapshot")
    try:
        return agreement.agree(mine[0])[1], agreement.agree(mine[1])[1]
    finally:
        agreement.close()
