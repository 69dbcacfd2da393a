"""States from which other numbers of ranks, workers and lanes, or other batch sizes, continue."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from small_files import all_ids, write_csv, write_parquet

from headrace import (
    FileChangedError,
    OptionError,
    RoundRobinSplitStrategy,
    StatefulLoader,
    StateMismatchError,
    StructuredDataset,
    TargetSizeSplitStrategy,
    merge_states,
)
from headrace.testing import saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ROWS = 1154
State = dict[str, Any]
Batch = list[int]

WAYS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True, "split_rows": 70},
    "mixed": {"shuffle": True, "split_rows": 50, "mix": 3},
    "interleaved": {"split_rows": 40, "interleave": 3},
    "largest first": {"split_strategy": TargetSizeSplitStrategy(split_rows=100)},
    "filtered": {"filters": [("id", "!=", 5)], "shuffle": True, "split_rows": 70},
    "filtered and mixed": {
        "filters": [("id", "!=", 5)],
        "split_rows": 50,
        "mix": 3,
        "shuffle": True,
    },
    "lines": {"format": "csv", "split_bytes": 1500},
    "lines mixed": {"format": "csv", "split_bytes": 900, "mix": 2, "shuffle": True},
}
UNCOUNTED = ("filtered", "filtered and mixed", "lines", "lines mixed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    return {"parquet": write_parquet(root / "parquet"), "csv": write_csv(root / "csv")}


class Job:
    """Ranks that run in one process, one after the other, because they do not communicate."""

    def __init__(
        self, folders: dict[str, Path], way: str, ranks: int, state: Any = None, **options: Any
    ) -> None:
        given = {"batch_size": 50, "num_workers": 0, "even": False, **WAYS[way], **options}
        folder = folders[given.get("format", "parquet")]
        self.loaders: list[StatefulLoader] = []
        for rank in range(ranks):
            created, _ = StructuredDataset.create_dataloader(
                folder, **given, rank=rank, world_size=ranks
            )
            if state is not None:
                created.load_state_dict(state[rank] if isinstance(state, list) else state)
            self.loaders.append(created)
        self.running = [iter(loader) for loader in self.loaders]

    def take(self, steps: int | None) -> list[list[Batch]]:
        """Return the next batches of each rank."""
        return [[ids(batch) for batch in islice(rank, steps)] for rank in self.running]

    def states(self) -> list[State]:
        return [saved(loader) for loader in self.loaders]


def ids(batch: Any) -> Batch:
    return [int(value) for value in batch["id"]]


def rows(batches: Sequence[Sequence[Batch]]) -> list[int]:
    return [row for rank in batches for batch in rank for row in batch]


def by_step(batches: Sequence[Sequence[Batch]]) -> Iterator[Batch]:
    """Yield batches in their global order: the first ones of all ranks, then the second ones, …"""
    for step in zip_longest(*batches):
        yield from (batch for batch in step if batch is not None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [(1, 3, 2), (2, 5, 1)])
def test_every_row_comes_once_whatever_size_the_job_comes_back_with(
    folders: dict[str, Path], way: str, sizes: tuple[int, ...]
) -> None:
    delivered: list[int] = []
    state = None
    for place, ranks in enumerate(sizes):
        job = Job(folders, way, ranks, state)
        last = place == len(sizes) - 1
        delivered += rows(job.take(None if last else 2 + place))
        state = merge_states(job.states())
    expected = ROWS - 1 if "filtered" in way else ROWS
    assert Counter(delivered).most_common(1)[0][1] == 1
    assert len(delivered) == expected


@pytest.mark.parametrize("way", ["in order", "mixed", "filtered", "lines"])
def test_another_batch_size_goes_on(folders: dict[str, Path], way: str) -> None:
    first = Job(folders, way, 2)
    delivered = rows(first.take(3))
    state = merge_states(first.states())
    second = Job(folders, way, 2, state, batch_size=33)
    second_part = second.take(4)
    assert {len(batch) for rank in second_part for batch in rank} == {33}
    delivered += rows(second_part)
    third = Job(folders, way, 1, merge_states(second.states()), batch_size=64)
    delivered += rows(third.take(None))
    assert sorted(delivered) == [row for row in range(ROWS) if "filtered" not in way or row != 5]
    # The next epoch is complete.
    following = rows([[ids(batch) for batch in third.loaders[0]]])
    assert sorted(following) == sorted(delivered)


@pytest.mark.parametrize(
    ("way", "before", "after"),
    [("filtered", (1, 2), (1, 3)), ("mixed", (2, 1), (1, 3)), ("filtered", (1, 3), (2, 2))],
)
def test_processes_share_what_is_left(
    folders: dict[str, Path], way: str, before: tuple[int, int], after: tuple[int, int]
) -> None:
    first = Job(folders, way, before[0], num_workers=before[1])
    delivered = rows(first.take(3))
    second = Job(folders, way, after[0], merge_states(first.states()), num_workers=after[1])
    delivered += rows(second.take(2))
    third = Job(folders, way, 1, merge_states(second.states()))
    delivered += rows(third.take(None))
    assert sorted(delivered) == [row for row in range(ROWS) if way != "filtered" or row != 5]


@pytest.mark.parametrize("way", ["in order", "shuffled", "mixed", "interleaved"])
def test_with_fixed_lanes_the_global_sequence_does_not_change(
    folders: dict[str, Path], way: str
) -> None:
    whole = list(by_step(Job(folders, way, 1, lanes=12).take(None)))
    batches: list[Batch] = []
    state = None
    for ranks, steps in [(1, 3), (4, 1), (2, 2), (3, 1), (1, None)]:
        job = Job(folders, way, ranks, state, lanes=12)
        part = list(by_step(job.take(steps)))
        expected = whole[len(batches) : len(batches) + len(part)]
        assert sorted(part) == sorted(expected)  # within a step the ranks may have another order
        if len(batches) % ranks == 0:
            assert part == expected
        batches += part
        state = merge_states(job.states())
    assert sorted(map(tuple, batches)) == sorted(map(tuple, whole))


@pytest.mark.parametrize("way", WAYS)
def test_the_state_of_one_rank_is_enough_if_all_took_the_same_steps(
    folders: dict[str, Path], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(folders, way, 2, lanes=4)
    job.take(5)
    rank_0 = job.states()[0]
    rest = job.take(None)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        again = Job(folders, way, 2, rank_0, lanes=4)
    assert ("reading 5 batches again" in caplog.text) == (way in UNCOUNTED)
    assert again.take(None) == rest
    assert merge_states(Job(folders, way, 2, rank_0, lanes=4).states()) == merge_states(
        Job(folders, way, 2, job_states(folders, way), lanes=4).states()
    )


def job_states(folders: dict[str, Path], way: str) -> list[State]:
    job = Job(folders, way, 2, lanes=4)
    job.take(5)
    return job.states()


@pytest.mark.parametrize("way", WAYS)
def test_the_state_of_one_rank_serves_another_number_of_ranks(
    folders: dict[str, Path], way: str
) -> None:
    job = Job(folders, way, 2)
    delivered = rows(job.take(4))
    for state in job.states():
        rest = rows(Job(folders, way, 3, state).take(None))
        assert sorted(delivered + rest) == [
            r for r in range(ROWS) if "filtered" not in way or r != 5
        ]


def test_a_transform_does_not_run_when_batches_are_counted_again(folders: dict[str, Path]) -> None:
    job = Job(folders, "filtered", 2)
    job.take(2)
    calls: list[int] = []

    def transform(batch: Any) -> Any:
        calls.append(len(batch["id"]))
        return batch

    Job(folders, "filtered", 2, job.states()[0], transform=transform)
    assert calls == []


def test_lanes_that_were_asked_for_win_over_those_of_the_state(folders: dict[str, Path]) -> None:
    job = Job(folders, "mixed", 1, lanes=4)
    delivered = rows(job.take(5))
    other = Job(folders, "mixed", 1, merge_states(job.states()), lanes=3)
    assert len(other.states()[0]["lanes"]) == 3
    assert sorted(delivered + rows(other.take(None))) == list(range(ROWS))


def test_after_an_uneven_change_the_state_says_what_came_before(folders: dict[str, Path]) -> None:
    job = Job(folders, "mixed", 2)
    job.take(3)
    changed = Job(folders, "mixed", 3, merge_states(job.states()))
    changed.take(2)
    state = changed.states()[1]
    *_, earlier = state["before"]
    assert earlier == []
    assert len(json.dumps(state)) < 230 + 20 * (len(state["lanes"]) + 2) + 40
    changed.take(None)
    assert all(state["before"] == [] for state in changed.states())


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize("way", ["in order", "mixed", "interleaved", "largest first"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_take_the_same_number_of_steps(
    folders: dict[str, Path], way: str, ranks: int, even: str
) -> None:
    job = Job(folders, way, ranks, even=even)
    lengths = [len(loader) for loader in job.loaders]
    second_part = job.take(None)
    assert [len(rank) for rank in second_part] == lengths
    assert len(set(lengths)) == 1
    counted = Counter(rows(second_part))
    if even == "pad":
        assert set(counted) == set(range(ROWS))
        padded = sum(loader.stats()["padded"] for loader in job.loaders)
        assert sum(counted.values()) - ROWS == padded
        if way != "largest first":
            assert padded < ranks
    else:
        assert set(counted.values()) == {1}
        if way != "largest first":
            assert ROWS - sum(counted.values()) < 50 * ranks


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize("at", [0, 1, 4, 7, 8])
def test_ranks_stay_in_step_when_their_number_changes(
    folders: dict[str, Path], even: str, at: int
) -> None:
    job = Job(folders, "mixed", 3, even=even)
    delivered = rows(job.take(at))
    state = merge_states(job.states())
    if state["epoch"]:
        return
    for lanes in (None, 12):
        again = Job(folders, "mixed", 2, state, even=even, lanes=lanes)
        second_part = again.take(None)
        assert len({len(rank) for rank in second_part}) == 1
        everything = Counter(delivered + rows(second_part))
        if even == "pad":
            assert set(everything) == set(range(ROWS))
        else:
            assert set(everything.values()) == {1}
            assert ROWS - len(everything) < 2 * 50
        assert all(state["epoch"] == 1 for state in again.states())


def test_what_is_dropped_is_told(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        Job(folders, "in order", 2, even="drop", batch_size=100)
    # 1154 rows are 12 batches of two ranks. With 5 ranks the last round is shared.
    with caplog.at_level(logging.INFO, logger="headrace"):
        Job(folders, "in order", 5, even="drop", batch_size=100)
    assert "left out" not in caplog.text
    with caplog.at_level(logging.INFO, logger="headrace"):
        Job(folders, "in order", 5, even="drop", batch_size=100, drop_last=True)
    assert "154 rows (13.3 %) are left out" in caplog.text


def test_too_little_for_all_ranks_is_refused(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path, [(3, 3)])
    make = StructuredDataset.create_dataloader
    with pytest.raises(OptionError, match="3 rows cannot be shared by 4 ranks"):
        make(folder, rank=0, world_size=4)
    with pytest.raises(OptionError, match="3 rows make no batch of 1024 rows for each of 2"):
        make(folder, rank=0, world_size=2, drop_last=True)
    loader, _ = make(folder, rank=1, world_size=2, num_workers=0)
    assert all_ids(loader) == [2]
    loader, _ = make(folder, rank=3, world_size=4, even="pad", num_workers=0)
    assert all_ids(loader) == [0]
    with pytest.raises(OptionError, match="process group"):
        make(folder, rank=0, world_size=2, filters=[("id", ">", 0)])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rank": 0}, "world_size"),
        ({"world_size": 2}, "rank"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"rank": True, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 2, "lanes": 3}, "lanes=3"),
        ({"even": True}, "even"),
        ({"even": "yes"}, "even"),
        ({"interleave": 0}, "interleave"),
        ({"interleave": 2, "mix": 2}, "interleave"),
    ],
)
def test_contradictions_are_refused(
    folders: dict[str, Path], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        StructuredDataset.create_dataloader(folders["parquet"], **options)


def test_states_that_do_not_belong_together_are_not_merged(folders: dict[str, Path]) -> None:
    job = Job(folders, "mixed", 2)
    job.take(2)
    states = job.states()
    with pytest.raises(StateMismatchError, match="no states"):
        merge_states([])
    for wrong in ([states[0]], [states[0], states[0]], [*states, states[0]]):
        with pytest.raises(StateMismatchError, match="each of 2 ranks"):
            merge_states(wrong)
    job.loaders[1].set_epoch(3)
    with pytest.raises(StateMismatchError, match="different"):
        merge_states([states[0], saved(job.loaders[1])])
    with pytest.raises(StateMismatchError, match="version"):
        merge_states([states[0], {"version": 1}])
    assert merge_states(states[::-1]) == merge_states(states)
    assert merge_states([merge_states(states)]) == merge_states(states)


def test_ranks_that_are_not_in_step_are_brought_into_step(folders: dict[str, Path]) -> None:
    job = Job(folders, "mixed", 2, even=False)
    delivered = [ids(batch) for batch in islice(job.running[0], 5)]
    delivered += [ids(batch) for batch in islice(job.running[1], 2)]
    again = Job(folders, "mixed", 2, merge_states(job.states()), even="pad")
    rest = again.take(None)
    assert len(rest[0]) == len(rest[1])
    assert set(rows([delivered]) + rows(rest)) == set(range(ROWS))


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_ranks_that_have_nothing_left_end_the_epoch_and_not_another(
    folders: dict[str, Path], even: str
) -> None:
    """Take 23 of 24 batches: the last one is shared by both ranks."""
    one = Job(folders, "mixed", 1)
    delivered = rows(one.take(23))
    two = Job(folders, "mixed", 2, one.states()[0], even=even)
    for loader in two.loaders:
        loader.set_epoch(0)
    second_part = two.take(None)
    assert [len(rank) for rank in second_part] == [1, 1]
    assert sorted(delivered + rows(second_part)) == list(range(ROWS))
    following = [[ids(batch) for batch in loader] for loader in two.loaders]
    assert {len(rank) for rank in following} == {12}
    assert all(state["epoch"] == 2 for state in two.states())


def test_a_rank_reads_no_file_of_another(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path, ((100, 50),) * 4)
    loaders = [
        StructuredDataset.create_dataloader(
            folder,
            batch_size=10,
            num_workers=0,
            split_strategy=RoundRobinSplitStrategy(),
            rank=rank,
            world_size=2,
        )[0]
        for rank in range(2)
    ]
    for number in (0, 2):
        (folder / f"part-{number:02}.parquet").unlink()
    assert sorted(all_ids(loaders[1])) == [*range(100, 200), *range(300, 400)]
    with pytest.raises(FileChangedError, match="part-00"):
        list(loaders[0])
