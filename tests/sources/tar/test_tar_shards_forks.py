"""Tars in other processes: after a fork, spawned, and in workers of a DataLoader."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tars_made import members, write_shards
from torch.utils.data import DataLoader, Dataset

from headrace import TarShards
from headrace.sources.tar import index_tars
from headrace.sources.tar.index import TarIndex

SHARDS = [members(25, seed) for seed in range(3)]
EVERYTHING = [payload for shard in SHARDS for _, payload in shard[::2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks")
    write_shards(folder, SHARDS)
    index_tars(folder, format="arrow")
    return folder


def send_all(shards: TarShards, pipe: Any) -> None:
    pipe.send([sample.bytes for sample in shards.samples()])
    pipe.close()


def read_in_child(shards: TarShards, method: str) -> list[bytes]:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=send_all, args=(shards, there))
    child.start()
    there.close()
    found: list[bytes] = here.recv() if here.poll(300) else []
    child.join(300)
    assert child.exitcode == 0
    return found


def test_a_forked_child_goes_on_with_what_is_open(folder: Path) -> None:
    shards = TarShards(folder)
    assert [sample.bytes for sample in shards.samples()] == EVERYTHING
    assert read_in_child(shards, "fork") == EVERYTHING
    assert shards.load_sample(2, 24).bytes == EVERYTHING[-1]


def test_a_fork_while_other_threads_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that one of them holds is not waited for by the child."""
    collection = TarShards(folder).collection
    parent, load = os.getpid(), collection._loaded
    leave, inside = threading.Event(), threading.Event()

    def wait(shard: int) -> TarIndex:
        if os.getpid() == parent:
            inside.set()
            leave.wait(300)
        return load(shard)

    monkeypatch.setattr(collection, "_loaded", wait)
    loading = threading.Thread(target=collection.index, args=(0,))
    loading.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        collection.index(0)
        os._exit(7)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        leave.set()
        loading.join()


class Samples(Dataset[bytes]):
    """As a user would write it."""

    def __init__(self, shards: TarShards) -> None:
        self.shards = shards
        self.places = [(s, n) for s in range(3) for n in range(25)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> bytes:
        return self.shards.load_sample(*self.places[index]).bytes

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        return [s.bytes for s in self.shards.load_samples([self.places[i] for i in indices])]


def test_workers_of_a_loader(folder: Path) -> None:
    shards = TarShards(folder)
    assert shards.load_sample(0, 0).bytes == EVERYTHING[0]
    order = list(range(75))
    random.Random(0).shuffle(order)
    loader = DataLoader(
        Samples(shards), batch_size=10, sampler=order, num_workers=2, collate_fn=list
    )
    found = [payload for batch in loader for payload in batch]
    assert found == [EVERYTHING[index] for index in order]
