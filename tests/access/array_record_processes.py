"""What is done in processes of their own, for it hangs where it is wrong."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.access.array_record.backend import ArrayRecordBackend
from headrace.archives.reading_process import must_not_read
from headrace.errors import ReadError


class Rows:
    """Lengths of records, read by index in whatever process."""

    def __init__(self, backend: ArrayRecordBackend) -> None:
        self.backend = backend

    def __len__(self) -> int:
        return len(self.backend)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        whole = self.backend.take(indices)["record"].to_pylist()
        assert whole == [self.backend.get_row(index)["record"] for index in indices]
        return [len(record) for record in whole]


def workers(path: str) -> None:
    """Workers of a user's own DataLoader read what the parent has read, and reads on."""
    import torch
    from torch.utils.data import DataLoader

    backend = ArrayRecordBackend(path)
    expected = [len(record) for record in backend.table["record"].to_pylist()]
    for method, number in (("fork", 2), ("forkserver", 1), ("spawn", 1)):
        loader = DataLoader(
            Rows(backend),  # type: ignore[arg-type]
            batch_size=16,
            num_workers=number,
            multiprocessing_context=method,
            persistent_workers=True,
        )
        for _ in range(2):
            assert torch.cat(list(loader)).tolist() == expected, method
            backend.take([0, 1])


def forked_before_reading(path: str) -> None:
    """A parent that only looked at the files has no threads: its children read by themselves."""
    backend = ArrayRecordBackend(path)
    assert "array_record.python.array_record_module" not in sys.modules

    def child() -> None:
        assert not must_not_read()
        assert len(backend.get_row(5)["record"]) > 0
        assert "array_record.python.array_record_module" in sys.modules
        _in_child(lambda: _reads_elsewhere(backend))

    _in_child(child)


def _reads_elsewhere(backend: ArrayRecordBackend) -> None:
    assert must_not_read()
    assert len(backend.get_row(5)["record"]) > 0


def forked_after_others(path: str) -> None:
    """A child reads although its parent used the package's own pool of threads."""
    from array_record.python.array_record_module import ArrayRecordReader

    others = ArrayRecordReader(path)
    others.read(0, 50)
    others.seek(3)
    others.read()
    backend = ArrayRecordBackend(path)
    expected = backend.take([5, 50, 7])

    def child() -> None:
        assert backend.take([5, 50, 7]).equals(expected)
        fresh = ArrayRecordBackend(path, high_memory=True)
        tables = list(fresh.stream(0, 60, fresh.schema, 1000))
        assert sum(table.num_rows for table in tables) == 60
        assert fresh.get_row(5)["record"] == expected["record"][0].as_py()

    _in_child(child)


def a_record_that_cannot_be_read(path: str) -> None:
    """The error of a damaged record comes from the other process, and what follows is read."""
    damaged = Path(path).with_name("damaged.array_record")
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 9] = bytes(9)
    damaged.write_bytes(bytes(data))
    backend = ArrayRecordBackend(damaged)
    bad = [row for row in range(len(backend)) if _message(backend, row)]
    assert 1 <= len(bad) <= 2
    said = _message(backend, bad[0])

    def child() -> None:
        assert must_not_read()
        assert _message(backend, bad[0]) == said
        assert [row for row in range(len(backend)) if _message(backend, row)] == bad

    _in_child(child)


def _message(backend: ArrayRecordBackend, row: int) -> str:
    try:
        backend.get_row(row)
    except ReadError as error:
        return str(error)
    return ""


def forked_in_the_middle(path: str) -> None:
    """A fork while another thread reads leaves no lock behind, and both go on."""
    backend = ArrayRecordBackend(path)
    expected = backend.get_row(9)
    going = True

    def read() -> None:
        while going:
            backend.take([1, 2, 3])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        _in_child(lambda: _same(backend.get_row(9), expected))
    going = False
    for thread in threads:
        thread.join()
    _same(backend.get_row(9), expected)


def many_threads(path: str) -> None:
    """Threads share a backend, and each has a reader of its own."""
    backend = ArrayRecordBackend(path)
    expected = backend.table["record"].to_pylist()
    wrong: list[int] = []

    def read(first: int) -> None:
        for turn in range(200):
            row = (first * 37 + turn * 11) % len(expected)
            if backend.get_row(row)["record"] != expected[row]:
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _same(found: object, expected: object) -> None:
    assert found == expected


def _in_child(work: Any) -> None:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode


TASKS = (
    forked_before_reading,
    workers,
    forked_after_others,
    forked_in_the_middle,
    many_threads,
    a_record_that_cannot_be_read,
)

if __name__ == "__main__":
    for task in TASKS:
        task(sys.argv[1])
        print("done", task.__name__, flush=True)
