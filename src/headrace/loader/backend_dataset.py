"""Datasets over backends that give rows by index: streamed by the loader like any files."""

from __future__ import annotations

from dataclasses import replace

from headrace.access import Backend
from headrace.access.streaming import discovered
from headrace.loader.dataset import TabularDataset
from headrace.loader.settings import Settings

__all__ = ["BackendDataset"]


class BackendDataset(TabularDataset):
    """Batches of the rows of a backend; ``rows`` gives the same rows by index."""

    def __init__(self, backend: Backend, name: str, settings: Settings) -> None:
        """``name``: what users call the kind of data."""
        found = discovered(
            backend,
            name,
            columns=settings.columns,
            filters=settings.filters,
            split_rows=settings.split_rows,
        )
        broken = getattr(backend, "broken", ())
        super().__init__(replace(found, broken=broken), settings)
