"""Tables whose deletes are vectors: rows are counted from manifests, chunks are of live rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from numbered_tables import ids_in, loader_of, make_table
from pyiceberg.table import Table
from writers.catalogs import WritingCatalog
from writers.committing import data_files
from writers.delete_files import append_equality_deletes
from writers.deletion_vectors import append_deletion_vectors

from headrace.errors import ReadError

NAME = "tests.db.t"
FILES, ROWS = 3, 100


def deleted_table(catalog: WritingCatalog, places: dict[int, list[int]]) -> tuple[Table, list[int]]:
    """Return a table with some rows of its files deleted, and the ids that are left."""
    table = make_table(catalog, files=FILES, rows=ROWS, group_rows=30, **{"format-version": "3"})
    firsts = {file.file_path: first for file, first in _first_ids(table)}
    by_number = sorted(firsts, key=lambda path: firsts[path])
    append_deletion_vectors(table, {by_number[file]: rows for file, rows in places.items()})
    gone = {file * ROWS + row for file, rows in places.items() for row in rows}
    return table, [one for one in range(FILES * ROWS) if one not in gone]


def _first_ids(table: Table) -> list[tuple[Any, int]]:
    return [(file, int.from_bytes(file.lower_bounds[1], "little")) for file in data_files(table)]


PLACES = [
    {0: [0], 2: [99]},
    {1: list(range(100))},
    {0: list(range(25, 70)), 1: random.Random(5).sample(range(100), 90)},
    {0: list(range(0, 100, 2)), 1: list(range(30)), 2: list(range(1, 100))},
    {0: list(range(100)), 1: list(range(100)), 2: list(range(100))},
]


@pytest.mark.parametrize("places", PLACES, ids=range(len(PLACES)))
@pytest.mark.parametrize("chunks", [{}, {"split_rows": 7}, {"split_rows": 40, "shuffle": True}])
def test_rows_are_counted_and_read_once(
    catalog: WritingCatalog, places: dict[int, list[int]], chunks: dict[str, Any]
) -> None:
    _, left = deleted_table(catalog, places)
    loader, dataset = loader_of(NAME, catalog.properties_for_users, **chunks)
    assert dataset.num_rows == len(left)
    batches = list(loader)
    assert len(loader) == len(batches) == -(-len(left) // 10)
    assert sorted(ids_in(batches)) == left


def test_ranks_take_the_same_known_number_of_steps(catalog: WritingCatalog) -> None:
    _, left = deleted_table(catalog, PLACES[2])
    seen: list[int] = []
    for rank in range(2):
        loader, _ = loader_of(
            NAME, catalog.properties_for_users, rank=rank, world_size=2, split_rows=9
        )
        batches = list(loader)
        assert len(loader) == len(batches)
        seen += ids_in(batches)
    assert sorted(seen) == left


def test_a_state_in_the_middle_of_deleted_rows(catalog: WritingCatalog) -> None:
    _, left = deleted_table(catalog, PLACES[2])
    settings = {"split_rows": 7, "shuffle": True, "mix": 3}
    loader, _ = loader_of(NAME, catalog.properties_for_users, **settings)
    stream = iter(loader)
    first = ids_in([next(stream) for _ in range(4)])
    state = loader.state_dict()
    del stream
    again, _ = loader_of(NAME, catalog.properties_for_users, **settings)
    again.load_state_dict(state)
    assert sorted(first + ids_in(again)) == left


def test_filters_and_other_deletes_leave_the_count_open(catalog: WritingCatalog) -> None:
    table, left = deleted_table(catalog, PLACES[0])
    config = catalog.properties_for_users
    loader, dataset = loader_of(NAME, config, filters=[("id", ">", 50.5)])
    assert dataset.num_rows is None
    assert sorted(ids_in(loader)) == [one for one in left if one > 50]
    append_equality_deletes(table, ["id"], [(7,)])
    loader, dataset = loader_of(NAME, config)
    assert dataset.num_rows is None
    assert sorted(ids_in(loader)) == [one for one in left if one != 7]


def test_more_deleted_rows_than_there_are(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=1, rows=5, **{"format-version": "3"})
    (file,) = data_files(table)
    append_deletion_vectors(table, {file.file_path: range(6)})
    with pytest.raises(ReadError, match=r"deletes 6 rows of .*which has 5: the table is damaged"):
        loader_of(NAME, catalog.properties_for_users)
