"""``ArrowDataset``: the rows of Arrow IPC files or of a table, streamed or by index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

import pyarrow as pa

from headrace.access.arrow.backend import ArrowBackend
from headrace.loader.backend_dataset import BackendDataset
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.settings import DatasetOptions, PathLike, Settings

__all__ = ["ArrowDataset", "ArrowOptions"]


class ArrowOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``ArrowDataset.create_dataloader``."""

    shard_row_counts: Sequence[int] | None
    schema: pa.Schema | None


class ArrowDataset(BackendDataset):
    """Rows of Arrow IPC files and streams, or of a table in memory.

    ``rows`` gives them by index. Columns are those of the first file, and all files have the same;
    ``StructuredDataset`` brings files together that differ.
    """

    def __init__(
        self,
        source: PathLike | Sequence[PathLike] | pa.Table,
        *,
        shard_row_counts: Sequence[int] | None = None,
        schema: pa.Schema | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        if isinstance(source, pa.Table):
            backend = ArrowBackend(table=source, shard_row_counts=shard_row_counts, schema=schema)
        else:
            backend = ArrowBackend(
                source,
                shard_row_counts=shard_row_counts,
                schema=schema,
                access=settings.access(),
                on_error=settings.on_error,
            )
        super().__init__(backend, "arrow", settings)

    @classmethod
    def create_dataloader(
        cls,
        source: PathLike | Sequence[PathLike] | pa.Table,
        **options: Unpack[ArrowOptions],
    ) -> tuple[StatefulLoader, ArrowDataset]:
        """A DataLoader over the rows, and the dataset behind it.

        See ``StructuredDataset.create_dataloader`` for workers and ranks.
        """
        return create_loader(partial(cls, source), options)
