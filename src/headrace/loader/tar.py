"""``TarDataset``: samples of tar shards, streamed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import pyarrow as pa

from headrace.access import BucketBatchSampler
from headrace.access.streaming import BackendRows
from headrace.access.tar.backend import TarBackend
from headrace.access.tar.decoding import Decode
from headrace.archives.tar.finding import Source
from headrace.convert import Converter
from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.formats.filters import columns_of
from headrace.loader.backend_dataset import BackendDataset
from headrace.loader.bucketed import BUCKET_OPTIONS, BucketedLoader, refuse_streaming
from headrace.loader.creating import LoaderOptions, create_dataset, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.options import check_flag
from headrace.loader.pipeline import Pipeline
from headrace.loader.rank_comparison import RankComparison
from headrace.loader.row_access import rows_of
from headrace.loader.settings import DatasetOptions, Settings
from headrace.loader.workers import WorkerOptions

__all__ = ["TarDataset", "TarOptions"]


class TarDatasetOptions(DatasetOptions, total=False):
    """Keywords of ``TarDataset``."""

    metadata: Source | None
    decode: Decode | None
    load_file_data: bool
    max_file_size: int | str | None


class TarOptions(TarDatasetOptions, LoaderOptions, total=False):
    """Keywords of ``TarDataset.create_dataloader``."""

    bucketed: bool
    key: str
    target_pixel_area: int | None
    target_resolution_multiple: int
    round_to: int | None


class TarDataset(BackendDataset):
    """Samples of tars, which are members that share a key: a column a field, and their keys.

    ``source`` is a tar, a directory, a glob, a URL or a list of such. ``metadata`` says where the
    indexes are, if not beside the tars; what has none is scanned once. Payloads are bytes unless
    ``decode`` says otherwise; see ``TarBackend`` for that, for ``load_file_data=False``, which
    reads no payloads, and for ``max_file_size``.
    """

    def __init__(
        self,
        source: Source,
        *,
        metadata: Source | None = None,
        decode: Decode | None = None,
        load_file_data: bool = True,
        max_file_size: int | str | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        check_flag("load_file_data", load_file_data)
        backend = TarBackend(
            source,
            metadata=metadata,
            decode=decode,
            load_file_data=load_file_data,
            max_file_size=max_file_size,
            access=settings.access(),
            on_error=settings.on_error,
        )
        if settings.output_format == "arrow" and backend.given:
            raise OptionError(
                'what functions in decode= return has no place in output_format="arrow"; choose '
                "torch, numpy or dict"
            )
        super().__init__(backend, "tar", settings)

    def _read_from(self, found: Discovered) -> None:
        super()._read_from(found)
        if self._settings.output_format in ("torch", "numpy"):
            self.pipeline = _copying_once(self.pipeline, self._settings)

    @classmethod
    def create_dataloader(
        cls, source: Source, **options: Unpack[TarOptions]
    ) -> tuple[StatefulLoader | BucketedLoader, TarDataset]:
        """A DataLoader over the samples, and the dataset behind it.

        With ``bucketed=True`` its batches hold images of one shape each: see ``aspect_buckets``
        for ``key``, ``target_pixel_area``, ``target_resolution_multiple`` and ``round_to``, and
        BucketBatchSampler for the order. ``batch_size`` may then be a function of (width, height).
        See ``StructuredDataset.create_dataloader`` for workers and ranks.
        """
        given: dict[str, Any] = dict(options)
        bucketed = given.pop("bucketed", False)
        check_flag("bucketed", bucketed)
        if bucketed:
            return cls._create_bucketed(source, given)
        for name in BUCKET_OPTIONS:
            if name in given:
                raise OptionError(f"{name} has no effect without bucketed=True")
        return create_loader(partial(cls, source), given)

    @classmethod
    def _create_bucketed(
        cls, source: Source, options: dict[str, Any]
    ) -> tuple[BucketedLoader, TarDataset]:
        refuse_streaming(options)
        rule = {name: options.pop(name) for name in BUCKET_OPTIONS if name in options}
        batch_size = options.pop("batch_size", 1024)
        dataset, of_loader, count = create_dataset(partial(cls, source), options)
        settings, ranks = dataset._settings, dataset.ranks
        sampler = BucketBatchSampler(
            dataset.backend.aspect_buckets(**rule),
            batch_size,
            shuffle=settings.shuffle,
            seed=settings.shuffle_seed,
            drop_last=settings.drop_last,
            rank=ranks.rank,
            world_size=ranks.size,
            unknown=settings.on_error,
        )
        workers = WorkerOptions(
            count,
            of_loader.multiprocessing_context,
            of_loader.persistent_workers,
            of_loader.prefetch_factor,
            of_loader.timeout,
            of_loader.worker_init_fn,
        )
        loader = BucketedLoader(
            rows_of(dataset._found, replace(settings, transform=None, collate_fn=None)),
            sampler,
            workers=workers,
            fork_safe=dataset.fork_safe,
            finish=settings.finish,
            pin_memory=of_loader.pin_memory,
            comparison=RankComparison(
                ranks,
                dataset.compared_files,
                lambda: {"batch_size, shuffle, drop_last or a bucket": sampler.state_dict()},
            ),
        )
        return loader, dataset

    @property
    def backend(self) -> TarBackend:
        """What gives samples by their number."""
        backend = super().backend
        assert isinstance(backend, TarBackend)
        return backend


def _copying_once(pipeline: Pipeline, settings: Settings) -> Pipeline:
    """The same, but that bytes are copied from their tars when batches are cut, and not before."""
    rows = pipeline.reader.rows
    assert isinstance(rows, BackendRows)
    backend = rows.backend
    assert isinstance(backend, TarBackend)
    if not backend.collection.store.local or pipeline.reader.cache_bytes:
        return pipeline  # what is kept for later must hold its bytes itself
    keep = pipeline.reader.filter
    filtered = set() if keep is None else set(columns_of(keep, backend.schema))
    lending = backend.lending([name for name in backend.schema.names if name not in filtered])
    schema, read_schema = (
        pa.schema([lending.schema.field(name) for name in one.names])
        for one in (pipeline.reader.schema, pipeline.reader.read_schema)
    )
    reader = replace(
        pipeline.reader,
        rows=replace(rows, backend=lending),
        schema=schema,
        read_schema=read_schema,
    )
    converter = Converter(
        schema, settings.output_format, nulls=settings.nulls, ragged=settings.ragged
    )
    return replace(pipeline, reader=reader, converter=converter)
