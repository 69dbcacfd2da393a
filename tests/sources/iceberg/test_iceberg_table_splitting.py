"""Files with deletes are shared by many readers: every row that is left comes once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numbered_tables import all_ids, ids_in, loader_of, make_table, numbers
from pyiceberg.table import Table
from writers.catalogs import WritingCatalog
from writers.data_files import append_orc_data, append_rows
from writers.delete_files import append_equality_deletes, append_position_deletes
from writers.deletion_vectors import append_deletion_vectors
from writers.second_readers import DuckDB, rows_by_pyiceberg

ROWS, GROUP_ROWS = 20_000, 1_000
GONE = sorted({*range(0, ROWS, 7), *range(4_990, 7_010), 0, ROWS - 1})
LEFT = sorted({*range(ROWS)} - {*GONE})
NAME = "tests.db.t"


def by_position(table: Table, path: str) -> None:
    append_position_deletes(table, {path: GONE}, row_group_rows=500)


def by_position_in_orc(table: Table, path: str) -> None:
    append_position_deletes(table, {path: GONE}, file_format="orc")


def by_two_files_that_overlap(table: Table, path: str) -> None:
    append_position_deletes(table, {path: GONE[: len(GONE) * 2 // 3]})
    append_position_deletes(table, {path: GONE[len(GONE) // 3 :]})


def by_vector(table: Table, path: str) -> None:
    append_deletion_vectors(table, {path: GONE})


def by_equality(table: Table, path: str) -> None:
    append_equality_deletes(table, ["id"], [(one,) for one in GONE])


def by_everything(table: Table, path: str) -> None:
    third = len(GONE) // 3
    append_position_deletes(table, {path: GONE[:third]})
    append_equality_deletes(table, ["x"], [(0.5 * one,) for one in GONE[third : 2 * third]])
    # A vector says all that is deleted by position: what files say no longer counts.
    append_deletion_vectors(table, {path: [*GONE[:third], *GONE[2 * third :]]})


DELETES: list[tuple[Callable[[Table, str], None], int]] = [
    (by_position, 2),
    (by_position_in_orc, 2),
    (by_two_files_that_overlap, 2),
    (by_vector, 3),
    (by_equality, 2),
    (by_everything, 3),
]


def table_with_deletes(
    catalog: WritingCatalog, delete: Callable[[Table, str], None], version: int
) -> Table:
    table = make_table(catalog, files=0, group_rows=GROUP_ROWS, **{"format-version": str(version)})
    (path,) = append_rows(table, numbers(0, ROWS))
    delete(table, path)
    return table


@pytest.mark.parametrize(("delete", "version"), DELETES)
def test_one_file_is_shared_by_all_lanes(
    catalog: WritingCatalog, delete: Callable[[Table, str], None], version: int
) -> None:
    table_with_deletes(catalog, delete, version)
    config = catalog.properties_for_users
    for options in ({}, {"split_rows": 333}, {"split_bytes": 4096}, {"split_rows": 2500}):
        loader, dataset = loader_of(NAME, config, lanes=4, batch_size=128, **options)
        assert sorted(ids_in(loader)) == LEFT
        if options:
            lanes = [lane.file_splits for lane in dataset.splits]
            assert len(lanes) == 4
            assert all(lanes)
            assert len({split.file.path for lane in lanes for split in lane}) == 1


@pytest.mark.parametrize(("delete", "version"), [DELETES[0], DELETES[3], DELETES[4]])
def test_worker_processes_share_one_file(
    catalog: WritingCatalog, delete: Callable[[Table, str], None], version: int
) -> None:
    table_with_deletes(catalog, delete, version)
    loader, _ = loader_of(
        NAME,
        catalog.properties_for_users,
        num_workers=2,
        lanes=4,
        split_rows=700,
        batch_size=128,
        shuffle=True,
    )
    first, second = ids_in(loader), ids_in(loader)
    assert sorted(first) == sorted(second) == LEFT
    assert first != second


def test_order_is_that_of_the_table_without_its_deleted_rows(catalog: WritingCatalog) -> None:
    table_with_deletes(catalog, by_position, 2)
    config = catalog.properties_for_users
    assert ids_in(loader_of(NAME, config, lanes=1)[0]) == LEFT
    assert ids_in(loader_of(NAME, config, lanes=1, split_rows=123)[0]) == LEFT


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_with_deletes_goes_on_where_it_was(catalog: WritingCatalog, workers: int) -> None:
    table_with_deletes(catalog, by_position, 2)
    options: dict[str, Any] = {
        "lanes": 4,
        "num_workers": workers,
        "split_rows": 700,
        "batch_size": 64,
        "shuffle": True,
        "mix": 3,
    }
    config = catalog.properties_for_users
    whole = [ids_in([batch]) for batch in loader_of(NAME, config, **options)[0]]
    loader, _ = loader_of(NAME, config, **options)
    batches = iter(loader)
    taken = [ids_in([next(batches)]) for _ in range(57)]
    state = loader.state_dict()
    del batches
    again, _ = loader_of(NAME, config, **options)
    again.load_state_dict(state)
    rest = [ids_in([batch]) for batch in again]
    assert taken + rest == whole
    assert sorted(one for batch in whole for one in batch) == LEFT


def test_filters_see_the_rows_that_are_left(catalog: WritingCatalog) -> None:
    table_with_deletes(catalog, by_everything, 3)
    config = catalog.properties_for_users
    keep = (pc.field("id") >= 4_000) & (pc.field("id") < 9_500) & (pc.field("x") != 2_000.0)
    expected = [one for one in LEFT if 4_000 <= one < 9_500 and 0.5 * one != 2_000.0]
    for options in ({}, {"columns": ["id"]}, {"split_rows": 450}):
        assert all_ids(NAME, config, filters=keep, lanes=4, **options) == expected


def test_stripes_of_orc_are_shared_too(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=0)
    (path,) = append_orc_data(table, numbers(0, ROWS), stripe_rows=GROUP_ROWS)
    append_position_deletes(table, {path: GONE[: len(GONE) // 2]}, file_format="orc")
    append_equality_deletes(
        table, ["id"], [(one,) for one in GONE[len(GONE) // 2 :]], file_format="orc"
    )
    for options in ({}, {"split_rows": 700}):
        assert all_ids(NAME, catalog.properties_for_users, lanes=4, **options) == LEFT


def test_files_of_which_no_row_is_left(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=3, rows=40, group_rows=7)
    paths = sorted({task.file.file_path for task in table.scan().plan_files()})
    append_position_deletes(table, {path: range(40) for path in paths[:2]})
    left = sorted(rows_by_pyiceberg(table).column("id").to_pylist())
    assert len(left) == 40
    for options in ({}, {"split_rows": 5}, {"shuffle": True}):
        assert all_ids(NAME, catalog.properties_for_users, lanes=3, **options) == left
    append_position_deletes(table, {paths[2]: range(40)})
    assert all_ids(NAME, catalog.properties_for_users, lanes=1) == []


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_duckdb_deletes(
    catalog: WritingCatalog, serve_catalog: Callable[..., Any], version: int
) -> None:
    """Position deletes in version 2, deletion vectors in version 3, by another's hand."""
    table = make_table(
        catalog, files=2, rows=5_000, group_rows=500, **{"format-version": str(version)}
    )
    server = serve_catalog(catalog)
    duck = DuckDB()
    duck.attach(server.url)
    duck.execute("DELETE FROM rest.db.t WHERE id % 3 = 0")
    duck.execute("DELETE FROM rest.db.t WHERE id BETWEEN 4500 AND 5600")
    duck.execute("INSERT INTO rest.db.t VALUES (7, 3.5), (100000, 1.0)")
    duck.execute("UPDATE rest.db.t SET x = -1 WHERE id = 7")
    expected = duck.query("SELECT id, x FROM rest.db.t ORDER BY id, x")
    duck.close()
    table.refresh()
    for config, name in ((catalog.properties_for_users, NAME), (server.properties, "db.t")):
        for options in ({}, {"split_rows": 321, "shuffle": True}):
            loader, _ = loader_of(name, config, lanes=4, output_format="arrow", **options)
            rows = pa.concat_tables(as_table(batch) for batch in loader)
            order = [("id", "ascending"), ("x", "ascending")]
            assert rows.sort_by(order).to_pydict() == expected.to_pydict()


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_duckdb_deletes_after_the_partitions_changed(
    catalog: WritingCatalog, serve_catalog: Callable[..., Any], version: int
) -> None:
    """DuckDB 1.5.5 files deletes under the newest spec, whatever that of the data file is."""
    table = make_table(catalog, files=1, rows=50, **{"format-version": str(version)})
    with table.update_spec() as changing:
        changing.add_identity("x")
    append_rows(table, numbers(50, 3))
    duck = DuckDB()
    duck.attach(serve_catalog(catalog).url)
    duck.execute("DELETE FROM rest.db.t WHERE id < 10 OR id = 51")
    duck.close()
    left = [*range(10, 51), 52]
    assert all_ids(NAME, catalog.properties_for_users, lanes=2) == left


def as_table(batch: pa.Table | pa.RecordBatch) -> pa.Table:
    return batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])


def test_many_files_with_one_file_of_deletes(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=12, rows=30, group_rows=9)
    chosen = np.random.default_rng(5)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    append_position_deletes(
        table, {path: sorted(map(int, chosen.choice(30, 11, replace=False))) for path in paths}
    )
    expected = sorted(rows_by_pyiceberg(table).column("id").to_pylist())
    assert len(expected) == 12 * 19
    for options in ({}, {"split_rows": 4}, {"num_workers": 2, "shuffle": True, "split_rows": 8}):
        assert all_ids(NAME, catalog.properties_for_users, lanes=4, **options) == expected
