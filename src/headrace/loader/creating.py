"""``create_dataloader``: a dataset, and the loader over it, for this rank."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, TypedDict, TypeVar

from headrace.access.crew import usable_cores
from headrace.errors import OptionError
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.dataset import TabularDataset
from headrace.loader.options import check_callable, check_count, check_flag, check_seconds
from headrace.loader.ranks import find_ranks

__all__ = ["LoaderOptions", "LoaderSettings", "create_dataset", "create_loader"]

logger = logging.getLogger(__name__)

AnyDataset = TypeVar("AnyDataset", bound=TabularDataset)


class LoaderOptions(TypedDict, total=False):
    """Keywords of every ``create_dataloader`` beside those of the dataset."""

    num_workers: int | None
    accelerator: Any
    process_group: Any
    device_mesh: Any
    pin_memory: bool
    prefetch_factor: int
    persistent_workers: bool
    multiprocessing_context: str | BaseContext | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """What ``LoaderOptions`` say, with their defaults."""

    num_workers: int | None = None
    accelerator: Any = None
    process_group: Any = None
    device_mesh: Any = None
    pin_memory: bool = False
    prefetch_factor: int = 2
    persistent_workers: bool = False
    multiprocessing_context: str | BaseContext | None = None
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        if self.num_workers == 0 and self.persistent_workers:
            raise OptionError(
                "persistent_workers=True has no effect beside num_workers=0: there are no workers"
            )
        if self.num_workers is not None:
            check_count("num_workers", self.num_workers, least=0)
        check_count("prefetch_factor", self.prefetch_factor)
        check_seconds("timeout", self.timeout)
        check_flag("pin_memory", self.pin_memory)
        check_flag("persistent_workers", self.persistent_workers)
        check_callable("worker_init_fn", self.worker_init_fn)


def create_dataset(
    make: Callable[..., AnyDataset], options: Mapping[str, Any]
) -> tuple[AnyDataset, LoaderSettings, int]:
    """A dataset for this rank, and what is left for its loader, with the number of workers."""
    of_loader = {one.name for one in fields(LoaderSettings)}
    settings = LoaderSettings(**{k: v for k, v in options.items() if k in of_loader})
    of_dataset = {k: v for k, v in options.items() if k not in of_loader}
    workers = settings.num_workers
    if workers is None:
        workers = _fitting_workers(of_dataset)
    ranks = find_ranks(
        options.get("rank"),
        options.get("world_size"),
        accelerator=settings.accelerator,
        process_group=settings.process_group,
        device_mesh=settings.device_mesh,
    )
    dataset = make(**{**of_dataset, "rank": ranks, "world_size": None})
    return dataset, settings, workers


def create_loader(
    make: Callable[..., AnyDataset], options: Mapping[str, Any]
) -> tuple[StatefulLoader, AnyDataset]:
    """A loader and its dataset, which ``make`` makes of the keywords that are not the loader's."""
    dataset, settings, workers = create_dataset(make, options)
    planner = dataset.planner
    planner.workers = max(workers, 1)
    planner.evened(planner.crew.start(dataset.epoch).place)  # what cannot be is refused now
    loader = _loader_for(settings.accelerator)(
        dataset,
        num_workers=workers,
        pin_memory=settings.pin_memory,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers,
        multiprocessing_context=settings.multiprocessing_context,
        timeout=settings.timeout,
        worker_init_fn=settings.worker_init_fn,
    )
    return loader, dataset


def _loader_for(accelerator: Any) -> Callable[..., StatefulLoader]:
    """The loader that an accelerator can work with; accelerate is imported only if it has been."""
    accelerate = sys.modules.get("accelerate")
    if accelerate is None or not isinstance(accelerator, accelerate.Accelerator):
        return StatefulLoader
    from headrace.loader.accelerated import AcceleratedLoader

    return partial(AcceleratedLoader, accelerator=accelerator)


def _fitting_workers(options: Mapping[str, Any]) -> int:
    """Threads decode as fast as the machine can; processes are for a user's own Python."""
    if options.get("transform") is None and options.get("collate_fn") is None:
        logger.info("num_workers=0: batches are made by threads of this process")
        return 0
    beside = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # processes that share these cores
    workers = max(1, usable_cores() // beside)
    logger.info("num_workers=%d: transform and collate_fn run in worker processes", workers)
    return workers
