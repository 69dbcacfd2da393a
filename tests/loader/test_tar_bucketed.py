"""Loaders with batches of one shape: every sample once, exact resuming, sharing among ranks."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tars import picture, write_samples, write_tar
from torch.utils.data import DataLoader

from headrace import (
    OptionError,
    SkippedDataWarning,
    StateMismatchError,
    TarDataset,
    WorkerError,
    merge_states,
)
from headrace.loader._tar import BucketedLoader
from headrace.model import DataFileInfo
from headrace.sources.tar.index import write_index
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore

COUNTS = (37, 26)
ROWS = sum(COUNTS)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def indexed(folder: Path) -> Path:
    for path in sorted(folder.glob("*.tar")):
        file = DataFileInfo(str(path), path.stat().st_size)
        index = scan_tar(LocalStore(), file, geometry=True)
        write_index(str(path.with_suffix(".idx.arrow")), [(path.name, index)])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(write_samples(tmp_path_factory.mktemp("tars"), COUNTS))


def loaded(source: Path, **options: Any) -> BucketedLoader:
    chosen = {"num_workers": 0, "batch_size": 4, "shuffle": True, "columns": ["__key__", "png"]}
    loader, dataset = TarDataset.create_dataloader(
        source, bucketed=True, decode=["png"], **{**chosen, **options}
    )
    assert isinstance(loader, BucketedLoader)
    assert isinstance(dataset, TarDataset)
    return loader


def keys_of(batches: Iterable[Any]) -> list[list[int]]:
    return [[int(key) for key in batch["__key__"]] for batch in batches]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [key for batch in batches for key in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_of_one_shape(folder: Path, workers: int) -> None:
    loader = loaded(folder, num_workers=workers)
    assert isinstance(loader, DataLoader)
    batches = list(loader)
    assert len(loader) == len(batches)
    assert all(isinstance(batch["png"], torch.Tensor) for batch in batches)
    assert len({batch["png"].shape[1:] for batch in batches}) == 4
    keys = keys_of(batches)
    assert sorted(flat(keys)) == list(range(ROWS))
    assert all(len({key % 4 for key in batch}) == 1 for batch in keys)
    again = keys_of(loader)
    assert sorted(flat(again)) == list(range(ROWS))
    assert again != keys


def test_every_key_of_buckets(folder: Path) -> None:
    by_aspect = loaded(folder, key="aspect", round_to=0)
    by_shape = loaded(folder, key="geometry-tuple", target_pixel_area=256)
    for loader in (by_aspect, by_shape):
        assert sorted(flat(keys_of(loader))) == list(range(ROWS))
    with pytest.raises(OptionError, match="key"):
        loaded(folder, key="colour")


def test_sizes_of_batches_by_shape(folder: Path) -> None:
    loader = loaded(folder, batch_size=lambda shape: 2 if shape == (24, 12) else 8)
    sizes: dict[tuple[int, ...], set[int]] = {}
    for batch in loader:
        sizes.setdefault(tuple(batch["png"].shape[2:]), set()).add(len(batch["png"]))
    assert max(sizes[(12, 24)]) == 2
    assert max(sizes[(16, 16)]) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_at_any_batch(folder: Path, workers: int) -> None:
    whole = keys_of(loaded(folder))
    loader = loaded(folder, num_workers=workers, prefetch_factor=4) if workers else loaded(folder)
    for steps in (0, 1, 7, len(whole) - 1):
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        other = loaded(folder)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert keys_of(other) == whole[steps:]
        del batches  # the pass was left: the epoch begins again


@pytest.mark.parametrize("workers", [0, 2])
def test_lengths_of_epochs_and_of_what_is_left(folder: Path, workers: int) -> None:
    loader = loaded(folder, num_workers=workers)
    length = len(loader)
    for _ in range(2):
        assert loader.remaining == length
        for steps, _ in enumerate(loader, 1):
            assert (len(loader), loader.remaining) == (length, length - steps)
            if steps == 5:
                state = loader.state_dict()
    other = loaded(folder, num_workers=workers)
    other.load_state_dict(state)
    assert (len(other), other.remaining) == (length, length - 5)
    assert len(keys_of(other)) == length - 5
    assert (len(other), other.remaining) == (length, length)
    other.load_state_dict(state)
    next(iter(other))
    running = iter(other)  # the epoch from its start: a state is used once
    assert (other.remaining, other.state_dict()["steps"]) == (length, 0)
    next(running)
    assert other.remaining == length - 1


def test_states_belong_to_the_files(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    loader = loaded(folder)
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), keys_of(running)
    for path in copy.glob("*.tar"):
        path.touch()
    for path in copy.glob("*.idx.arrow"):
        path.touch()
    other = loaded(copy)
    other.load_state_dict(state)
    assert keys_of(other) == rest
    path = max(copy.glob("*.tar"))
    content = path.read_bytes()
    place = content.index(b"IDAT") + 8
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    for index in copy.glob("*.idx.arrow"):
        index.touch()
    with pytest.raises(StateMismatchError, match="files"):
        loaded(copy).load_state_dict(state)


def test_states_of_ranks_are_merged(folder: Path) -> None:
    ranks = [loaded(folder, rank=rank, world_size=2) for rank in range(2)]
    keys = [
        key
        for one in ranks
        for _, batch in zip(range(3), one, strict=False)
        for key in keys_of([batch])[0]
    ]
    merged = merge_states([one.state_dict() for one in ranks])
    alone = loaded(folder)
    alone.load_state_dict(json.loads(json.dumps(merged)))
    assert sorted(keys + flat(keys_of(alone))) == list(range(ROWS))


def test_the_end_of_an_epoch_is_the_start_of_the_next(folder: Path) -> None:
    loader = loaded(folder)
    first, second = keys_of(loader), keys_of(loader)
    other = loaded(folder)
    batches = iter(other)
    for _ in first:
        next(batches)
    state = other.state_dict()
    third = loaded(folder)
    third.load_state_dict(state)
    assert keys_of(third) == second
    third.set_epoch(0)
    assert third.epoch == 0
    assert keys_of(third) == first
    assert third.epoch == 1


def test_a_pass_that_is_left_begins_again(folder: Path) -> None:
    loader = loaded(folder, num_workers=1, prefetch_factor=64)  # all batches are requested at once
    whole = keys_of(loaded(folder))
    for _ in range(2):
        assert keys_of([next(iter(loader))]) == whole[:1]
    assert keys_of(loader) == whole


def test_ranks_take_the_same_number_of_steps(folder: Path) -> None:
    ranks = [loaded(folder, rank=rank, world_size=3) for rank in range(3)]
    batches = [keys_of(one) for one in ranks]
    assert len({len(one) for one in batches}) == 1
    assert Counter(flat(flat(batches))) == Counter(range(ROWS))
    state = None
    begun = [loaded(folder, rank=rank, world_size=3) for rank in range(3)]
    for one in begun:
        running = iter(one)
        next(running)
        next(running)
        state = one.state_dict()
    alone = loaded(folder)
    alone.load_state_dict(state)
    keys = [key for one in batches for batch in one[:2] for key in batch]
    assert sorted(keys + flat(keys_of(alone))) == list(range(ROWS))


def test_functions_of_the_user_get_batches(folder: Path) -> None:
    for workers in (0, 1):
        loader = loaded(folder, num_workers=workers, transform=half, collate_fn=counted)
        assert {type(batch) for batch in loader} == {dict}
        assert sum(batch["rows"] for batch in loader) == ROWS
        assert all(batch["png"].dtype == torch.float32 for batch in loader)


def half(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "png": batch["png"] / 2}


def counted(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "rows": len(batch["png"])}


def test_a_state_before_the_first_batch(folder: Path) -> None:
    loader = loaded(folder)
    batches = iter(loader)
    state = loader.state_dict(unused_batches=1)
    again = loaded(folder)
    again.load_state_dict(state)
    assert keys_of(again) == keys_of(batches)


@pytest.mark.parametrize("option", [{"mix": 2}, {"device": "cpu"}, {"stack": {"x": ["a"]}}])
def test_options_of_streams_are_refused(folder: Path, option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(option))} has no effect beside bucketed"):
        loaded(folder, **option)


def test_shapes_have_to_be_known(tmp_path: Path, folder: Path) -> None:
    write_samples(tmp_path, [8])
    with pytest.raises(OptionError, match="geometry"):
        loaded(tmp_path)
    write_tar(tmp_path / "shard_0001.tar", [("100000.png", b"no image"), ("100001.txt", b"a")])
    indexed(tmp_path)
    with pytest.warns(SkippedDataWarning, match="2 of 10"):
        loader = loaded(tmp_path, on_error="skip")
    assert sorted(flat(keys_of(loader))) == list(range(8))


@pytest.mark.filterwarnings("ignore:skipped:headrace.SkippedDataWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_which_all_is_skipped_counts(tmp_path: Path, workers: int) -> None:
    members = [(f"{i:06d}.png", picture(i, (8, 8))) for i in range(6)]
    write_tar(tmp_path / "a.tar", [*members, ("000006.png", picture(6, (16, 8))[:40])])
    indexed(tmp_path)
    options = {"num_workers": workers, "batch_size": 2, "shuffle": False, "on_error": "skip"}
    loader = loaded(tmp_path, **options)
    first, states = [], []
    for batch in loader:
        first.append(batch)
        states.append(loader.state_dict())
    assert loader.dataset.skipped == 1
    assert sorted(flat(keys_of(first))) == list(range(6))
    assert len(loader) == 4
    for steps, state in enumerate(states, 1):
        again = loaded(tmp_path, **options | {"num_workers": 0})
        again.load_state_dict(state)
        assert keys_of(again) == keys_of(first)[steps:]


@pytest.mark.filterwarnings("ignore::headrace.SkippedDataWarning")
def test_ranks_stay_in_step_where_a_batch_is_skipped(tmp_path: Path) -> None:
    members = [(f"{i:06d}.png", picture(i, (8, 8))) for i in range(6)]
    write_tar(tmp_path / "a.tar", [*members, ("000006.png", picture(6, (16, 8))[:40])])
    indexed(tmp_path)
    options = {"num_workers": 0, "batch_size": 2, "shuffle": False, "on_error": "skip"}
    steps = [keys_of(loaded(tmp_path, rank=rank, world_size=2, **options)) for rank in range(2)]
    assert [len(batches) for batches in steps] == [2, 2]
    assert sorted({*flat(steps[0]), *flat(steps[1])}) == list(range(6))
    assert steps[1][0] == steps[1][1]  # replaces the batch that cannot be read


class UnreadableError(Exception):
    """An exception of a decoder."""


def _loader_with(folder: Path, decode: Callable[[bytes], Any], **options: Any) -> Any:
    options = {"num_workers": 1, "decode": {"png": decode}, **options}
    return TarDataset.create_dataloader(folder, bucketed=True, **options)[0]


def test_functions_reach_workers_and_come_back(folder: Path) -> None:
    loader = _loader_with(
        folder,
        lambda data: len(data),
        collate_fn=lambda batch: (batch, lambda: len(batch)),
    )
    batches = [(batch, count()) for batch, count in loader]
    assert batches
    assert all(len(batch) == count for batch, count in batches)


def test_what_a_decoder_raises_arrives_as_it_is(folder: Path) -> None:
    class LocalError(UnreadableError):
        pass

    def refuse(data: bytes) -> Any:
        raise LocalError("not this one")

    with pytest.raises(LocalError, match="not this one"):
        list(_loader_with(folder, refuse))


def test_what_cannot_be_sent_either_way_is_an_error(folder: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(WorkerError, match=r"decode\['png'\] cannot be sent"):
        list(_loader_with(folder, lambda data: lock))
    with pytest.raises(WorkerError, match="cannot be sent from a worker"):
        list(_loader_with(folder, len, collate_fn=lambda batch: threading.Lock()))


def test_states_of_others_are_refused(folder: Path) -> None:
    state = loaded(folder).state_dict()
    with pytest.raises(StateMismatchError):
        loaded(folder, batch_size=5).load_state_dict(state)
    streamed, _ = TarDataset.create_dataloader(folder, num_workers=0)
    with pytest.raises(StateMismatchError):
        streamed.load_state_dict(state)
    with pytest.raises(StateMismatchError):
        loaded(folder).load_state_dict(streamed.state_dict())
