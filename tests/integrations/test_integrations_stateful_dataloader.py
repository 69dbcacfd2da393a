"""torchdata's StatefulDataLoader, and plain DataLoaders, over the user's own dataset."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from common_ground import KEPT
from launching import SOURCES
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from warm_interpreters import run_warm

from headrace import StructuredDataset, WorkerError

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # warned by torchdata

ROWS = 1037
KEPT_ROWS = {i for i in range(ROWS) if i % 3 == 0 or i > ROWS * 0.6}
SHARED = {"rank": 1, "world_size": 2}

KINDS: dict[str, dict[str, Any]] = {
    "counted": {},
    "filtered": {"filters": KEPT},
    "rank 1 of 2": SHARED,
    "rank 1 of 2, filtered": {**SHARED, "filters": KEPT, "even": False},
}


def make_dataset(data: Path, **options: Any) -> StructuredDataset:
    return StructuredDataset(data, batch_size=32, shuffle=True, split_rows=50, mix=2, **options)


def make_loader(data: Path, workers: int, *, every: int = 1, **options: Any) -> StatefulDataLoader:
    dataset = make_dataset(data, **options)
    return StatefulDataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        collate_fn=dataset.collate,
        snapshot_every_n_steps=every,
    )


def frozen(batches: Any) -> list[Any]:
    """Return batches as values that compare bit by bit."""
    return [
        {name: (column.dtype, column.numpy().tobytes()) for name, column in batch.items()}
        for batch in batches
    ]


def rows_of(batches: Any) -> Counter[int]:
    return Counter(row for batch in batches for row in batch["id"].tolist())


@pytest.mark.parametrize(
    ("kind", "workers", "every"),
    [*((kind, *how) for kind in KINDS for how in [(0, 1), (2, 3)]), ("filtered", 2, 1)],
)
def test_it_resumes_bit_by_bit(uneven_rows: Path, kind: str, workers: int, every: int) -> None:
    options = {"every": every, **KINDS[kind]}
    whole = frozen(make_loader(uneven_rows, workers, **options))
    assert len(whole) > 8
    for count in (1, 7, len(whole) - 1):
        loader = make_loader(uneven_rows, workers, **options)
        running = iter(loader)
        assert frozen(islice(running, count)) == whole[:count]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        del running
        resumed = make_loader(uneven_rows, workers, **options)
        resumed.load_state_dict(state)
        assert frozen(resumed) == whole[count:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["counted", "filtered"])
def test_after_the_end_of_an_epoch_comes_a_whole_one(
    uneven_rows: Path, kind: str, workers: int
) -> None:
    loader = make_loader(uneven_rows, workers, **KINDS[kind])
    first = frozen(loader)
    state = loader.state_dict()
    resumed = make_loader(uneven_rows, workers, **KINDS[kind])
    resumed.load_state_dict(state)
    following = list(resumed)
    expected = set(range(ROWS)) if kind == "counted" else KEPT_ROWS
    assert rows_of(following) == Counter(expected)
    if workers == 0:
        assert frozen(following) == frozen(loader) != first


def test_a_state_goes_on_in_a_new_process(uneven_rows: Path, tmp_path: Path) -> None:
    loader = make_loader(uneven_rows, 2, filters=KEPT)
    whole = [batch["id"].tolist() for batch in loader]
    running = iter(loader)
    again = [batch["id"].tolist() for batch in islice(running, 5)]
    (tmp_path / "state").write_bytes(pickle.dumps(loader.state_dict()))
    del running
    paths = (SOURCES, Path(__file__).parent, Path(__file__).parent / "scripts")
    done = run_warm(
        __file__,
        uneven_rows,
        tmp_path / "state",
        env={"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert done.returncode == 0, done.stderr
    rest = json.loads(done.stdout)
    assert again == whole[:5]
    assert rest == whole[5:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["counted", "filtered"])
def test_ranks_of_a_loader_of_ones_own_share_the_rows(
    uneven_rows: Path, kind: str, workers: int
) -> None:
    options = {**KINDS[kind], "world_size": 2, "even": False}
    rows = Counter[int]()
    for rank in range(2):
        rows += rows_of(make_loader(uneven_rows, workers, rank=rank, **options))
    assert rows == Counter(range(ROWS) if kind == "counted" else KEPT_ROWS)


def test_the_parent_of_plain_workers_has_no_state(uneven_rows: Path) -> None:
    dataset = make_dataset(uneven_rows)
    running = iter(DataLoader(dataset, batch_size=None, num_workers=2, collate_fn=dataset.collate))
    next(running)
    with pytest.raises(WorkerError, match="StatefulDataLoader"):
        dataset.state_dict()
    del running


@pytest.mark.parametrize("kind", ["counted", "filtered"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_plain_loaders_go_on_from_the_state_of_a_dataset(
    uneven_rows: Path, kind: str, workers: int
) -> None:
    saving = make_dataset(uneven_rows, **KINDS[kind])
    running = iter(saving)
    rows = rows_of(islice(running, 7))
    state = json.loads(json.dumps(saving.state_dict()))
    dataset = make_dataset(uneven_rows, **KINDS[kind])
    dataset.load_state_dict(state)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=dataset.collate)
    rows += rows_of(loader)
    assert rows == Counter(range(ROWS) if kind == "counted" else KEPT_ROWS)


if __name__ == "__main__":
    resumed_here = make_loader(Path(sys.argv[1]), 2, filters=KEPT)
    resumed_here.load_state_dict(pickle.loads(Path(sys.argv[2]).read_bytes()))
    print(json.dumps([batch["id"].tolist() for batch in resumed_here]))
