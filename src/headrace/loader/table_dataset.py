"""Datasets over tables that have versions: one of them is read until another is asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.loader.agreement import Agreement
from headrace.loader.dataset import TabularDataset
from headrace.loader.fingerprint import Fingerprint
from headrace.loader.ranks import Ranks, is_initialised
from headrace.loader.settings import Settings
from headrace.loader.state import check_state

__all__ = ["OpenTable", "TableDataset"]

logger = logging.getLogger(__name__)


class OpenTable(Protocol):
    """A table that is bound to its process, as its catalog is."""

    @property
    def lent(self) -> object:
        """Credentials for its files that the catalog gave, which may be others another time."""
        ...

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Ids of the snapshot that is wanted, and of the schema that goes with it."""
        ...

    def discover(self, version: tuple[int, int]) -> Discovered:
        """What there is to read in a snapshot."""
        ...


class TableDataset(TabularDataset):
    """Rows of a table at one snapshot."""

    def __init__(self, table: OpenTable, settings: Settings, *, is_fixed: bool) -> None:
        """``is_fixed``: which snapshot is wanted does not depend on when one looks."""
        self._table: OpenTable | None = table
        self._is_fixed = is_fixed
        version = self._agreed(table.newest(), settings.ranks)
        super().__init__(table.discover(version), settings)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None of a table into which nothing was ever written."""
        return self._version[0] if self._version[0] != -1 else None

    def refresh(self) -> int | None:
        """Go on with the table as it is now, from the next iteration on; gives its snapshot.

        What is being iterated goes on as it began. In a distributed job every rank calls it, and
        all take the snapshot that the first one sees. Credentials that the catalog lends are
        renewed.
        """
        lent = self._opened.lent
        version = self._agreed(self._opened.newest(reload=True), self.ranks)
        if version != self._version or self._opened.lent != lent:
            self._move(self._opened.discover(version))
        return self.snapshot_id

    def move_to(self, state: Mapping[str, Any]) -> None:
        version = Fingerprint.version_of(state)
        if version is not None and version != self._version:
            check_state(state)
            found = self._opened.discover(version)
            self._check_state_of(found, state)
            self._move(found)

    def _agreed(self, version: tuple[int, int], ranks: Ranks) -> tuple[int, int]:
        """The version that the first rank sees, where ranks can ask each other."""
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
        assert self._found.version is not None
        return self._found.version

    @property
    def _opened(self) -> OpenTable:
        if self._table is None:
            raise OptionError("a copy of the dataset in another process stays at its snapshot")
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_table": None}  # workers never talk to the catalog
