"""Datasets over tables that have versions: Iceberg, Paimon and Lance.

A dataset reads one version until ``refresh``. Loading a state of another version returns the
dataset to that version.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

import numpy as np

from headrace.errors import MissingExtraError, OptionError
from headrace.loader._agreement import Agreement
from headrace.loader._dataloader import StatefulLoader
from headrace.loader._dataset import TabularDataset, found_in, store_access
from headrace.loader._order import chunk_bytes
from headrace.loader.ranks import Ranks, is_initialised
from headrace.model import FileList
from headrace.options import (
    DatasetOptions,
    IcebergOptions,
    LanceOptions,
    LoaderOptions,
    PaimonOptions,
    arguments,
    documented,
    resolve,
)
from headrace.plan import Chunks, State
from headrace.sources.lance.backend import LanceBackend
from headrace.sources.source import Discovered

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

logger = logging.getLogger(__name__)


class OpenTable(Protocol):
    """A table whose catalog is open in this process, to which it is bound."""

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Return the ids of the wanted snapshot, and of the schema that goes with it."""
        ...

    def discover(self, version: tuple[int, int]) -> Discovered:
        """Return what can be read of a snapshot."""
        ...


class TableDataset(TabularDataset):
    """Rows of a table at one snapshot."""

    def __init__(self, table: OpenTable, options: DatasetOptions, *, is_fixed: bool) -> None:
        """Read the newest wanted snapshot.

        Args:
            table: The table.
            options: All options of the dataset.
            is_fixed: True if the wanted snapshot is the same at any time.
        """
        self._table: OpenTable | None = table
        self._is_fixed = is_fixed
        super().__init__(table.discover(table.newest()), options)

    @property
    def snapshot_id(self) -> int | None:
        """Id of the snapshot that is read; None for a table that was never written."""
        return self._version[0] if self._version[0] != -1 else None

    def refresh(self) -> int | None:
        """Go on with the newest state of the table from the next iteration on; return its snapshot.

        A running iteration goes on as it began. In a distributed job every rank calls it, and all
        take the snapshot that the first rank sees.
        """
        version = self._agreed(self._opened.newest(reload=True), self.ranks)
        if version != self._version:
            self._move(self._opened.discover(version))
        return self.snapshot_id

    def move_to(self, state: State) -> None:
        super().move_to(state)
        version = None if state.data is None else state.data.version
        if version is not None and version != self._version:
            found = self._opened.discover(version)
            self._check_state_of(found, state)
            self._move(found)

    def _join(self, ranks: Ranks) -> None:
        version = self._agreed(self._version, ranks)
        if version != self._version:
            self._move(self._opened.discover(version))
        super()._join(ranks)

    def _agreed(self, version: tuple[int, int], ranks: Ranks) -> tuple[int, int]:
        """Return the version that the first rank sees, if ranks can exchange it."""
        if ranks.size == 1 or self._is_fixed:
            return version
        if ranks.members is None or not is_initialised():
            logger.warning(
                "ranks cannot tell each other which snapshot they read, for torch.distributed is "
                "not initialised: it is %d here; give snapshot_id= (of Lance: version=) if the "
                "table may change",
                version[0],
            )
            return version
        mine = version if ranks.rank == 0 else (-1, -1)
        agreement = Agreement(ranks, name="snapshot")
        try:
            return agreement.agree(mine[0])[1], agreement.agree(mine[1])[1]
        finally:
            agreement.close()

    def _move(self, found: Discovered) -> None:
        before = self._version[0]
        self._read_from(found)
        logger.info("from snapshot %d to %d", before, self._version[0])

    @property
    def _version(self) -> tuple[int, int]:
        version = self.epochs.found.version
        assert version is not None
        return version

    @property
    def _opened(self) -> OpenTable:
        if self._table is None:
            raise OptionError("a copy of the dataset in another process stays at its snapshot")
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_table": None}  # workers never talk to the catalog


@contextmanager
def _of_extra(extra: str, package: str) -> Iterator[None]:
    """Name the extra that installs a package if the package cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtraError.for_extra(extra, package) from error


class IcebergLoaderOptions(IcebergOptions, LoaderOptions, total=False):
    """Keywords of ``IcebergDataset.create_dataloader``."""


class IcebergDataset(TableDataset):
    """Rows of an Iceberg table, as it was at one snapshot.

    The snapshot is chosen when the dataset is made (the newest one, unless ``snapshot_id``,
    ``tag``, ``branch`` or ``as_of`` say which) and kept until ``refresh``.

    Examples:
        ```py
        loader, dataset = IcebergDataset.create_dataloader(
            "prod.sales.orders",
            catalog_config={"type": "rest", "uri": "https://catalog.example.com"},
            filters=ds.field("price") > 10,
            batch_size=1024,
            shuffle=True,
        )
        ```
    """

    @documented(IcebergOptions)
    def __init__(
        self,
        table: str,
        catalog_config: Mapping[str, Any] | Catalog | None = None,
        **options: Unpack[IcebergOptions],
    ) -> None:
        """Load a table.

        Args:
            table: Its name in the catalog.
            catalog_config: Properties that go to pyiceberg as they are, or a catalog.

        Raises:
            NothingFoundError: There is no such table or snapshot.
            MissingExtraError: pyiceberg is not installed.
        """
        chosen = resolve(IcebergOptions, options)
        with _of_extra("iceberg", "pyiceberg"):
            from headrace.sources.iceberg.table import IcebergTable
        access = partial(store_access, chosen)
        opened = IcebergTable(table, catalog_config, chosen, chunk_bytes(chosen), access)
        super().__init__(opened, chosen, is_fixed=chosen["snapshot_id"] is not None)

    @classmethod
    @documented(IcebergOptions, LoaderOptions)
    def create_dataloader(
        cls,
        table: str,
        catalog_config: Mapping[str, Any] | Catalog | None = None,
        **options: Unpack[IcebergLoaderOptions],
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the rows of a table, and the dataset behind it.

        Args:
            table: Its name in the catalog.
            catalog_config: Properties that go to pyiceberg as they are, or a catalog.

        Returns:
            The loader and the dataset.
        """
        return cls._create(table, catalog_config, **options)


