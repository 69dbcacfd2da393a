"""Which snapshot is read, and how states and tables that move on go together."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from paimon_tables import Warehouse, in_order, numbered, write
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from headrace import NothingFoundError, OptionError, StateMismatchError


def ids(warehouse: Warehouse, **options: object) -> list[int]:
    return [row["id"] for row in in_order(warehouse.read("moving", **options))]


@pytest.fixture
def moving(warehouse: Warehouse) -> Warehouse:
    """Two snapshots of 50 rows each, the first of them tagged."""
    table = warehouse.make("moving", numbered(0, 0).schema)
    write(table, numbered(0, 50))
    table.create_tag("old", 1, False)
    write(table, numbered(50, 50))
    return warehouse


def test_snapshots_are_chosen_by_id_and_tag(moving: Warehouse) -> None:
    assert ids(moving) == list(range(100))
    assert ids(moving, snapshot_id=1) == ids(moving, tag="old") == list(range(50))
    assert moving.load("moving", tag="old")[1].snapshot_id == 1
    assert moving.load("moving")[1].snapshot_id == 2


def test_what_is_not_there_is_named(moving: Warehouse) -> None:
    with pytest.raises(NothingFoundError, match="no snapshot 99: it never existed"):
        moving.load("moving", snapshot_id=99)
    with pytest.raises(NothingFoundError, match=r"no tag 'nope'.*there are old"):
        moving.load("moving", tag="nope")
    with pytest.raises(OptionError, match="exclude each other"):
        moving.load("moving", tag="old", snapshot_id=1)
    with pytest.raises(OptionError, match="must be a number"):
        moving.load("moving", snapshot_id="1")


def test_a_tag_outlives_its_snapshot(moving: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "warehouse" / "db.db" / "moving" / "snapshot" / "snapshot-1").unlink()
    loader, dataset = moving.load("moving", tag="old", batch_size=20)
    assert dataset.num_rows == 50
    next(iter(loader))
    again, _ = moving.load("moving", tag="old", batch_size=20)
    again.load_state_dict(loader.state_dict())
    assert [len(batch) for batch in again] == [20, 10]
    assert ids(moving, snapshot_id=1) == list(range(50))


def test_a_table_that_moves_on_does_not_change_the_epoch(moving: Warehouse) -> None:
    loader, dataset = moving.load("moving", batch_size=30)
    running = iter(loader)
    first = [next(running)]
    write(moving.table("moving"), numbered(100, 50))
    rows = [row["id"] for batch in [*first, *running] for row in batch.to_pylist()]
    assert sorted(rows) == list(range(100))
    assert sum(map(len, loader)) == 100
    assert dataset.refresh() == 3
    assert sum(map(len, loader)) == dataset.num_rows == 150
    assert dataset.refresh() == 3


def test_a_state_takes_the_dataset_back_to_its_snapshot(moving: Warehouse) -> None:
    loader, _ = moving.load("moving", batch_size=30, chunk_size=9, shuffle=True)
    whole = list(moving.load("moving", batch_size=30, chunk_size=9, shuffle=True)[0])
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    moving.alter("moving", SchemaChange.add_column("more", AtomicType("INT"), None, None))
    more = numbered(100, 50).append_column("more", pa.array([1] * 50, pa.int32()))
    write(moving.table("moving"), more)
    again, dataset = moving.load("moving", batch_size=30, chunk_size=9, shuffle=True)
    assert "more" in dataset.schema.names
    again.load_state_dict(state)
    assert dataset.snapshot_id == 2
    assert list(again) == whole[1:]
    shutil.rmtree(Path(moving.options["warehouse"]) / "db.db" / "moving" / "snapshot")
    (Path(moving.options["warehouse"]) / "db.db" / "moving" / "snapshot").mkdir()
    with pytest.raises(NothingFoundError, match="snapshot 2"):
        moving.load("moving", tag="old", batch_size=30)[0].load_state_dict(state)


def test_a_state_of_other_filters_is_refused(moving: Warehouse) -> None:
    loader, _ = moving.load("moving", batch_size=30)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="split_rows"):
        moving.load("moving", batch_size=30, chunk_size=7)[0].load_state_dict(state)


def test_the_past_is_read_in_its_schema_and_the_present_in_todays(moving: Warehouse) -> None:
    moving.alter("moving", SchemaChange.rename_column("name", "title"))
    assert moving.load("moving")[1].schema.names == ["id", "x", "title"]
    assert moving.load("moving", snapshot_id=2)[1].schema.names == ["id", "x", "name"]
    assert {"name": "row 0"} in moving.read("moving", snapshot_id=2, columns=["name"])


def test_a_table_without_rows_has_none(warehouse: Warehouse) -> None:
    warehouse.make("empty", numbered(0, 0).schema)
    loader, dataset = warehouse.load("empty", chunk_size=10)
    assert list(loader) == []
    assert dataset.num_rows == 0
    assert dataset.snapshot_id is None
    write(warehouse.table("empty"), numbered(0, 5))
    assert dataset.refresh() == 1
    assert sum(map(len, loader)) == 5


def test_branches_are_tables(moving: Warehouse) -> None:
    moving.table("moving").branch_manager().create_branch("side", "old")
    assert ids_of_branch(moving) == list(range(50))


def ids_of_branch(moving: Warehouse) -> list[int]:
    return [row["id"] for row in in_order(moving.read("moving$branch_side"))]


def test_secrets_are_in_no_text(warehouse: Warehouse, caplog: pytest.LogCaptureFixture) -> None:
    warehouse.make("quiet", numbered(0, 0).schema, **{"file.format": "row"})
    write(warehouse.table("quiet"), numbered(0, 5))
    warehouse.options["s3.secret-key"] = "tell-nobody"
    with caplog.at_level(logging.DEBUG):
        loader, dataset = warehouse.load("quiet")
        rows = list(loader)
    assert len(rows) == 1
    texts = [
        repr(dataset),
        repr(dataset.epochs.found),
        repr(dataset.epochs.pipeline),
        str(loader.state_dict()),
    ]
    assert "tell-nobody" not in "".join([*texts, caplog.text])
