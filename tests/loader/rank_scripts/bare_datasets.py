"""Warnings in a rank that iterates over a dataset without a loader."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from headrace import StructuredDataset


def warnings_of(folder: Path, **options: Any) -> list[str]:
    """Return the row counts of three passes over a dataset, and their warnings."""
    dataset = StructuredDataset(folder, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        passes = [sum(len(batch["id"]) for batch in dataset) for _ in range(2)]
        passes += [sum(len(batch["id"]) for batch in DataLoader(dataset, batch_size=None))]
    return [*map(str, passes), *(str(one.message) for one in caught)]


def with_and_without_rank(folder: Path, rank: int) -> dict[str, list[str]]:
    return {
        "bare": warnings_of(folder),
        "given": warnings_of(folder, rank=rank, world_size=2),
        "alone": warnings_of(folder, rank=0, world_size=1),
        "loader": warnings_of_loader(folder),
    }


def warnings_of_loader(folder: Path) -> list[str]:
    loader, _ = StructuredDataset.create_dataloader(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
    return [str(one.message) for one in caught]


def work(folder: Path) -> Any:
    """Return all warnings of a rank; ``run_ranks`` calls this in every process."""
    return partial(with_and_without_rank, folder)
