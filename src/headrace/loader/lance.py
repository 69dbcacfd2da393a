"""``LanceDataset``: the rows of a Lance dataset at one version."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Unpack

from headrace.access.lance import LanceBackend
from headrace.access.streaming import BackendRows, discovered
from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.settings import DatasetOptions, Settings
from headrace.loader.table_dataset import TableDataset

__all__ = ["LanceDataset", "LanceOptions"]


class LanceOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``LanceDataset.create_dataloader``."""

    version: int | str | None
    batch_readahead: int


class LanceDataset(TableDataset):
    """Rows of a Lance dataset, as it was at one version.

    The version is chosen when the dataset is made (the newest one, unless ``version`` says which,
    by its number or by a tag) and kept until ``refresh``. A state that was taken in another version
    takes the dataset back to that one. Rows that are deleted are left out, and blobs come as bytes.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        version: int | str | None = None,
        batch_readahead: int = 8,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        for name in ("filesystem", "cache_dir"):
            if getattr(settings, name) is not None:
                raise OptionError(f"{name} has no effect on Lance, which reads by itself")
        table = _Versions(uri, version, batch_readahead, settings)
        super().__init__(table, settings, is_fixed=isinstance(version, int))

    @property
    def version(self) -> int:
        """The version that is read."""
        return self._version[0]

    @property
    def backend(self) -> LanceBackend:
        """The same rows by index."""
        rows = self._found.reader.rows
        assert isinstance(rows, BackendRows)
        assert isinstance(rows.backend, LanceBackend)
        return rows.backend

    @classmethod
    def create_dataloader(
        cls, uri: str | os.PathLike[str], **options: Unpack[LanceOptions]
    ) -> tuple[StatefulLoader, LanceDataset]:
        """A DataLoader over the rows of a dataset, and the dataset behind it.

        See ``StructuredDataset.create_dataloader`` for workers and ranks.
        """
        return create_loader(partial(cls, uri), options)


class _Versions:
    """The versions of a dataset, each of them opened when it is asked for."""

    lent = None

    def __init__(
        self,
        uri: str | os.PathLike[str],
        wanted: int | str | None,
        batch_readahead: int,
        settings: Settings,
    ) -> None:
        self._wanted = wanted
        self._settings = settings
        self._at = partial(
            LanceBackend,
            uri,
            storage_options=settings.storage_options,
            batch_readahead=batch_readahead,
        )
        self._newest = self._at(version=wanted)

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        if reload:
            self._newest = self._at(version=self._wanted)
        return self._newest.version, 0

    def discover(self, version: tuple[int, int]) -> Discovered:
        known = self._newest.version == version[0]
        backend = self._newest if known else self._at(version=version[0])
        found = discovered(
            backend,
            "lance",
            columns=self._settings.columns,
            filters=self._settings.filters,
            split_rows=self._settings.split_rows,
            version=version,
        )
        return replace(found, roots=(backend.uri,))  # a copy of it elsewhere is the same data
