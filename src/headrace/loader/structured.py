"""``StructuredDataset``: tabular files in a directory, a bucket or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.formats.discovery import discover
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.dataset import TabularDataset
from headrace.loader.options import check_flag, check_mapping
from headrace.loader.settings import DatasetOptions, PathLike, Settings

__all__ = ["StructuredDataset", "StructuredOptions"]


class StructuredOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``StructuredDataset.create_dataloader``."""

    schema: pa.Schema | None
    partitioning: str | ds.Partitioning | None
    manifest: PathLike | None
    format_options: Mapping[str, Any] | None
    as_files: bool


class StructuredDataset(TabularDataset):
    """Rows of Parquet, ORC, CSV, JSON, JSONL or Arrow files.

    Building it lists the files and looks once into each of them (a footer, or a first block).

    Folders of tables (Delta Lake, Hudi, Iceberg, Lance, Paimon) are refused, and so are parts of
    them: their files hold rows that were deleted. ``as_files=True`` reads them nevertheless.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        format: str | None = "parquet",
        *,
        schema: pa.Schema | None = None,
        partitioning: str | ds.Partitioning | None = None,
        manifest: PathLike | None = None,
        format_options: Mapping[str, Any] | None = None,
        as_files: bool = False,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        check_mapping("format_options", format_options)
        check_flag("as_files", as_files)
        found = discover(
            path,
            format,
            columns=settings.columns,
            filters=settings.filters,
            schema=schema,
            partitioning=partitioning,
            access=settings.access(),
            manifest=manifest,
            format_options=format_options,
            skip_broken=settings.skip_broken,
            as_files=as_files,
        )
        super().__init__(found, settings)

    @classmethod
    def create_dataloader(
        cls,
        path: PathLike | Sequence[PathLike],
        format: str | None = "parquet",
        **options: Unpack[StructuredOptions],
    ) -> tuple[StatefulLoader, StructuredDataset]:
        """A DataLoader over the files, and the dataset behind it.

        ``num_workers=None`` reads with threads in this process, unless ``transform`` or
        ``collate_fn`` run Python code for each batch: then with processes.

        In a distributed job each rank gets its share. Which rank this is, of how many, is taken
        from ``rank`` and ``world_size``, from ``process_group`` or ``device_mesh`` (the
        data-parallel part of it), from ``accelerator``, from an initialised
        ``torch.distributed``, or from what the launcher put into the environment.
        """
        return create_loader(partial(cls, path, format), options)
