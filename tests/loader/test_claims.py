"""Workers take windows of a slower one: every row comes once, however often the job stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, all_ids, eventually, write_csv, write_parquet
from torch.utils.data import DataLoader, get_worker_info
from worker_code import slow_first_worker

from headrace import (
    OptionError,
    StatefulLoader,
    StateMismatchError,
    StructuredDataset,
    merge_states,
)
from headrace.loader._claims import Claims, units_left
from headrace.loader._workers import out_of_order
from headrace.testing import saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

WAYS: dict[str, dict[str, Any]] = {
    "in order": {"split_rows": 30},
    "mixed": {"split_rows": 20, "mix": 2, "shuffle": True},
    "interleaved": {"split_rows": 20, "interleave": 2},
    "filtered": {"split_rows": 30, "filters": [("id", "!=", 5)]},
    "lines": {"format": "csv", "split_bytes": 600},
}


ENOUGH = 34
"""batches of 58: more than half, but with those begun by the other worker not all"""


def seldom_first_worker(folder: Path, batch: Any) -> Any:
    """Make one batch in worker 0 for every four of worker 1, until worker 1 has made enough."""
    worker = get_worker_info().id
    with open(folder / str(worker), "ab") as own:
        own.write(b".")
        mine = own.tell()
    if worker == 0:
        other = folder / "1"
        wanted = min(4 * mine, ENOUGH)
        assert eventually(lambda: other.exists() and other.stat().st_size >= wanted)
    return {"id": batch["id"], "worker": worker}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    return {"parquet": write_parquet(root / "parquet"), "csv": write_csv(root / "csv")}


def make(folders: dict[str, Path], way: str, state: Any = None, **options: Any) -> StatefulLoader:
    given = {"batch_size": 20, "num_workers": 2, "balance": "adaptive", **WAYS[way], **options}
    given.setdefault("transform", slow_first_worker)
    folder = folders[given.get("format", "parquet")]
    loader, _ = StructuredDataset.create_dataloader(folder, **given)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def expected(way: str) -> list[int]:
    return [row for row in range(ROWS) if way != "filtered" or row != 5]


@pytest.mark.parametrize("way", WAYS)
def test_the_faster_worker_reads_more_and_every_row_comes_once(
    folders: dict[str, Path], way: str, tmp_path: Path
) -> None:
    batches = list(make(folders, way, transform=partial(seldom_first_worker, tmp_path)))
    assert sorted(all_ids(batches)) == expected(way)
    by_worker = Counter(batch["worker"] for batch in batches)
    assert by_worker[1] >= ENOUGH > by_worker[0]


@pytest.mark.parametrize(
    ("way", "steps"), [*((way, 9) for way in WAYS), ("mixed", 0), ("filtered", 1), ("lines", 30)]
)
def test_what_was_taken_and_not_handed_out_comes_again(
    folders: dict[str, Path], way: str, steps: int
) -> None:
    loader = make(folders, way)
    ids = all_ids(islice(loader, steps))
    state = saved(loader)
    again = make(folders, way, state)
    more = all_ids(islice(again, 7))
    third = make(folders, way, saved(again))
    rest = all_ids(third)
    assert sorted(ids + more + rest) == expected(way)
    assert saved(third)["epoch"] == 1


@pytest.mark.parametrize(
    ("way", "other"),
    [
        ("in order", {"num_workers": 3}),
        ("lines", {"num_workers": 3}),
        ("mixed", {"num_workers": 0}),
        ("filtered", {"num_workers": 0}),
        ("interleaved", {"balance": "static"}),
        ("filtered", {"balance": "static"}),
        ("mixed", {"batch_size": 33}),
        ("lines", {"batch_size": 33}),
    ],
    ids=str,
)
def test_another_crew_goes_on(folders: dict[str, Path], way: str, other: dict[str, Any]) -> None:
    loader = make(folders, way)
    row_ids = all_ids(islice(loader, 12))
    second = make(folders, way, saved(loader), **other)
    row_ids += all_ids(islice(second, 5))
    third = make(folders, way, saved(second))
    assert sorted(row_ids + all_ids(third)) == expected(way)


def test_a_static_loader_is_gone_on_with(folders: dict[str, Path]) -> None:
    static = make(folders, "mixed", balance="static")
    ids = all_ids(islice(static, 11))
    assert sorted(ids + all_ids(make(folders, "mixed", saved(static)))) == expected("mixed")


def test_ranks_of_adaptive_workers(folders: dict[str, Path]) -> None:
    ranks = [make(folders, "mixed", rank=r, world_size=2, even=False) for r in range(2)]
    ids = [row for loader in ranks for row in all_ids(islice(loader, 6))]
    states = [saved(loader) for loader in ranks]
    with pytest.raises(StateMismatchError, match="merge_states"):
        make(folders, "mixed", states[0], rank=1, world_size=2, even=False)
    own = [make(folders, "mixed", states[r], rank=r, world_size=2, even=False) for r in range(2)]
    assert sorted(ids + [row for loader in own for row in all_ids(loader)]) == expected("mixed")
    one = make(folders, "mixed", merge_states(states))
    assert sorted(ids + all_ids(one)) == expected("mixed")


def test_persistent_workers_take_anew_in_every_epoch(folders: dict[str, Path]) -> None:
    loader = make(folders, "in order", persistent_workers=True)
    for epoch in range(3):
        assert saved(loader)["epoch"] == epoch
        assert sorted(all_ids(loader)) == expected("in order")


def test_workers_of_an_epoch_that_was_left_take_nothing_of_the_next(
    folders: dict[str, Path],
) -> None:
    loader = make(folders, "in order", persistent_workers=True)
    for epoch in range(4):
        loader.set_epoch(epoch)
        next(iter(loader))  # workers prepare some batches more
        loader.set_epoch(epoch + 1)
        assert sorted(all_ids(loader)) == expected("in order")


def test_a_start_method_of_the_users(folders: dict[str, Path]) -> None:
    loader = make(folders, "in order", transform=None, multiprocessing_context="forkserver")
    assert sorted(all_ids(loader)) == expected("in order")


def test_how_many_batches_there_are_is_not_known(folders: dict[str, Path]) -> None:
    with pytest.raises(TypeError, match="adaptive"):
        len(make(folders, "in order"))
    assert len(make(folders, "in order", num_workers=0)) == 58


def test_ranks_that_must_keep_step_need_a_group(folders: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="process group"):
        make(folders, "in order", rank=0, world_size=2)
    with pytest.raises(OptionError, match="balance"):
        make(folders, "in order", balance="fair")


def test_a_torch_that_cannot_give_batches_as_they_come() -> None:
    class OlderLoader:
        def __init__(self, dataset: Any, batch_size: int = 1, timeout: float = 0) -> None: ...

    with pytest.raises(OptionError, match=r'balance="adaptive".*torch 2\.6.*balance="static"'):
        out_of_order(OlderLoader)
    assert out_of_order(DataLoader) == {"in_order": False}


def test_a_window_that_is_taken_while_a_state_is_made_is_not_lost(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    plan = StructuredDataset(tmp_path, split_rows=30).plan(lanes=2)
    lanes = [plan.lane(0), plan.lane(1)]
    claims = Claims(2, 1000, get_context("forkserver"))
    claims.post(units_left(lanes, {}, ()))

    def cursors_while_a_worker_takes_a_window() -> Iterator[tuple[int, int]]:
        yield from [(-1, 0), (-1, 0)]
        assert next(claims.taken_by(1))

    cursors, loose = claims.progress(lanes, cursors_while_a_worker_takes_a_window())  # type: ignore[arg-type]
    assert cursors == {0: (0, 0), 1: (0, 0)}
    assert loose == ()
