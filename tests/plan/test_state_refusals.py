"""States of other data or of other options are refused, and so are values that are not states."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from small_files import all_ids, write_csv, write_parquet
from warm_interpreters import run_warm

from headrace import StatefulLoader, StateMismatchError, StructuredDataset
from headrace.testing import saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

OPTIONS: dict[str, Any] = {
    "batch_size": 100,
    "num_workers": 0,
    "shuffle": True,
    "split_rows": 70,
    "filters": [("id", ">", 3)],
}


def make(directory: Path, **options: Any) -> StatefulLoader:
    return StructuredDataset.create_dataloader(directory, **{**OPTIONS, **options})[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def state(data: Path) -> dict[str, Any]:
    loader = make(data)
    next(iter(loader))
    return saved(loader)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shuffle": False}, "shuffle"),
        ({"split_rows": 71}, "split_rows"),
        ({"split_rows": None}, "split_rows"),
        ({"mix": 2}, "mix"),
        ({"interleave": 2}, "interleave"),
        ({"shuffle_seed": 43}, "shuffle_seed.*42.*43"),
        ({"filters": [("id", ">", 4)]}, "filters"),
        ({"filters": None}, "filters"),
    ],
)
def test_a_state_of_other_options_names_them(
    data: Path, state: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    loader = make(data, **options)
    with pytest.raises(StateMismatchError, match=named):
        loader.load_state_dict(state)
    assert saved(loader)["lanes"] == [[0, 0]]


def test_the_order_of_a_set_in_a_filter_is_of_no_account(data: Path) -> None:
    """Check sets in filters: their order differs by process, and here by colliding hashes."""
    one, other = set(range(0, 24, 8)), set(range(16, -1, -8))
    assert list(one) != list(other)
    loader = make(data, filters=[("id", "in", one)])
    loader.load_state_dict(saved(make(data, filters=[("id", "in", other)])))
    assert sorted(all_ids(loader)) == [0, 8, 16]


def test_a_state_of_other_files_says_so(tmp_path: Path) -> None:
    directory = write_parquet(tmp_path / "data")
    state = saved(make(directory))
    copy_of = write_parquet(tmp_path / "copy", [(400, 128), (754, 100)])
    with pytest.raises(StateMismatchError, match="files"):
        make(copy_of).load_state_dict(state)
    (directory / "part-99.parquet").write_bytes((directory / "part-00.parquet").read_bytes())
    with pytest.raises(StateMismatchError, match="files"):
        make(directory).load_state_dict(state)


def test_what_does_not_change_the_order_may_differ(data: Path, state: dict[str, Any]) -> None:
    rest = [row for batch in make(data) for row in batch["id"].tolist()][100:]
    loader = make(data, columns=["id"], prefetch_bytes="1MiB", output_format="numpy")
    loader.load_state_dict(state)
    assert all_ids(loader) == rest


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        [],
        "state",
        7,
        {},
        {"version": 99},
        {"version": 1},
        {"version": 2},
        {"version": 2, "plan": None},
        {"version": 2, "plan": "plan", "lanes": [[0, 0]], "epoch": 0, "turn": 0},
    ],
)
def test_what_is_no_state_is_refused(data: Path, garbage: Any) -> None:
    with pytest.raises(StateMismatchError, match="state"):
        make(data).load_state_dict(garbage)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("lanes", [[0, -1]]),
        ("lanes", [[10**6, 0]]),
        ("epoch", True),
        ("steps", None),
        ("ranks", [0, 1]),
        ("before", 5),
    ],
)
def test_a_damaged_state_is_refused(
    data: Path, state: dict[str, Any], part: str, value: Any
) -> None:
    damaged = copy.deepcopy(state)
    damaged[part] = value
    loader = make(data)
    with pytest.raises(StateMismatchError, match="damaged"):
        loader.load_state_dict(damaged)
    assert len(all_ids(loader)) == 1150


def test_a_missing_part_is_named(data: Path, state: dict[str, Any]) -> None:
    assert len(state) == 12
    for part in state:
        with pytest.raises(StateMismatchError, match=part):
            make(data).load_state_dict({k: v for k, v in state.items() if k != part})


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 4), (4, 1)])
def test_other_workers_go_on_in_the_same_order_if_they_share_the_lanes(
    data: Path, before: int, after: int
) -> None:
    saving = make(data, num_workers=before, lanes=4)
    running = iter(saving)
    first = all_ids(next(running) for _ in range(3))
    state = saved(saving)
    rest = all_ids(running)
    assert len({*first, *rest}) == 1150
    resumed = make(data, num_workers=after, lanes=4)
    resumed.load_state_dict(state)
    assert all_ids(resumed) == rest


def test_the_lanes_of_the_state_win(data: Path) -> None:
    saving = make(data, num_workers=2)
    running = iter(saving)
    next(running)
    state = saved(saving)
    resumed = make(data, num_workers=0)
    resumed.load_state_dict(state)
    assert all_ids(resumed) == all_ids(running)
    assert saved(resumed) == saved(saving)


RESUME = """
import json, sys
from headrace import StructuredDataset

if __name__ == "__main__":
    directory, state, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    loader, _ = StructuredDataset.create_dataloader(directory, **options)
    loader.load_state_dict(state)
    rest = [batch["id"].tolist() for batch in loader]
    print(json.dumps([rest, [batch["id"].tolist() for batch in loader]]))
"""


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "shuffle": True, "mix": 3, "split_rows": 70},
        {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
        {"num_workers": 0, "format": "csv", "split_bytes": 2000},
    ],
)
def test_a_new_process_goes_on(tmp_path: Path, options: dict[str, Any]) -> None:
    write = write_csv if options.get("format") == "csv" else write_parquet
    directory = write(tmp_path / "data")
    script = tmp_path / "resume.py"
    script.write_text(RESUME)
    options = {"batch_size": 100, "shuffle": True, **options}
    here = {name: value for name, value in options.items() if name != "multiprocessing_context"}
    loader, _ = StructuredDataset.create_dataloader(directory, **here)
    running = iter(loader)
    for _ in range(5):
        next(running)
    state = loader.state_dict()
    rest = [batch["id"].tolist() for batch in running]
    following = [batch["id"].tolist() for batch in loader]
    done = run_warm(script, directory, json.dumps(state), json.dumps(options))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [rest, following]


def test_after_a_failure_the_state_goes_on_at_the_batch_that_failed(data: Path) -> None:
    def fail_once(batch: dict[str, Any]) -> dict[str, Any]:
        if (batch["id"] == 777).any() and failing:
            raise LookupError
        return batch

    failing = [True]
    whole = list(map(frozen_ids, make(data, lanes=3)))
    loader = make(data, lanes=3, transform=fail_once)
    with pytest.raises(LookupError):
        list(loader)
    state = saved(loader)
    failing.clear()
    loader = make(data, lanes=3, transform=fail_once)
    batches = []
    for batch in make(data, lanes=3):
        if 777 in frozen_ids(batch):
            break
        batches.append(frozen_ids(batch))
    loader.load_state_dict(state)
    assert batches + list(map(frozen_ids, loader)) == whole


def frozen_ids(batch: dict[str, Any]) -> tuple[int, ...]:
    return tuple(batch["id"].tolist())
