"""Ranks that read one snapshot, whenever they begin, and however many go on."""

from __future__ import annotations

import json
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from loader.rank_scripts.rank_processes import run_ranks
from moving_tables import ALL, change_everything
from numbered_tables import ids_in, loader_of, make_table, numbers
from table_processes import begin_around_an_append, refresh_around_an_append
from writers.catalogs import WritingCatalog
from writers.committing import data_files
from writers.data_files import append_rows
from writers.delete_files import append_position_deletes

from headrace import merge_states
from headrace.errors import StateMismatchError


@pytest.mark.parametrize(("deletes", "first"), [(False, 0), (True, 1)])
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


@pytest.mark.parametrize(("deletes", "ranks"), [(True, 1), (False, 3), (True, 3)])
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


@pytest.mark.parametrize(("batch_size", "ranks"), [(3, 2), (16, 3)])
def test_another_batch_size_goes_on_from_the_state_of_one_rank(
    catalog: WritingCatalog, ranks: int, batch_size: int
) -> None:
    table = make_table(catalog)
    append_position_deletes(table, {data_files(table)[1].file_path: range(7)})
    seen, states = [], []
    for rank in (0, 1):
        loader, _ = loader_of("db.t", catalog, rank=rank, world_size=2, even=False, batch_size=7)
        seen += ids_in(islice(loader, 4))
        states.append(loader.state_dict())
    for rank in range(ranks):
        loader, _ = loader_of(
            "db.t", catalog, rank=rank, world_size=ranks, even=False, batch_size=batch_size
        )
        loader.load_state_dict(states[1])
        seen += ids_in(loader)
    assert sorted(seen) == sorted(set(ALL) - set(range(40, 47)))


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
    assert len(steps[0]) == 6
    assert len(steps[1]) == (6 if even else 5)
    assert len({*chain(*steps[0], *steps[1])}) == 105
