"""``StructuredDataset``: tabular files in a directory, a bucket or a list."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, TypedDict, Unpack

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.errors import OptionError
from penstock.formats.discovery import discover
from penstock.loader.cores import usable_cores
from penstock.loader.dataloader import StatefulLoader
from penstock.loader.dataset import TabularDataset
from penstock.loader.options import (
    OrderOptions,
    check_callable,
    check_count,
    check_flag,
    check_mapping,
    check_seconds,
    make_cache,
    make_finish,
    make_requests,
)
from penstock.loader.ranks import find_ranks, given_ranks
from penstock.model import SplitStrategy
from penstock.plan import parse_bytes
from penstock.storage import Access, Options, RetryPolicy

__all__ = ["DatasetOptions", "StructuredDataset"]

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]


class DatasetOptions(TypedDict, total=False):
    """Keywords of ``StructuredDataset``, which ``create_dataloader`` takes too."""

    batch_size: int
    drop_last: bool
    columns: Sequence[str] | None
    filters: ds.Expression | Sequence[Any] | None
    shuffle: bool
    shuffle_seed: int
    split_bytes: int | str | None
    split_rows: int | None
    split_strategy: SplitStrategy | None
    mix: int
    interleave: int
    shuffle_buffer_rows: int | None
    lanes: int | None
    rank: int | None
    world_size: int | None
    even: str | bool | None
    balance: str
    output_format: str
    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None
    schema: pa.Schema | None
    nulls: str | Mapping[str, Any] | None
    ragged: str
    on_error: str
    storage_options: Options | None
    filesystem: Any
    manifest: PathLike | None
    cache_dir: PathLike | None
    cache_bytes: int | str | None
    retries: int
    timeout_s: float
    max_elapsed_s: float
    max_gap_bytes: int | str | None
    max_request_bytes: int | str
    format_options: Mapping[str, Any] | None
    partitioning: str | ds.Partitioning | None
    prefetch_bytes: int | str


class StructuredDataset(TabularDataset):
    """Rows of Parquet, ORC, CSV, JSON, JSONL or Arrow files.

    Building it lists the files and looks once into each of them (a footer, or a first block).
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        format: str | None = "parquet",
        *,
        batch_size: int = 1024,
        drop_last: bool = False,
        columns: Sequence[str] | None = None,
        filters: ds.Expression | Sequence[Any] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | None = None,
        mix: int = 1,
        interleave: int = 1,
        shuffle_buffer_rows: int | None = None,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        even: str | bool | None = None,
        balance: str = "static",
        output_format: str = "torch",
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        schema: pa.Schema | None = None,
        nulls: str | Mapping[str, Any] | None = None,
        ragged: str = "list",
        on_error: str = "raise",
        storage_options: Options | None = None,
        filesystem: Any = None,
        manifest: PathLike | None = None,
        cache_dir: PathLike | None = None,
        cache_bytes: int | str | None = None,
        retries: int = 10,
        timeout_s: float = 30.0,
        max_elapsed_s: float = 300.0,
        max_gap_bytes: int | str | None = None,
        max_request_bytes: int | str = "8MiB",
        format_options: Mapping[str, Any] | None = None,
        partitioning: str | ds.Partitioning | None = None,
        prefetch_bytes: int | str = "256MiB",
    ) -> None:
        order = OrderOptions(
            batch_size=batch_size,
            drop_last=drop_last,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            mix=mix,
            interleave=interleave,
            lanes=lanes,
        )
        ranks = given_ranks(rank, world_size)
        if on_error not in ("raise", "skip"):
            raise OptionError(f'on_error must be "raise" or "skip", not {on_error!r}')
        check_mapping("format_options", format_options)
        finish = make_finish(transform, collate_fn)
        budget = parse_bytes("prefetch_bytes", prefetch_bytes)
        access = Access(
            storage_options={} if storage_options is None else storage_options,
            filesystem=filesystem,
            retry=RetryPolicy(retries, timeout_s, max_elapsed_s),
            requests=make_requests(max_gap_bytes, max_request_bytes),
            cache=make_cache(cache_dir, cache_bytes),
        )
        found = discover(
            path,
            format,
            columns=columns,
            filters=filters,
            schema=schema,
            partitioning=partitioning,
            access=access,
            manifest=manifest,
            format_options=format_options,
            skip_broken=on_error == "skip",
        )
        if shuffle_buffer_rows is not None:
            order = order.mixing(shuffle_buffer_rows, found.files)
        super().__init__(
            found,
            order,
            output_format=output_format,
            nulls=nulls,
            ragged=ragged,
            finish=finish,
            skip_broken=on_error == "skip",
            prefetch_bytes=budget,
            ranks=ranks,
            even=even,
            balance=balance,
        )

    @classmethod
    def create_dataloader(
        cls,
        path: PathLike | Sequence[PathLike],
        format: str | None = "parquet",
        *,
        num_workers: int | None = None,
        accelerator: Any = None,
        process_group: Any = None,
        device_mesh: Any = None,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        multiprocessing_context: str | BaseContext | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        **options: Unpack[DatasetOptions],
    ) -> tuple[StatefulLoader, StructuredDataset]:
        """A DataLoader over the files, and the dataset behind it.

        ``num_workers=None`` reads with threads in this process, unless ``transform`` or
        ``collate_fn`` run Python code for each batch: then with processes.

        In a distributed job each rank gets its share. Which rank this is, of how many, is taken
        from ``rank`` and ``world_size``, from ``process_group`` or ``device_mesh`` (the
        data-parallel part of it), from ``accelerator``, from an initialised
        ``torch.distributed``, or from what the launcher put into the environment.
        """
        if num_workers == 0 and persistent_workers:
            raise OptionError(
                "persistent_workers=True has no effect beside num_workers=0: there are no workers"
            )
        if num_workers is None:
            num_workers = _fitting_workers(options)
        check_count("num_workers", num_workers, least=0)
        check_count("prefetch_factor", prefetch_factor)
        check_seconds("timeout", timeout)
        check_flag("pin_memory", pin_memory)
        check_flag("persistent_workers", persistent_workers)
        check_callable("worker_init_fn", worker_init_fn)
        ranks = find_ranks(
            options.get("rank"),
            options.get("world_size"),
            accelerator=accelerator,
            process_group=process_group,
            device_mesh=device_mesh,
        )
        options["rank"], options["world_size"] = ranks.rank, ranks.size
        dataset = cls(path, format, **options)
        planner = dataset.planner
        planner.ranks, planner.workers = ranks, max(num_workers, 1)
        planner.evened(planner.crew.start(dataset.epoch).place)  # what cannot be is refused now
        loader = _loader_for(accelerator)(
            dataset,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
        )
        return loader, dataset


def _loader_for(accelerator: Any) -> Callable[..., StatefulLoader]:
    """The loader that an accelerator can work with; accelerate is imported only if it has been."""
    accelerate = sys.modules.get("accelerate")
    if accelerate is None or not isinstance(accelerator, accelerate.Accelerator):
        return StatefulLoader
    from penstock.loader.accelerated import AcceleratedLoader

    return partial(AcceleratedLoader, accelerator=accelerator)


def _fitting_workers(options: DatasetOptions) -> int:
    """Threads decode as fast as the machine can; processes are for a user's own Python."""
    if options.get("transform") is None and options.get("collate_fn") is None:
        logger.info("num_workers=0: batches are made by threads of this process")
        return 0
    beside = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # processes that share these cores
    workers = max(1, usable_cores() // beside)
    logger.info("num_workers=%d: transform and collate_fn run in worker processes", workers)
    return workers
