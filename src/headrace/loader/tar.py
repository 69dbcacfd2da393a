"""``TarDataset``: samples of tar shards, streamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self, Unpack

import pyarrow as pa

from headrace.access import BucketBatchSampler
from headrace.access.streaming import BackendRows, discovered
from headrace.access.tar.backend import TarBackend
from headrace.convert import Converter
from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.formats.filters import columns_of
from headrace.loader.bucketed import BucketedLoader, refuse_streaming
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.dataset import TabularDataset, rows_of, store_access
from headrace.loader.pipeline import Pipeline
from headrace.loader.rank_comparison import RankComparison
from headrace.loader.workers import WorkerOptions
from headrace.options import (
    BucketOptions,
    DatasetOptions,
    LoaderOptions,
    Paths,
    TarOptions,
    documented,
    resolve,
    split_options,
)

__all__ = ["TarDataset"]


class TarLoaderOptions(TarOptions, BucketOptions, LoaderOptions, total=False):
    """Keywords of ``TarDataset.create_dataloader``."""


class TarDataset(TabularDataset):
    """Samples of tars, which are members that share a key: a column a field, and their keys.

    Tars that have no index are scanned once. Payloads are bytes unless ``decode`` says otherwise;
    see ``TarBackend``.
    """

    options_class = TarOptions

    @documented(TarOptions, elsewhere={"TarDataset.create_dataloader": BucketOptions})
    def __init__(self, source: Paths, **options: Unpack[TarOptions]) -> None:
        """Open a tar, a directory, a glob, a URL or a list of such."""
        chosen = self._resolve(options)
        backend = TarBackend(
            source,
            metadata=chosen["metadata"],
            decode=chosen["decode"],
            load_file_data=chosen["load_file_data"],
            max_file_size=chosen["max_file_size"],
            access=store_access(chosen),
            on_error=chosen["on_error"],
        )
        if chosen["output_format"] == "arrow" and backend.given:
            raise OptionError(
                'what functions in decode= return has no place in output_format="arrow"; choose '
                "torch, numpy or dict"
            )
        found = discovered(
            backend,
            "tar",
            columns=chosen["columns"],
            filters=chosen["filters"],
            split_rows=chosen["split_rows"],
        )
        super().__init__(replace(found, broken=backend.broken), chosen)

    def _read_from(self, found: Discovered) -> None:
        super()._read_from(found)
        if self._options["output_format"] in ("torch", "numpy"):
            self.pipeline = _copying_once(self.pipeline, self._options)

    @classmethod
    @documented(TarOptions, BucketOptions, LoaderOptions)
    def create_dataloader(
        cls, source: Paths, **options: Unpack[TarLoaderOptions]
    ) -> tuple[StatefulLoader | BucketedLoader, Self]:
        """Return a DataLoader over the samples, and the dataset behind it.

        With ``bucketed=True`` its batches hold images of one shape each, in the order of
        ``BucketBatchSampler``; ``batch_size`` may then be a function of (width, height).
        """
        of_buckets, others = split_options(options, BucketOptions)
        buckets = resolve(BucketOptions, of_buckets)
        if buckets["bucketed"]:
            return cls._create_bucketed(source, buckets, others)
        for name in of_buckets:
            if name != "bucketed":
                raise OptionError(f"{name} has no effect without bucketed=True")
        return cls._create(source, **others)

    @classmethod
    def _create_bucketed(
        cls, source: Paths, buckets: BucketOptions, options: dict[str, Any]
    ) -> tuple[BucketedLoader, Self]:
        refuse_streaming(options)
        batch_size = options.pop("batch_size", 1024)
        of_loader, of_dataset = split_options(options, LoaderOptions)
        dataset = cls(source, **of_dataset)
        chosen, workers = dataset._prepare(resolve(LoaderOptions, of_loader))
        settings, ranks = dataset._options, dataset.ranks
        by_index = settings.copy()  # the loader applies the user's functions to whole batches
        by_index["transform"] = by_index["collate_fn"] = None
        sampler = BucketBatchSampler(
            dataset.backend.aspect_buckets(
                key=buckets["key"],
                target_pixel_area=buckets["target_pixel_area"],
                target_resolution_multiple=buckets["target_resolution_multiple"],
                round_to=buckets["round_to"],
            ),
            batch_size,
            shuffle=settings["shuffle"],
            seed=settings["shuffle_seed"],
            drop_last=settings["drop_last"],
            rank=ranks.rank,
            world_size=ranks.size,
            unknown=settings["on_error"],
        )
        loader = BucketedLoader(
            rows_of(dataset._found, by_index),
            sampler,
            workers=WorkerOptions.of(chosen, workers),
            fork_safe=dataset.fork_safe,
            fingerprint=replace(
                dataset.fingerprint, order=sampler.fingerprint.order, seed=sampler.seed
            ),
            finish=dataset.finish,
            pin_memory=chosen["pin_memory"],
            comparison=RankComparison(
                ranks,
                dataset.compared_files,
                lambda: {
                    "batch_size, shuffle, drop_last or a bucket": sampler.fingerprint.as_list()
                },
            ),
        )
        return loader, dataset

    @property
    def backend(self) -> TarBackend:
        """The backend that gives samples by their number."""
        backend = super().backend
        assert isinstance(backend, TarBackend)
        return backend


def _copying_once(pipeline: Pipeline, options: DatasetOptions) -> Pipeline:
    """Return a pipeline that copies bytes from their tars when batches are cut, and not before."""
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
        schema,
        options["output_format"],
        nulls=options["nulls"],
        ragged=options["ragged"],
        kinds=lending.kinds,
    )
    return replace(pipeline, reader=reader, converter=converter)
