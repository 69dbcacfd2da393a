"""``PaimonDataset``: the rows of a Paimon table at one snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import pyarrow as pa

from headrace.errors import MissingExtraError, OptionError
from headrace.formats.discovered import Discovered
from headrace.formats.filters import to_expression
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.settings import DatasetOptions, Settings
from headrace.loader.table_dataset import TableDataset

__all__ = ["PaimonDataset", "PaimonOptions"]

logger = logging.getLogger(__name__)

PartitionFilter = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""values of the partitions that are wanted, by column; of several, a list"""

_DECODED = 3
"""bytes in memory for each byte of a file, roughly"""


class PaimonOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``PaimonDataset.create_dataloader``."""

    catalog_options: Mapping[str, Any]
    chunk_size: int | None
    partition_filter: PartitionFilter | None
    snapshot_id: int | None
    tag: str | None
    blobs: str


class PaimonDataset(TableDataset):
    """Rows of a Paimon table, as it was at one snapshot.

    The snapshot is chosen when the dataset is made (the newest one, unless ``snapshot_id`` or
    ``tag`` say which) and kept until ``refresh``. A state that was taken in another snapshot takes
    the dataset back to that one.

    ``chunk_size`` is another name of ``split_rows``: files are cut into chunks of so many rows that
    are not deleted, known from the table's manifests alone. Files that have to be merged because
    they may hold the same keys are not cut.

    ``blobs="descriptors"`` gives where blobs are, as pypaimon's ``BlobDescriptor`` has it in bytes,
    instead of what is in them.
    """

    def __init__(
        self,
        table: str,
        catalog_options: Mapping[str, Any],
        *,
        chunk_size: int | None = None,
        partition_filter: PartitionFilter | None = None,
        snapshot_id: int | None = None,
        tag: str | None = None,
        blobs: str = "bytes",
        **options: Unpack[DatasetOptions],
    ) -> None:
        if chunk_size is not None:
            if options.get("split_rows") is not None:
                raise OptionError("chunk_size is another name of split_rows: give one of them")
            options = {**options, "split_rows": chunk_size}
        self._given = settings = Settings(**options)
        try:
            from headrace.tables.paimon.table import PaimonTable
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pypaimon":
                raise
            raise MissingExtraError.for_extra("paimon", "pypaimon") from error
        opened = PaimonTable.load(
            table,
            catalog_options,
            wanted={"snapshot_id": snapshot_id, "tag": tag},
            columns=settings.columns,
            filter=to_expression(settings.filters),
            partition_filter=partition_filter,
            blobs=blobs,
            access=lambda found: settings.access(lambda: found),
        )
        super().__init__(opened, settings, is_fixed=snapshot_id is not None)

    @classmethod
    def create_dataloader(
        cls, table: str, **options: Unpack[PaimonOptions]
    ) -> tuple[StatefulLoader, PaimonDataset]:
        """A DataLoader over the rows of a table, and the dataset behind it.

        ``catalog_options`` go to pypaimon as they are. See ``StructuredDataset.create_dataloader``
        for workers and ranks.
        """
        return create_loader(partial(cls, table), options)

    def _read_from(self, found: Discovered) -> None:
        self._settings = self._fitting(found)
        super()._read_from(found)

    def _check_state_of(self, found: Discovered, state: Mapping[str, Any]) -> None:
        before, self._settings = self._settings, self._fitting(found)
        try:
            super()._check_state_of(found, state)
        finally:
            self._settings = before

    def _fitting(self, found: Discovered) -> Settings:
        """Chunks of so many rows can only be made where rows are counted."""
        if self._given.split_rows is None or (found.files.counts >= 0).all():
            return self._given
        logger.info(
            "rows with the same keys have to be merged: each range of keys in a bucket is one "
            "chunk, whatever its number of rows"
        )
        return replace(self._given, split_rows=None)

    def _provide_for_small_chunks(self) -> None:
        """Chunks that are parts of files: keep what was decoded, in half of the memory."""
        files, rows = self._found.files, self._order.split_rows
        if rows is None or not (files.counts > rows).any():
            return
        half = self.pipeline.prefetch_bytes // 2
        reader = replace(self.pipeline.reader, cache_bytes=half)
        self.pipeline = replace(self.pipeline, reader=reader, prefetch_bytes=half)
        if self._order.shuffle and _decoded_bytes(self._found) > half:
            logger.warning(
                "chunks are parts of row groups, which are decoded whole, and not all of them fit "
                "into memory: a larger prefetch_bytes, larger chunks, or files with small row "
                "groups avoid decoding them again"
            )


def _decoded_bytes(found: Discovered) -> int:
    """About what all rows take once they are decoded."""
    types = found.reader.read_schema.types
    if all(pa.types.is_primitive(one) for one in types):
        return int(found.files.counts.sum()) * int(sum(one.bit_width for one in types)) // 8
    return _DECODED * int(found.files.sizes.sum())
