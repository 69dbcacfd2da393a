"""What other processes do with a table: ranks that begin around a change, and runs that go on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numbered_tables import ids_in, loader_of, numbers
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from warm_interpreters import run_warm
from writers.data_files import append_rows

PATIENCE_S = 200.0


def read_on_in_a_new_process(
    config: Any, state: Mapping[str, Any], options: Mapping[str, Any]
) -> list[list[int]]:
    """What `read_on` says there. Its workers are forked, as those of a script are."""
    done = run_warm(__file__, *map(json.dumps, (config, state, options)), timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read_on(config: Any, state: Mapping[str, Any], options: Mapping[str, Any]) -> list[list[int]]:
    """The ids of what a state has left of its epoch, and those of the next one."""
    loader, _ = loader_of("tests.db.t", config, **options)
    loader.load_state_dict(state)
    return [ids_in(loader), ids_in(loader)]


class TellingCatalog(SqlCatalog):
    """Says in a file that it has loaded a table."""

    marker: Path

    def load_table(self, identifier: Any) -> Table:
        loaded = super().load_table(identifier)
        self.marker.touch()
        return loaded


def begin_around_an_append(
    rank: int, *, properties: dict[str, str], marker: Path, first: int, options: dict[str, Any]
) -> tuple[int | None, list[list[int]], list[list[int]]]:
    """One rank loads the table; then the other appends to it and loads it.

    The snapshot, and the ids of the steps of two epochs.
    """
    with TellingCatalog("tests", **properties) as catalog:
        catalog.marker = marker if rank == first else marker.with_suffix(".second")
        if rank != first:
            deadline = time.monotonic() + PATIENCE_S
            while not marker.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            append_rows(SqlCatalog("tests", **properties).load_table("db.t"), numbers(1000, 30))
        loader, dataset = loader_of("db.t", catalog, **options)
        epochs = [[ids_in([batch]) for batch in loader] for _ in range(2)]
        return dataset.snapshot_id, *epochs


def refresh_around_an_append(
    rank: int, *, properties: dict[str, str], marker: Path, options: dict[str, Any]
) -> list[tuple[int | None, list[list[int]]]]:
    """An epoch, an append by rank 1 that rank 0 may see or not, and an epoch after refresh."""
    loader, dataset = loader_of("tests.db.t", {"type": "sql", **properties}, **options)
    seen = [(dataset.snapshot_id, [ids_in([batch]) for batch in loader])]
    if rank == 1:
        append_rows(SqlCatalog("tests", **properties).load_table("db.t"), numbers(1000, 30))
    dataset.refresh()
    return [*seen, (dataset.snapshot_id, [ids_in([batch]) for batch in loader])]


if __name__ == "__main__":
    print(json.dumps(read_on(*map(json.loads, sys.argv[1:]))))
