"""Which epoch comes next: after an end, a break or ``set_epoch``, and in which processes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, all_ids, write_csv, write_parquet
from torch.utils.data import DataLoader

from headrace import OptionError, StatefulLoader, StructuredDataset

SHUFFLED: dict[str, Any] = {"shuffle": True, "split_rows": 70, "mix": 2, "batch_size": 100}
KINDS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def orders(data: Path) -> list[list[int]]:
    """Return epochs 0 to 3 in two lanes, each read alone."""
    loader = make(data, num_workers=0)
    epochs = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        epochs.append(all_ids(loader))
    assert len({tuple(order) for order in epochs}) == 4
    assert all(sorted(order) == list(range(ROWS)) for order in epochs)
    return epochs


def make(data: Path, **options: Any) -> StatefulLoader:
    return StructuredDataset.create_dataloader(data, lanes=2, **SHUFFLED, **options)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_batch_ends_an_epoch_although_no_more_was_asked_for(
    data: Path, orders: list[list[int]], kind: dict[str, Any]
) -> None:
    loader = make(data, **kind)
    for order in orders[:3]:
        assert all_ids(islice(loader, len(loader))) == order
    loader.load_state_dict(loader.state_dict())
    assert all_ids(islice(loader, len(loader))) == orders[3]
    loader.set_epoch(3)
    assert all_ids(islice(loader, len(loader))) == orders[3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_state_before_a_batch_that_was_fetched_ahead(
    data: Path, kind: dict[str, Any], filtered: bool
) -> None:
    filters = [("id", ">=", 37)] if filtered else None
    loader = make(data, filters=filters, **kind)
    batches, states = [], []
    for batch in loader:
        batches.append(batch["id"].tolist())
        states.append(loader.state_dict(unused_batches=1))
    assert len(batches) > 4
    for step in (0, 1, len(batches) // 2, len(batches) - 1):
        loader.load_state_dict(states[step])
        assert [batch["id"].tolist() for batch in loader] == batches[step:]


@pytest.mark.parametrize("filtered", [False, True])
def test_a_state_before_the_last_batch_after_a_break(data: Path, filtered: bool) -> None:
    filters = [("id", ">=", 37)] if filtered else None
    loader = make(data, filters=filters, num_workers=0)
    batches = []
    for batch in loader:
        batches.append(batch["id"].tolist())
        if len(batches) == 3:
            break
    again = make(data, filters=filters, num_workers=0)
    again.load_state_dict(loader.state_dict(unused_batches=1))
    assert next(iter(again))["id"].tolist() == batches[-1]


@pytest.mark.parametrize("unused", [2, -1, True, "1"])
def test_unused_batches_are_none_or_one(data: Path, unused: Any) -> None:
    with pytest.raises(OptionError, match="unused_batches must be"):
        make(data, num_workers=0).state_dict(unused_batches=unused)


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_moves_on_and_a_break_starts_over(
    data: Path, orders: list[list[int]], kind: dict[str, Any]
) -> None:
    loader = make(data, **kind)
    assert all_ids(loader) == orders[0]
    assert loader.dataset.epoch == 1
    for _ in range(2):
        assert all_ids(islice(loader, 3)) == orders[1][:300]
        assert loader.dataset.epoch == 1
    assert all_ids(loader) == orders[1]
    assert all_ids(loader) == orders[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_epoch_wins(data: Path, orders: list[list[int]], kind: dict[str, Any]) -> None:
    loader = make(data, **kind)
    loader.set_epoch(2)
    assert all_ids(loader) == orders[2]
    loader.dataset.set_epoch(1)
    assert all_ids(loader) == orders[1]
    loader.set_epoch(1)
    assert all_ids(loader) == orders[1]
    assert all_ids(loader) == orders[2]
    assert all_ids(loader) == orders[3]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_set_inside_the_loop_is_for_the_next(
    data: Path, orders: list[list[int]], kind: dict[str, Any]
) -> None:
    loader = make(data, **kind)
    ids = []
    for batch in loader:
        loader.set_epoch(3)
        ids += batch["id"].tolist()
    assert ids == orders[0]
    assert all_ids(loader) == orders[3]


def test_epochs_of_unfinished_iterators_do_not_count(data: Path, orders: list[list[int]]) -> None:
    loader = make(data, num_workers=0)
    iter(loader)
    kept = iter(loader)
    next(kept)
    assert all_ids(loader) == orders[0]
    assert all_ids(kept) == orders[0][100:]
    assert loader.dataset.epoch == 1
    assert all_ids(loader) == orders[1]


def test_the_seed_changes_every_epoch(data: Path, orders: list[list[int]]) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data, lanes=2, num_workers=0, shuffle_seed=43, **SHUFFLED
    )
    other = [all_ids(loader) for _ in range(2)]
    assert not {tuple(order) for order in other} & {tuple(order) for order in orders}


def test_only_set_epoch_moves_persistent_workers_of_a_plain_loader(
    data: Path, orders: list[list[int]]
) -> None:
    dataset = StructuredDataset(data, lanes=2, **SHUFFLED)
    plain = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert all_ids(plain) == orders[0]
    assert all_ids(plain) == orders[0]
    dataset.set_epoch(2)
    assert all_ids(plain) == orders[2]
    assert all_ids(plain) == orders[2]


def test_a_plain_loader_in_this_process_moves_on(data: Path, orders: list[list[int]]) -> None:
    dataset = StructuredDataset(data, lanes=2, **SHUFFLED)
    plain = DataLoader(dataset, batch_size=None)
    assert all_ids(plain) == orders[0]
    assert all_ids(plain) == orders[1]


def test_text_is_shuffled_by_epoch_too(tmp_path: Path) -> None:
    write_csv(tmp_path)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, "csv", num_workers=0, shuffle=True, split_bytes=1500, batch_size=100
    )
    first, second = all_ids(loader), all_ids(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None, True])
def test_an_epoch_is_a_count(data: Path, epoch: Any) -> None:
    loader = make(data, num_workers=0)
    with pytest.raises(OptionError, match="epoch"):
        loader.set_epoch(epoch)
    with pytest.raises(OptionError, match="epoch"):
        loader.dataset.set_epoch(epoch)
