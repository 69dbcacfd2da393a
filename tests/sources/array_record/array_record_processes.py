"""What is done in processes of their own, for it hangs where it is wrong."""

from __future__ import annotations

import sys
import threading
from typing import Any

from headrace.sources.array_record.backend import ArrayRecordBackend


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
    for method, number in (("forkserver", 2), ("spawn", 1)):
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


TASKS = (workers, many_threads)

if __name__ == "__main__":
    for task in TASKS:
        task(sys.argv[1])
        print("done", task.__name__, flush=True)
