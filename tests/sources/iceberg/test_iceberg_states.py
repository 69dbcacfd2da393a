"""What a state remembers of its snapshot, and how a run goes on with it."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from moving_tables import ALL, change_everything, rename_x
from numbered_tables import ids_in, loader_of, make_table, numbers
from table_processes import read_on_in_a_new_process
from writers.catalogs import WritingCatalog
from writers.committing import data_files
from writers.data_files import append_rows
from writers.delete_files import append_equality_deletes, append_position_deletes

from headrace.errors import NothingFoundError, SchemaError, StateMismatchError


@pytest.mark.parametrize(
    ("deletes", "options"),
    [
        (False, {"batch_size": 7}),
        (False, {"shuffle": True, "split_rows": 15, "mix": 2}),
        (True, {}),
        (True, {"num_workers": 2, "lanes": 2}),
        (True, {"shuffle": True, "split_rows": 15, "mix": 2, "num_workers": 3}),
    ],
    ids=str,
)
def test_a_run_goes_on_in_another_process_after_the_table_moved_on(
    catalog: WritingCatalog, deletes: bool, options: dict[str, Any]
) -> None:
    table = make_table(catalog)
    left = set(ALL)
    if deletes:
        paths = [file.file_path for file in data_files(table)]
        append_position_deletes(table, {path: [3, 5] for path in paths})
        append_equality_deletes(table, ["id"], [(70,), (119,)])
        left -= {3, 5, 43, 45, 83, 85, 70, 119}
    order = {name: value for name, value in options.items() if name in ("shuffle", "split_rows")}
    order |= {"mix": options["mix"]} if "mix" in options else {}
    loader, _ = loader_of("db.t", catalog, **order)
    seen = ids_in(islice(loader, 4))
    state = json.loads(json.dumps(loader.state_dict()))
    change_everything(table)
    config = catalog.properties_for_users
    rest, after = read_on_in_a_new_process(config, state, options)
    assert sorted(seen + rest) == sorted(left)
    assert sorted(after) == sorted(left)


def test_columns_of_the_state_s_schema_need_its_snapshot(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    loader, dataset = loader_of("db.t", catalog, columns=["x", "id"])
    seen = ids_in(islice(loader, 4))
    state = loader.state_dict()
    rename_x(table)
    with pytest.raises(SchemaError, match="'x'"):
        loader_of("db.t", catalog, columns=["x", "id"])
    again, _ = loader_of("db.t", catalog, columns=["x", "id"], snapshot_id=dataset.snapshot_id)
    again.load_state_dict(state)
    assert sorted(seen + ids_in(again)) == ALL


def test_a_state_of_what_came_after_the_table_was_loaded(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    older, dataset = loader_of("db.t", catalog)
    rename_x(table)
    younger, _ = loader_of("db.t", catalog)
    older.load_state_dict(younger.state_dict())
    assert dataset.schema.names == ["id", "y"]
    append_rows(table, numbers(500, 5).rename_columns(["id", "y"]))
    youngest, _ = loader_of("db.t", catalog)
    older.load_state_dict(youngest.state_dict())
    assert dataset.num_rows == 125
    assert sorted(ids_in(older)) == [*ALL, *range(500, 505)]


def test_a_snapshot_that_has_expired(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    loader, dataset = loader_of("db.t", catalog)
    seen = ids_in(islice(loader, 4))
    state, gone = loader.state_dict(), dataset.snapshot_id
    append_rows(table, numbers(500, 5))
    table.maintenance.expire_snapshots().by_id(gone).commit()
    again, newer = loader_of("tests.db.t", catalog)
    with pytest.raises(NothingFoundError, match=rf"'tests\.db\.t' has no snapshot {gone}.*expired"):
        again.load_state_dict(state)
    assert newer.snapshot_id == table.metadata.current_snapshot_id
    assert len(ids_in(again)) == 125
    with pytest.raises(NothingFoundError, match=f"{gone}"):
        loader_of("tests.db.t", catalog, snapshot_id=gone)
    # Who has it still goes on with it: nothing more is asked of the catalog.
    loader.load_state_dict(state)
    assert sorted(seen + ids_in(loader)) == ALL


def test_states_of_something_else(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    make_table(catalog, "db.other")
    loader, dataset = loader_of("db.t", catalog, filters=[("id", ">=", 50)])
    list(islice(loader, 2))
    state = loader.state_dict()
    append_rows(table, numbers(500, 5))
    other_filter, moved = loader_of("db.t", catalog, filters=[("id", ">=", 51)])
    with pytest.raises(StateMismatchError, match="filters differ"):
        other_filter.load_state_dict(state)
    assert moved.snapshot_id == table.metadata.current_snapshot_id != dataset.snapshot_id
    assert sorted(ids_in(other_filter)) == [*range(51, 120), *range(500, 505)]
    for name, kind in (("db.other", NothingFoundError), ("db.t", StateMismatchError)):
        other, _ = loader_of(name, catalog, filters=[("id", ">=", 50)], shuffle=True)
        with pytest.raises(kind):
            other.load_state_dict(state)
    for damaged in (
        {},
        {**state, "plan": None},
        {**state, "plan": [*state["plan"][:-1], ["a", 1]]},
    ):
        same, _ = loader_of("db.t", catalog, filters=[("id", ">=", 50)])
        with pytest.raises(StateMismatchError):
            same.load_state_dict(damaged)
