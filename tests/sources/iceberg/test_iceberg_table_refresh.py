"""Until when a snapshot is read: epochs keep theirs, and refresh goes to the newest."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from moving_tables import ALL, change_everything
from numbered_tables import ids_in, loader_of, make_table, numbers
from writers.catalogs import WritingCatalog
from writers.committing import commit_files, data_files
from writers.data_files import append_rows
from writers.delete_files import append_position_deletes

from headrace import IcebergDataset

# --- pinned


@pytest.mark.parametrize(("persistent", "num_workers"), [(False, 0), (True, 2)])
def test_a_table_that_moves_on_changes_no_epoch(
    catalog: WritingCatalog, num_workers: int, persistent: bool
) -> None:
    if persistent and not num_workers:
        persistent = False
    table = make_table(catalog)
    loader, dataset = loader_of(
        "db.t", catalog, num_workers=num_workers, persistent_workers=persistent
    )
    running = iter(loader)
    seen = ids_in(islice(running, 2))
    change_everything(table)
    assert sorted(seen + ids_in(running)) == ALL
    assert sorted(ids_in(loader)) == ALL
    assert dataset.num_rows == 120
    dataset.refresh()
    now = [*range(2000, 2010), *range(83, 90), *range(91, 120), *range(1003, 1030)]
    assert sorted(ids_in(loader)) == sorted(now)
    assert dataset.num_rows is None
    assert next(iter(loader)).keys() == {"id", "y"}
    del loader, running


# --- refresh


@pytest.mark.parametrize("num_workers", [0, 2])
def test_refresh_between_epochs(catalog: WritingCatalog, num_workers: int) -> None:
    table = make_table(catalog)
    loader, dataset = loader_of(
        "db.t", catalog, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    assert sorted(ids_in(loader)) == ALL
    assert dataset.refresh() == table.metadata.current_snapshot_id
    assert loader.state_dict()["epoch"] == 1

    append_rows(table, numbers(120, 40))
    assert dataset.refresh() == table.metadata.current_snapshot_id == dataset.snapshot_id
    assert len(loader) == 16
    assert sorted(ids_in(loader)) == list(range(160))

    path = data_files(table)[0].file_path
    append_position_deletes(table, {path: range(40)})
    dataset.refresh()
    assert dataset.num_rows is None
    assert sorted(ids_in(loader)) == list(range(40, 160))

    commit_files(table, removed=lambda file: file.file_path == path or file.content != 0)
    dataset.refresh()
    assert dataset.num_rows == 120
    assert sorted(ids_in(loader)) == list(range(40, 160))
    assert loader.state_dict()["epoch"] == 4
    del loader


@pytest.mark.parametrize(("persistent", "num_workers"), [(False, 0), (True, 2)])
def test_refresh_in_the_middle_of_an_epoch(
    catalog: WritingCatalog, num_workers: int, persistent: bool
) -> None:
    table = make_table(catalog)
    options = {"num_workers": num_workers, "persistent_workers": persistent and num_workers > 0}
    loader, dataset = loader_of("db.t", catalog, **options)
    running = iter(loader)
    seen = ids_in(islice(running, 3))
    change_everything(table)
    dataset.refresh()
    state = json.loads(json.dumps(loader.state_dict()))
    rest = ids_in(running)
    assert sorted(seen + rest) == ALL
    assert sorted(ids_in(loader))[-1] == 2009
    after = loader.state_dict()

    again, other = loader_of("db.t", catalog, **options)
    again.load_state_dict(state)
    assert other.snapshot_id != dataset.snapshot_id
    assert ids_in(again) == rest
    again.load_state_dict(after)
    assert other.snapshot_id == dataset.snapshot_id
    assert sorted(ids_in(again))[-1] == 2009

    dataset.refresh()
    loader.load_state_dict(state)  # back to where it was
    assert ids_in(loader) == rest
    del loader, running, again


def test_refresh_of_a_dataset_that_is_iterated_by_hand(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    dataset, again = (
        IcebergDataset("db.t", catalog, batch_size=10, output_format="numpy") for _ in range(2)
    )
    running = iter(dataset)
    seen = ids_in(islice(running, 3))
    change_everything(table)
    dataset.refresh()
    state = dataset.state_dict()
    rest = ids_in(running)
    assert sorted(seen + rest) == ALL
    again.refresh()
    again.load_state_dict(state)
    assert ids_in(again) == rest
    assert sorted(ids_in(dataset))[-1] == 2009


def test_refresh_of_what_is_fixed_stays(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    first = table.metadata.snapshots[0].snapshot_id
    _, dataset = loader_of("db.t", catalog, snapshot_id=first)
    append_rows(table, numbers(500, 5))
    assert dataset.refresh() == first
    assert dataset.num_rows == 40


def test_a_table_that_is_written_for_the_first_time(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=0)
    loader, dataset = loader_of("db.t", catalog)
    assert (dataset.snapshot_id, dataset.num_rows, list(loader)) == (None, 0, [])
    state = loader.state_dict()
    append_rows(table, numbers(0, 25))
    assert dataset.refresh() == table.metadata.current_snapshot_id
    assert ids_in(loader) == list(range(25))
    loader.load_state_dict(state)
    assert dataset.snapshot_id is None
