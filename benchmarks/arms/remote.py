"""The library, reading from S3."""

from __future__ import annotations

from typing import Any

import obstore  # noqa: F401  # imports are done before the clock starts
from data import Data
from remote_store import TWO_COLUMNS, location, storage_options

from arms.registry import Mark, Pieces, arm
from arms.touch import count_rows
from headrace import StatefulLoader, StructuredDataset


def _create(data: Data, kind: str, **options: Any) -> tuple[StatefulLoader, StructuredDataset]:
    return StructuredDataset.create_dataloader(
        location(data, kind),
        "parquet",
        batch_size=1024,
        num_workers=0,
        storage_options=storage_options(),
        **options,
    )


def _read(data: Data, columns: list[str] | None = None) -> Pieces:
    """Read an epoch of a loader that was made before."""
    loader, _ = _create(data, "parquet", columns=columns)
    yield Mark.CLOCK_STARTS
    yield from count_rows(loader, columns=21 if columns is None else len(columns))


@arm("remote.all-20ms", reads="parquet")
@arm("remote.all-100ms", reads="parquet")
@arm("remote.all-capped", reads="parquet")
def read_all_columns(data: Data) -> Pieces:
    yield from _read(data)


@arm("remote.two-20ms", reads="parquet")
def read_two_columns(data: Data) -> Pieces:
    yield from _read(data, TWO_COLUMNS)


@arm("remote.startup-20ms", reads="small")
def start_up(data: Data) -> Pieces:
    """Make a loader that knows its number of batches and the plan of its ranks."""
    loader, dataset = _create(data, "small")
    dataset.plan()
    if len(loader) != -(-data.rows("small") // 1024):
        raise SystemExit(f"{len(loader)} batches are planned")
    yield len(dataset.files)
