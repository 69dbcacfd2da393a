"""``IcebergDataset``: the rows of an Iceberg table at one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from headrace.errors import MissingExtraError
from headrace.formats.filters import to_expression
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.settings import DatasetOptions, Settings
from headrace.loader.table_dataset import TableDataset

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression

__all__ = ["IcebergDataset", "IcebergOptions"]


class IcebergOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``IcebergDataset.create_dataloader``."""

    catalog_config: Mapping[str, Any] | Catalog | None
    scan_filter: BooleanExpression | None
    snapshot_id: int | None
    tag: str | None
    branch: str | None
    as_of: datetime | str | int | None


class IcebergDataset(TableDataset):
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
            from headrace.tables.iceberg.table import IcebergTable
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pyiceberg":
                raise
            raise MissingExtraError.for_extra("iceberg", "pyiceberg") from error
        opened = IcebergTable.load(
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
        super().__init__(opened, settings, is_fixed=snapshot_id is not None)

    @classmethod
    def create_dataloader(
        cls, table: str, **options: Unpack[IcebergOptions]
    ) -> tuple[StatefulLoader, IcebergDataset]:
        """A DataLoader over the rows of a table, and the dataset behind it.

        ``catalog_config`` goes to pyiceberg as it is. See ``StructuredDataset.create_dataloader``
        for workers and ranks.
        """
        return create_loader(partial(cls, table), options)
