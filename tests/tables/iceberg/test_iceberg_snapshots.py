"""Which snapshot is read, until when, and what a state remembers of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from loader.rank_scripts.rank_processes import run_ranks
from numbered_tables import all_ids, ids_in, loader_of, make_table, numbers
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from table_processes import (
    begin_around_an_append,
    in_a_new_process,
    read_on,
    refresh_around_an_append,
)
from writers.catalogs import WritingCatalog, local_catalog
from writers.committing import commit_files, data_files
from writers.data_files import append_rows, overwrite_rows
from writers.delete_files import append_equality_deletes, append_position_deletes

from penstock import IcebergDataset, StatefulLoader, merge_states
from penstock.errors import (
    NothingFoundError,
    OptionError,
    SchemaError,
    StateMismatchError,
)
from penstock.testing import LoaderContract, ResumeContract

ALL = list(range(120))


def rename_x(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("x", "y")


@pytest.fixture
def moved(catalog: WritingCatalog) -> tuple[dict[str, str], Table, list[int]]:
    """A table that was written three times, renamed a column, and was written once more."""
    table = make_table(catalog)
    rename_x(table)
    append_rows(table, numbers(120, 40).rename_columns(["id", "y"]))
    ids = [one.snapshot_id for one in table.metadata.snapshots]
    return catalog.properties_for_users, table, ids


# --- choosing


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
        ({"as_of": "yesterday"}, "as_of='yesterday' is no time as in ISO 8601"),
        ({"as_of": "2024-01-01T00:00:00"}, "does not say in which time zone"),
        ({"as_of": datetime(2024, 1, 1)}, "does not say in which time zone"),
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
    there = {"snapshot_id": str(table.metadata.current_snapshot_id), "tag": "v1", "branch": "main"}
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


# --- pinned


def change_everything(table: Table) -> None:
    """Append, delete rows of every file, compact, rename: nothing of it is for a running epoch."""
    append_rows(table, numbers(1000, 30))
    paths = [file.file_path for file in data_files(table)]
    append_position_deletes(table, {path: [0, 1, 2] for path in paths})
    append_equality_deletes(table, ["id"], [(50,), (90,)])
    overwrite_rows(table, numbers(2000, 10), replaced=set(paths[:2]))
    rename_x(table)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
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


# --- going on


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "lanes": 2},
        {"batch_size": 7},
        {"shuffle": True, "split_rows": 15, "mix": 2},
        {"shuffle": True, "split_rows": 15, "mix": 2, "num_workers": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("deletes", [False, True])
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
    rest, after = in_a_new_process(read_on, config, state, options)
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
    for damaged in ({}, {**state, "plan": None}, {**state, "plan": [*state["plan"][:4], ["a", 1]]}):
        same, _ = loader_of("db.t", catalog, filters=[("id", ">=", 50)])
        with pytest.raises(StateMismatchError):
            same.load_state_dict(damaged)


# --- ranks


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_begin_around_an_append_agree(
    catalog: WritingCatalog, tmp_path: Path, first: int, deletes: bool
) -> None:
    table = make_table(catalog)
    before = set(ALL)
    if deletes:
        append_position_deletes(table, {data_files(table)[0].file_path: range(25)})
        before -= set(range(25))
    snapshot = table.metadata.current_snapshot_id
    work = partial(
        begin_around_an_append,
        properties=dict(catalog.properties),
        marker=tmp_path / "loaded",
        first=first,
        options={"even": "pad"},
    )
    one, other = run_ranks(work, 2, tmp_path)
    newest = catalog.load_table("db.t").metadata.current_snapshot_id
    assert one[0] == other[0] == (snapshot if first == 0 else newest)
    expected = before if first == 0 else before | set(range(1000, 1030))
    for epoch in (1, 2):
        assert len(one[epoch]) == len(other[epoch])
        seen = [*chain(*one[epoch]), *chain(*other[epoch])]
        assert set(seen) == expected


@pytest.mark.parametrize("deletes", [False, True])
def test_ranks_that_refresh_agree(catalog: WritingCatalog, tmp_path: Path, deletes: bool) -> None:
    table = make_table(catalog)
    before = set(ALL)
    if deletes:
        append_position_deletes(table, {data_files(table)[0].file_path: range(25)})
        before -= set(range(25))
    work = partial(
        refresh_around_an_append,
        properties=dict(catalog.properties),
        marker=tmp_path / "loaded",
        options={"even": "pad"},
    )
    one, other = run_ranks(work, 2, tmp_path)
    versions = [one[0][0], catalog.load_table("db.t").metadata.current_snapshot_id]
    expected = {versions[0]: before, versions[1]: before | set(range(1000, 1030))}
    for mine, theirs in zip(one, other, strict=True):
        assert mine[0] == theirs[0]
        assert len(mine[1]) == len(theirs[1])
        assert {*chain(*mine[1]), *chain(*theirs[1])} == expected[mine[0]]


def test_ranks_of_the_environment_alone_are_told_that_they_cannot_agree(
    catalog: WritingCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = make_table(catalog).metadata.current_snapshot_id
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    loader_of("db.t", catalog)
    assert f"it is {snapshot} here; give snapshot_id=" in caplog.text
    caplog.clear()
    loader_of("db.t", catalog, snapshot_id=snapshot)
    assert "snapshot_id=" not in caplog.text


def test_ranks_of_the_environment_alone(
    catalog: WritingCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(catalog)
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen, states = [], []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        loader, _ = loader_of("db.t", catalog)
        assert len(loader) == 6
        seen += ids_in(islice(loader, 2))
        states.append(loader.state_dict())
    merged = merge_states(states)
    append_rows(catalog.load_table("db.t"), numbers(500, 100))
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    alone, _ = loader_of("db.t", catalog)
    alone.load_state_dict(merged)
    assert sorted(seen + ids_in(alone)) == ALL


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_goes_on_in_the_snapshot_of_the_state(
    catalog: WritingCatalog, ranks: int, deletes: bool
) -> None:
    table = make_table(catalog)
    left = set(ALL)
    if deletes:
        append_position_deletes(table, {data_files(table)[1].file_path: range(7)})
        left -= set(range(40, 47))
    seen, states = [], []
    for rank in (0, 1):
        loader, _ = loader_of("db.t", catalog, rank=rank, world_size=2, even=False)
        seen += ids_in(islice(loader, 2))
        states.append(json.loads(json.dumps(loader.state_dict())))
    change_everything(table)
    for rank in range(ranks):
        loader, _ = loader_of("db.t", catalog, rank=rank, world_size=ranks, even=False)
        loader.load_state_dict(merge_states(states))
        seen += ids_in(loader)
    assert sorted(seen) == sorted(left)


def test_states_of_two_snapshots_do_not_merge(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    states = []
    for rank in (0, 1):
        loader, _ = loader_of("db.t", catalog, rank=rank, world_size=2)
        list(islice(loader, 1))
        states.append(loader.state_dict())
        append_rows(table, numbers(500, 100))
    with pytest.raises(StateMismatchError, match="cannot be merged"):
        merge_states(states)


@pytest.mark.parametrize("even", ["drop", "pad", False])
def test_ranks_come_to_the_same_number_of_steps(catalog: WritingCatalog, even: Any) -> None:
    make_table(catalog, rows=35)
    steps = []
    for rank in (0, 1):
        loader, _ = loader_of("db.t", catalog, rank=rank, world_size=2, even=even)
        steps.append([ids_in([batch]) for batch in loader])
    assert len(steps[0]) == (5 if even == "drop" else 6)
    assert len(steps[1]) == (5 if even != "pad" else 6)
    assert len({*chain(*steps[0], *steps[1])}) == (100 if even == "drop" else 105)


# --- contracts


def write_partitioned(directory: Path, *, deletes: bool = False) -> None:
    """A file for each partition, whose folders sort as their ids do. 1,154 rows are left."""
    sizes = [301, 2, 400, 150, 301]
    gone = 5 if deletes else 0
    with local_catalog(directory) as catalog:
        catalog.create_namespace("db")
        schema = pa.schema([("id", pa.int64()), ("part", pa.int32()), ("s", pa.string())])
        table = catalog.create_table(
            "db.t", schema, properties={"write.parquet.row-group-limit": "64"}
        )
        with table.update_spec() as change:
            change.add_field("part", IdentityTransform(), "part")
        parts = [part for part, size in enumerate(sizes) for _ in range(size + gone)]
        ids, at = [], 0
        for size in sizes:
            ids += [*range(at, at + size), *range(-gone, 0)]
            at += size
        rows = {"id": ids, "part": parts, "s": [f"row {one}" for one in ids]}
        append_rows(table, pa.table(rows, schema=schema))
        if deletes:
            by_path = {f.file_path: sizes[f.partition[0]] for f in data_files(table)}
            append_position_deletes(
                table, {path: range(size, size + gone) for path, size in by_path.items()}
            )


def create_over(directory: Path, **options: Any) -> tuple[StatefulLoader, IcebergDataset]:
    config = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return IcebergDataset.create_dataloader("tests.db.t", catalog_config=config, **options)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
class TestIcebergLoader(LoaderContract):
    rows = 1154

    @classmethod
    def write(cls, directory: Path) -> None:
        write_partitioned(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> tuple[StatefulLoader, IcebergDataset]:
        if options.get("shuffle") or options.get("mix", 1) > 1:
            options["split_rows"] = 70
        return create_over(directory, **options)


class IcebergResume(ResumeContract):
    deletes: ClassVar = False

    @classmethod
    def write(cls, directory: Path) -> None:
        write_partitioned(directory, deletes=cls.deletes)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        settings = {"batch_size": 100, "num_workers": 0, **options}
        return create_over(directory, **settings)[0]


class TestIcebergMixed(IcebergResume):
    options: ClassVar = {"shuffle": True, "split_rows": 70, "mix": 3, "lanes": 2}


class TestIcebergDeletes(IcebergResume):
    deletes: ClassVar = True
    options: ClassVar = {"split_rows": 100}


class TestIcebergDeletesMixed(IcebergResume):
    deletes: ClassVar = True
    options: ClassVar = {"shuffle": True, "split_rows": 70, "mix": 3}


class TestIcebergDeletesFiltered(IcebergResume):
    deletes: ClassVar = True
    options: ClassVar = {"shuffle": True, "split_rows": 70, "filters": [("id", "!=", 77)]}


class TestIcebergDeletesInWorkers(IcebergResume):
    deletes: ClassVar = True
    options: ClassVar = {"split_rows": 100, "num_workers": 2, "shuffle": True}
