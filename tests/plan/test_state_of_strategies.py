"""States belong to the splits that were planned when they were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_files import ROWS, all_ids, write_parquet

from headrace import (
    DataFileInfo,
    EvenBatchesSplitStrategy,
    FileSplit,
    RoundRobinSplitStrategy,
    RowRange,
    Split,
    StatefulLoader,
    StateMismatchError,
    StructuredDataset,
    TargetSizeSplitStrategy,
    merge_states,
)
from headrace.testing import saved


class Shuffled:
    """Chunks of 50 rows in an order of (seed, epoch); early epochs are the same for all seeds."""

    def __init__(self, seed: int, same_before: int = 0) -> None:
        self.seed, self.same_before, self.calls = seed, same_before, 0

    def __repr__(self) -> str:
        return (
            f"Shuffled({self.seed}, {self.same_before})"  # names a test, equally in all processes
        )

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Split]:
        self.calls += 1
        chunks = [
            FileSplit(file, RowRange(start, min(50, (file.record_count or 0) - start)))
            for file in files
            for start in range(0, file.record_count or 0, 50)
        ]
        seed = self.seed if epoch >= self.same_before else 0
        np.random.default_rng([seed, epoch]).shuffle(chunks)
        return [Split(lane, chunks[lane::num_workers]) for lane in range(num_workers)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


def make(data: Path, strategy: Any, **options: Any) -> StatefulLoader:
    options = {"batch_size": 60, "num_workers": 0, "split_strategy": strategy, **options}
    return StructuredDataset.create_dataloader(data, **options)[0]


def state_after(loader: StatefulLoader, batches: int) -> tuple[list[int], dict[str, Any]]:
    """Return the rows of some batches, and the state after them."""
    ids = all_ids(islice(loader, batches))
    return ids, saved(loader)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TargetSizeSplitStrategy(shuffle=True, seed=1), TargetSizeSplitStrategy(shuffle=True)),
        (TargetSizeSplitStrategy(split_rows=70), TargetSizeSplitStrategy(split_rows=71)),
        (TargetSizeSplitStrategy("1KiB"), TargetSizeSplitStrategy("2KiB")),
        (TargetSizeSplitStrategy(split_rows=70), TargetSizeSplitStrategy(split_rows=70, seed=3)),
        (RoundRobinSplitStrategy(), RoundRobinSplitStrategy(shuffle=True)),
        (RoundRobinSplitStrategy(True, 1), RoundRobinSplitStrategy(True, 2)),
        (EvenBatchesSplitStrategy(60), EvenBatchesSplitStrategy(61)),
        (EvenBatchesSplitStrategy(60), EvenBatchesSplitStrategy(60, shuffle=True)),
        (
            EvenBatchesSplitStrategy(60, split_rows=70, shuffle=True, seed=1),
            EvenBatchesSplitStrategy(60, split_rows=70, shuffle=True, seed=2),
        ),
        (RoundRobinSplitStrategy(), TargetSizeSplitStrategy()),
        (EvenBatchesSplitStrategy(60), None),
        (Shuffled(1), Shuffled(2)),
        (Shuffled(1), RoundRobinSplitStrategy()),
    ],
    ids=str,
)
def test_a_state_of_another_strategy_is_refused(data: Path, one: Any, other: Any) -> None:
    for saving, loading in ((one, other), (other, one)):
        _, state = state_after(make(data, saving), 3)
        loader = make(data, loading)
        with pytest.raises(StateMismatchError, match="split_strategy"):
            loader.load_state_dict(state)
        assert sorted(all_ids(loader)) == list(range(ROWS))


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (
            TargetSizeSplitStrategy("1KiB", shuffle=True, seed=5),
            TargetSizeSplitStrategy(1024, shuffle=True, seed=5),
        ),
        (RoundRobinSplitStrategy(True, 1), RoundRobinSplitStrategy(True, 1)),
        (EvenBatchesSplitStrategy(60, split_rows=9), EvenBatchesSplitStrategy(60, split_rows=9)),
        (Shuffled(7), Shuffled(7)),
    ],
    ids=str,
)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_state_of_the_same_strategy_goes_on(data: Path, one: Any, same: Any, lanes: int) -> None:
    saving = make(data, one, lanes=lanes)
    seen, state = state_after(saving, 5)
    resumed = make(data, same, lanes=lanes)
    resumed.load_state_dict(state)
    assert saved(resumed) == state
    assert seen + all_ids(resumed) == all_ids(saving)


def test_the_splits_of_the_epoch_of_the_state_count(data: Path) -> None:
    """Use seeds 1 and 2, which differ only from epoch 1 on."""
    saving = make(data, Shuffled(1, same_before=1))
    ids, first = state_after(saving, 4)
    all_ids(saving)
    _, second = state_after(saving, 4)
    assert (first["epoch"], second["epoch"]) == (0, 1)
    loader = make(data, Shuffled(2, same_before=1))
    with pytest.raises(StateMismatchError, match=r"other splits for epoch 1"):
        loader.load_state_dict(second)
    loader.load_state_dict(first)
    assert sorted(ids + all_ids(loader)) == list(range(ROWS))


def test_splits_count_as_they_were_before_the_lanes_changed(data: Path) -> None:
    ids, state = state_after(make(data, Shuffled(1), lanes=3), 4)
    between = make(data, Shuffled(1), lanes=2)
    between.load_state_dict(state)
    more, state = state_after(between, 4)
    with pytest.raises(StateMismatchError, match=r"other splits for epoch 0 and 3 lanes"):
        make(data, Shuffled(2), lanes=1).load_state_dict(state)
    last = make(data, Shuffled(1), lanes=1)
    last.load_state_dict(state)
    assert Counter(ids + more + all_ids(last)) == Counter(range(ROWS))


def test_a_strategy_that_is_never_the_same_cannot_be_resumed(data: Path) -> None:
    numbers = iter(range(100))

    class Random(Shuffled):
        def generate(self, *args: Any) -> list[Split]:
            self.seed = next(numbers)
            return super().generate(*args)

    _, state = state_after(make(data, Random(0)), 4)
    with pytest.raises(StateMismatchError, match="whenever it is asked"):
        make(data, Random(0)).load_state_dict(state)


def test_states_ask_the_strategy_for_nothing_more(data: Path) -> None:
    plain, stated = Shuffled(1), Shuffled(1)
    all_ids(make(data, plain))
    loader = make(data, stated)
    for _ in loader:
        saved(loader)
    assert stated.calls == plain.calls


def test_the_start_of_an_epoch_belongs_to_any_splits(data: Path) -> None:
    saving = make(data, Shuffled(1))
    before = saved(saving)
    all_ids(saving)
    for state in (before, saved(saving)):
        loader = make(data, Shuffled(2))
        loader.load_state_dict(state)
        assert sorted(all_ids(loader)) == list(range(ROWS))


def test_states_of_ranks_are_merged_if_their_splits_are_the_same(data: Path) -> None:
    def rank(number: int, seed: int = 1) -> StatefulLoader:
        return make(data, Shuffled(seed), rank=number, world_size=2, even=False)

    ranks = [rank(0), rank(1)]
    ids = all_ids(islice(ranks[0], 3))  # rank 1 has not begun
    merged = merge_states([saved(one) for one in ranks])
    for number in range(2):
        with pytest.raises(StateMismatchError, match="other splits"):
            rank(number, seed=2).load_state_dict(merged)
        resumed = rank(number)
        resumed.load_state_dict(merged)
        ids += all_ids(resumed)
    assert Counter(ids) == Counter(range(ROWS))
    others = [state_after(rank(number, seed=1 + number), 3)[1] for number in range(2)]
    with pytest.raises(StateMismatchError, match="different jobs"):
        merge_states(others)


def test_a_rank_without_any_batch_hinders_no_merged_state(data: Path) -> None:
    """It is at the end of the epoch before any rank has begun it."""

    class OnlyFirst(Shuffled):
        def generate(self, *args: Any) -> list[Split]:
            lanes = super().generate(*args)
            chunks = [chunk for lane in lanes for chunk in lane.file_splits]
            return [Split(0, chunks), *(Split(lane, []) for lane in range(1, len(lanes)))]

    def rank(number: int, ranks: int) -> StatefulLoader:
        return make(data, OnlyFirst(1), rank=number, world_size=ranks, even=False)

    loaders = [rank(number, 2) for number in range(2)]
    for loader in loaders:
        iter(loader)
    states = [saved(loader) for loader in loaders]
    assert [state["epoch"] for state in states] == [0, 1]
    seen = list[int]()
    for number in range(3):
        resumed = rank(number, 3)
        resumed.load_state_dict(merge_states(states))
        seen += all_ids(resumed)
    assert sorted(seen) == list(range(ROWS))


def test_a_loaded_state_is_planned_once(data: Path) -> None:
    _, state = state_after(make(data, Shuffled(1), lanes=2), 3)
    strategy = Shuffled(1)
    loader = make(data, strategy, lanes=2)
    strategy.calls = 0
    loader.load_state_dict(state)
    all_ids(loader)
    assert strategy.calls <= 1


def test_even_batches_of_another_size_than_the_loader_s(tmp_path: Path) -> None:
    """Use lanes that are uneven for the loader: ranks agree on their steps, and resume exactly."""
    folder = write_parquet(tmp_path)
    strategy = EvenBatchesSplitStrategy(batch_size=140)

    def loader(rank: int, ranks: int, even: Any = False) -> StatefulLoader:
        return StructuredDataset.create_dataloader(
            folder,
            batch_size=30,
            lanes=4,
            num_workers=0,
            rank=rank,
            world_size=ranks,
            even=even,
            split_strategy=strategy,
        )[0]

    one = loader(0, 1)
    ids = all_ids(islice(one, 3))
    state = one.state_dict()
    for rank in range(4):
        resumed = loader(rank, 4)
        resumed.load_state_dict(state)
        ids += all_ids(resumed)
    assert sorted(ids) == list(range(ROWS))
    assert len({len(list(loader(rank, 2, "drop"))) for rank in range(2)}) == 1
