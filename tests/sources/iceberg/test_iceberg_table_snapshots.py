"""Which snapshot is read: by id, tag, branch and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from moving_tables import rename_x
from numbered_tables import all_ids, loader_of, make_table, numbers
from pyiceberg.table import Table
from writers.catalogs import WritingCatalog
from writers.data_files import append_rows

from headrace.errors import NothingFoundError, OptionError


@pytest.fixture
def moved(catalog: WritingCatalog) -> tuple[dict[str, str], Table, list[int]]:
    """A table that was written three times, renamed a column, and was written once more."""
    table = make_table(catalog)
    rename_x(table)
    append_rows(table, numbers(120, 40).rename_columns(["id", "y"]))
    ids = [one.snapshot_id for one in table.metadata.snapshots]
    return catalog.properties_for_users, table, ids


def test_by_id(moved: tuple[dict[str, str], Table, list[int]]) -> None:
    config, _, ids = moved
    for number, snapshot in enumerate(ids, start=1):
        _, dataset = loader_of("tests.db.t", config, snapshot_id=snapshot)
        assert all_ids("tests.db.t", config, snapshot_id=snapshot) == list(range(40 * number))
        assert dataset.snapshot_id == snapshot
        assert dataset.schema.names == (["id", "x"] if number < 4 else ["id", "y"])


def test_by_tag_in_the_schema_of_then_and_by_branch_in_that_of_now(
    moved: tuple[dict[str, str], Table, list[int]],
) -> None:
    config, table, ids = moved
    table.manage_snapshots().create_tag(ids[1], "then").commit()
    table.manage_snapshots().create_branch(ids[0], "side").commit()
    _, by_tag = loader_of("tests.db.t", config, tag="then")
    assert (by_tag.schema.names, by_tag.num_rows) == (["id", "x"], 80)
    _, by_branch = loader_of("tests.db.t", config, branch="side")
    assert (by_branch.schema.names, by_branch.num_rows) == (["id", "y"], 40)
    append_rows(table, numbers(500, 10).rename_columns(["id", "y"]), branch="side")
    assert all_ids("tests.db.t", config, branch="side") == [*range(40), *range(500, 510)]
    assert all_ids("tests.db.t", config, branch="main") == list(range(160))
    by_branch.refresh()
    assert by_branch.num_rows == 50
    by_tag.refresh()
    assert by_tag.num_rows == 80


def test_by_time(moved: tuple[dict[str, str], Table, list[int]]) -> None:
    config, table, ids = moved
    times = [one.timestamp_ms for one in table.metadata.snapshots]
    when = datetime.fromtimestamp(times[1] / 1000, UTC)
    in_tokyo = when.astimezone(timezone(timedelta(hours=9)))
    for as_of in (times[1], when, in_tokyo, when.isoformat(), in_tokyo.isoformat(), times[2] - 1):
        _, dataset = loader_of("tests.db.t", config, as_of=as_of)
        assert (dataset.snapshot_id, dataset.num_rows) == (ids[1], 80)
        assert dataset.schema.names == ["id", "x"]
    _, dataset = loader_of("tests.db.t", config, as_of=datetime.now(UTC))
    assert dataset.snapshot_id == ids[-1]
    with pytest.raises(NothingFoundError, match=rf"no snapshot at {times[0] - 1}.*{times[0]}"):
        loader_of("tests.db.t", config, as_of=times[0] - 1)


def test_the_current_schema_where_it_is_younger_than_the_newest_snapshot(
    catalog: WritingCatalog,
) -> None:
    table = make_table(catalog)
    snapshot = table.metadata.current_snapshot_id
    rename_x(table)
    _, newest = loader_of("db.t", catalog)
    _, as_written = loader_of("db.t", catalog, snapshot_id=snapshot)
    assert newest.snapshot_id == as_written.snapshot_id == snapshot
    assert newest.schema.names == ["id", "y"]
    assert as_written.schema.names == ["id", "x"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"snapshot_id": 1, "tag": "a"}, "snapshot_id and tag exclude each other"),
        ({"branch": "a", "as_of": 1}, "branch and as_of exclude each other"),
        ({"as_of": "yesterday"}, "as_of='yesterday' is not a time in ISO 8601"),
        ({"as_of": "2024-01-01T00:00:00"}, "has no time zone"),
        ({"as_of": datetime(2024, 1, 1)}, "has no time zone"),
        ({"as_of": 1.5}, "as_of must be a datetime with a time zone"),
        ({"as_of": True}, "as_of must be a datetime with a time zone"),
    ],
)
def test_what_says_nothing(catalog: WritingCatalog, wanted: dict[str, Any], message: str) -> None:
    make_table(catalog, files=1)
    with pytest.raises(OptionError, match=message):
        loader_of("db.t", catalog, **wanted)


@pytest.mark.parametrize("wanted", [{"snapshot_id": 77}, {"tag": "none"}, {"branch": "none"}])
def test_what_is_not_there(catalog: WritingCatalog, wanted: dict[str, Any]) -> None:
    table = make_table(catalog, files=1)
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "v1").commit()
    with pytest.raises(NothingFoundError) as caught:
        loader_of("tests.db.t", catalog, **wanted)
    there = {"snapshot_id": "or it has expired", "tag": "v1", "branch": "main"}
    (kind,) = wanted
    assert "'tests.db.t'" in str(caught.value)
    assert str(wanted[kind]) in str(caught.value)
    assert there[kind] in str(caught.value)


def test_a_tag_is_no_branch(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=1)
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "v1").commit()
    with pytest.raises(NothingFoundError, match="no branch 'v1'; there are main"):
        loader_of("tests.db.t", catalog, branch="v1")
    with pytest.raises(NothingFoundError, match="no tag 'main'; there are v1"):
        loader_of("tests.db.t", catalog, tag="main")
