"""Rows of Arrow files by index in worker processes, whatever way they are started."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc
from torch.utils.data import DataLoader, Dataset

from headrace.sources.arrow.backend import ArrowBackend

ROWS = 900


class Ids(Dataset[int]):
    """The least that a map-style dataset over a backend can be."""

    def __init__(self, backend: ArrowBackend) -> None:
        self.backend = backend

    def __len__(self) -> int:
        return len(self.backend)

    def __getitem__(self, index: int) -> int:
        return int(self.backend.get_row(index)["id"])

    def __getitems__(self, indices: list[int]) -> list[int]:
        table = self.backend.take(indices)
        assert table["codes"].to_pylist() == [f"c{index % 3}" for index in indices]
        return [int(text) for text in table["text"].to_pylist()]


def rows() -> pa.Table:
    ids = range(ROWS)
    codes = pa.array([f"c{i % 3}" for i in ids]).dictionary_encode()
    return pa.table({"id": ids, "text": [f"{i:0100}" for i in ids], "codes": codes})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A file, a compressed one, and a stream."""
    table = rows()
    plain, packed = ipc.IpcWriteOptions(), ipc.IpcWriteOptions(compression="zstd")
    for number, (new, options) in enumerate(
        [(ipc.new_file, plain), (ipc.new_file, packed), (ipc.new_stream, plain)]
    ):
        with new(tmp_path / f"{number}.arrow", table.schema, options=options) as writer:
            writer.write_table(table.slice(300 * number, 300), max_chunksize=40)
    return tmp_path


def loaded(backend: ArrowBackend, start_method: str) -> list[int]:
    loader = DataLoader(
        Ids(backend),
        batch_size=50,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=start_method,
        timeout=120,
    )
    return sorted(int(i) for batch in loader for i in batch)


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_workers_read_what_their_parent_has_read_from(files: Path, start_method: str) -> None:
    backend = ArrowBackend(files)
    before = backend.take([0, 400, 899])
    assert loaded(backend, start_method) == list(range(ROWS))
    assert backend.take([0, 400, 899]).equals(before)


def test_a_table_goes_to_workers_with_its_rows() -> None:
    assert loaded(ArrowBackend(table=rows()), "fork") == list(range(ROWS))


def test_a_forked_child_opens_its_own(files: Path) -> None:
    backend = ArrowBackend(files)
    backend.take([0, 400, 899])
    maps = backend._opened()
    assert maps is not None
    lock, forked, held = maps.lock, threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            forked.wait()

    other = threading.Thread(target=hold)  # of the parent, at work when it forks
    other.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if backend.take([5, 450])["id"].to_pylist() == [5, 450] else 1)
    forked.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