class PaimonLoaderOptions(PaimonOptions, LoaderOptions, total=False):
    """Keywords of ``PaimonDataset.create_dataloader``."""


class PaimonDataset(TableDataset):
    """Rows of a Paimon table, as it was at one snapshot.

    The snapshot is chosen when the dataset is made (the newest one, unless ``snapshot_id`` or
    ``tag`` say which) and kept until ``refresh``.

    Files are cut into chunks of ``chunk_size`` rows that are not deleted, known from the table's
    manifests alone. Files of a primary-key table that may hold the same keys are merged while they
    are read: such files are one chunk together, whatever their number of rows.

    Examples:
        ```py
        loader, dataset = PaimonDataset.create_dataloader(
            "sales.orders",
            catalog_options={"warehouse": "s3://bucket/warehouse"},
            chunk_size=1_000,
            batch_size=1024,
            shuffle=True,
        )
        ```
    """

    @documented(PaimonOptions)
    def __init__(
        self, table: str, catalog_options: Mapping[str, Any], **options: Unpack[PaimonOptions]
    ) -> None:
        """Load a table.

        Args:
            table: Its name in the catalog.
            catalog_options: Options that go to pypaimon as they are.

        Raises:
            NothingFoundError: There is no such table or snapshot.
            MissingExtraError: pypaimon is not installed.
        """
        chosen = resolve(PaimonOptions, options)
        if chosen["chunk_size"] is not None:
            chosen["split_rows"] = chosen["chunk_size"]
        with _of_extra("paimon", "pypaimon"):
            from headrace.sources.paimon.table import PaimonTable
        opened = PaimonTable(table, catalog_options, chosen, partial(store_access, chosen))
        super().__init__(opened, chosen, is_fixed=chosen["snapshot_id"] is not None)

    @classmethod
    @documented(PaimonOptions, LoaderOptions)
    def create_dataloader(
        cls, table: str, catalog_options: Mapping[str, Any], **options: Unpack[PaimonLoaderOptions]
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the rows of a table, and the dataset behind it.

        Args:
            table: Its name in the catalog.
            catalog_options: Options that go to pypaimon as they are.

        Returns:
            The loader and the dataset.
        """
        return cls._create(table, catalog_options, **options)

    def _decode_factor(self, files: FileList, chunks: Chunks) -> float:
        """Return the largest number of chunks of a file: each row group may be in all of them."""
        return float(np.bincount(chunks.file, minlength=1).max())


class LanceLoaderOptions(LanceOptions, LoaderOptions, total=False):
    """Keywords of ``LanceDataset.create_dataloader``."""


class LanceDataset(TableDataset):
    """Rows of a Lance dataset, as it was at one version.

    The version is chosen when the dataset is made (the newest one, unless ``version`` says which)
    and kept until ``refresh``. Rows that are deleted are left out, and blobs come as bytes.

    Examples:
        ```python
        from headrace import LanceDataset, shuffle_into

        shuffle_into("data/", "shuffled.lance", seed=1)
        loader, dataset = LanceDataset.create_dataloader("shuffled.lance", batch_size=1000)
        assert dataset.version >= 1
        assert sum(len(batch["id"]) for batch in loader) == 10_000
        ```
    """

    backend: LanceBackend
    """The backend that gives the same rows by index."""

    @documented(LanceOptions)
    def __init__(self, uri: str | os.PathLike[str], **options: Unpack[LanceOptions]) -> None:
        """Open a Lance dataset.

        Args:
            uri: Its path or URL.

        Raises:
            NothingFoundError: There is no such dataset or version.
            MissingExtraError: pylance is not installed.
        """
        chosen = resolve(LanceOptions, options)
        for name in ("filesystem", "cache_dir"):
            if chosen.get(name) is not None:
                raise OptionError(f"{name} has no effect on Lance, which reads by itself")
        table = _LanceVersions(uri, chosen)
        super().__init__(table, chosen, is_fixed=isinstance(chosen["version"], int))

    @property
    def version(self) -> int:
        """The version that is read."""
        return self._version[0]

    @classmethod
    @documented(LanceOptions, LoaderOptions)
    def create_dataloader(
        cls, uri: str | os.PathLike[str], **options: Unpack[LanceLoaderOptions]
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the rows of a dataset, and the dataset behind it.

        Args:
            uri: The path or URL of the Lance dataset.

        Returns:
            The loader and the dataset.
        """
        return cls._create(uri, **options)


class _LanceVersions:
    """The versions of a Lance dataset, each of which is opened on request."""

    def __init__(self, uri: str | os.PathLike[str], options: LanceOptions) -> None:
        self._options = options
        self._at = partial(LanceBackend, uri, **arguments(LanceBackend, options))
        self._newest = self._at()

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        if reload:
            self._newest = self._at()
        return self._newest.version, 0

    def discover(self, version: tuple[int, int]) -> Discovered:
        known = self._newest.version == version[0]
        backend = self._newest if known else self._at(version=version[0])
        found = found_in(backend, self._options, version)
        return replace(found, roots=(backend.uri,))  # a copy at another place is the same data
