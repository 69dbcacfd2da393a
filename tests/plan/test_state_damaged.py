"""States that were edited or damaged always raise an error about it, and never give wrong rows."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_files import ROWS, all_ids, write_parquet

from headrace import StateMismatchError, StructuredDataset, merge_states
from headrace.access import BucketBatchSampler, GlobalShuffleSampler, ShardShuffleSampler

State = dict[str, Any]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

OTHERS: list[Any] = [None, True, False, 0, 1, -1, 2**40, 1.0, "", "x", [], [0], [[0, 0]], {}]
"""replacements of a value"""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a state with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def change(state: State, chance: random.Random) -> None:
    """Change one random value of a state."""
    where, key = chance.choice(list(places(state)))
    ways = ["other", "delete", "twice"]
    if type(where[key]) is int:
        ways += ["number"] * 4
    if isinstance(where[key], str) and where[key]:
        ways += ["text"] * 4
    way = chance.choice(ways)
    if way == "number":
        where[key] += chance.choice([-100, -2, -1, 1, 2, 3, 60, 1000])
    elif way == "text":
        at = chance.randrange(len(where[key]))
        where[key] = where[key][:at] + chance.choice("0123abc ") + where[key][at + 1 :]
    elif way == "delete":
        del where[key]
    elif way == "twice" and isinstance(where, list):
        where.insert(key, copy.deepcopy(where[key]))
    else:
        where[key] = copy.deepcopy(chance.choice(OTHERS))


def damaged(state: State, count: int, seed: int = 0) -> Iterator[State]:
    """Yield states that differ from this one a little."""
    chance, whole = random.Random(seed), json.dumps(state)
    while count:
        if chance.random() < 0.3:  # a file with a wrong byte, or cut off
            at = chance.randrange(len(whole))
            text = whole[:at] + chance.choice(["", "0", "1", "9", '"', "]", ","]) + whole[at + 1 :]
            try:
                changed = json.loads(text)
            except ValueError:
                continue
        else:
            changed = json.loads(whole)
            for _ in range(chance.choice([1, 1, 1, 2, 3])):
                change(changed, chance)
                if not changed:
                    break
        known = {name: changed[name] for name in state if name in changed}
        if json.dumps(known) != whole:
            count -= 1
            yield changed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


def make(data: Path, **options: Any) -> Any:
    options = {"batch_size": 60, "num_workers": 0, "shuffle": True, "split_rows": 70, **options}
    return StructuredDataset.create_dataloader(data, **options)[0]


def state_after(loader: Any, batches: int) -> State:
    all_ids(islice(loader, batches))
    state: State = json.loads(json.dumps(loader.state_dict()))
    return state


def of_one(data: Path) -> tuple[Any, State]:
    return make(data), state_after(make(data), 4)


MIXED: dict[str, Any] = {"lanes": 4, "shuffle": True, "mix": 2}


def of_lanes(data: Path) -> tuple[Any, State]:
    return make(data, **MIXED), state_after(make(data, **MIXED), 7)


def resized(data: Path) -> tuple[Any, State]:
    between = make(data, lanes=2)
    between.load_state_dict(state_after(make(data, lanes=3), 4))
    return make(data, lanes=2), state_after(between, 3)


def merged(data: Path) -> tuple[Any, State]:
    ranks = [make(data, rank=rank, world_size=2) for rank in range(2)]
    return make(data), merge_states([state_after(rank, 3) for rank in ranks])


def adaptive(data: Path) -> tuple[Any, State]:
    options: State = {"num_workers": 2, "balance": "adaptive"}
    return make(data, **options), state_after(make(data, **options), 5)


def of_dataset(data: Path) -> tuple[Any, State]:
    dataset = StructuredDataset(data, batch_size=60, shuffle=True, split_rows=70)
    all_ids(islice(dataset, 4))
    return dataset, dataset.state_dict()


def of_rows(data: Path) -> tuple[Any, State]:
    sampler = GlobalShuffleSampler(1000, seed=3, rank=1, world_size=2)
    return sampler, sampler.state_dict(samples=40)


def of_shards(data: Path) -> tuple[Any, State]:
    sampler = ShardShuffleSampler([400, 600], seed=3)
    return sampler, sampler.state_dict(samples=40)


def of_buckets(data: Path) -> tuple[Any, State]:
    sampler = BucketBatchSampler([0, 1, 2, 1] * 100, 8, seed=3)
    return sampler, sampler.state_dict(batches=9)


MAKERS = [
    of_one,
    of_lanes,
    resized,
    merged,
    adaptive,
    of_dataset,
    of_rows,
    of_shards,
    of_buckets,
]


@pytest.mark.parametrize("maker", MAKERS)
def test_a_damaged_state_is_refused_and_changes_nothing(
    data: Path, maker: Callable[[Path], tuple[Any, State]]
) -> None:
    loader, state = maker(data)
    before = loader.state_dict()
    for wrong in damaged(state, 300):
        with pytest.raises(StateMismatchError) as caught:
            loader.load_state_dict(wrong)
        assert "state" in str(caught.value), wrong
        assert loader.state_dict() == before
    for garbage in (None, 5, "state", [], [1], {}, {"epoch": 0}, np.arange(3)):
        with pytest.raises(StateMismatchError, match="state"):
            loader.load_state_dict(garbage)
    loader.load_state_dict(state)


def test_damaged_states_are_not_merged(data: Path) -> None:
    states = [state_after(make(data, rank=rank, world_size=2), 3) for rank in range(2)]
    for wrong in damaged(states[1], 300):
        for pair in ([states[0], wrong], [wrong, states[0]], [wrong]):
            with pytest.raises(StateMismatchError):
                merge_states(pair)
    for others in ([states[0], states[0]], [merge_states(states), states[1]]):
        with pytest.raises(StateMismatchError):
            merge_states(others)


def test_what_files_do_to_a_state_is_no_damage(data: Path) -> None:
    """Check changes by serialization: lists for tuples, other orders of keys, integers of numpy."""

    def in_numpy(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(map(in_numpy, value))
        return np.int64(value) if type(value) is int else value

    loader, state = of_lanes(data)
    rest = ROWS - 7 * 60
    for same in (
        json.loads(json.dumps(state, sort_keys=True, indent=2)),
        {name: in_numpy(state[name]) for name in sorted(state, reverse=True)},
        {**state, "note": "added by the training script"},
    ):
        loader.load_state_dict(same)
        assert len(all_ids(loader)) == rest
