"""``len(loader)`` is the length of a whole epoch, and ``remaining`` that of the rest."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, write_csv, write_parquet

from headrace import StatefulLoader, StructuredDataset, merge_states
from headrace.testing import saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


def make(data: Path, **options: Any) -> StatefulLoader:
    chosen = {"batch_size": 100, "num_workers": 0, "shuffle": True, **options}
    return StructuredDataset.create_dataloader(data, **chosen)[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_lengths_while_an_epoch_is_read(data: Path, workers: int, drop_last: bool) -> None:
    loader = make(data, num_workers=workers, drop_last=drop_last)
    length = ROWS // 100 if drop_last else -(-ROWS // 100)
    for _ in range(2):
        assert (len(loader), loader.remaining) == (length, length)
        left = length
        for _ in loader:
            left -= 1
            assert (len(loader), loader.remaining) == (length, left)
        assert left == 0
    for _ in islice(loader, 3):  # leaving the pass keeps the position
        pass
    assert (len(loader), loader.remaining) == (length, length - 3)
    loader.set_epoch(7)
    assert (len(loader), loader.remaining) == (length, length)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"batch_size": 37}, {"lanes": 6}, {"num_workers": 2}])
def test_lengths_after_a_state_was_loaded(data: Path, ranks: int, options: dict[str, Any]) -> None:
    before = [make(data, rank=rank, world_size=2) for rank in range(2)]
    for loader in before:
        list(islice(loader, 3))
    state = merge_states([saved(loader) for loader in before])
    for rank in range(ranks):
        fresh = make(data, rank=rank, world_size=ranks, **options)
        length = len(fresh)
        fresh.load_state_dict(state)
        assert len(fresh) == length
        left = fresh.remaining
        assert 0 < left < length
        if rank == 0:
            for _ in fresh:
                left -= 1
                assert (len(fresh), fresh.remaining) == (length, left)
            assert (left, fresh.remaining) == (0, length)
            assert sum(1 for _ in fresh) == length


def test_lengths_that_only_reading_would_tell(tmp_path: Path) -> None:
    loader = make(write_csv(tmp_path / "csv"), format="csv")
    next(iter(loader))
    for _ in range(2):
        with pytest.raises(TypeError, match="not known before they are read"):
            len(loader)
        with pytest.raises(TypeError, match="not known before they are read"):
            _ = loader.remaining
        loader.load_state_dict(saved(loader))
