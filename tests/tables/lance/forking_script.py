"""A program that makes a backend, may use Lance, and forks workers that read.

Its arguments: a dataset, and what to do, step by step. Prints a line of JSON for each step that has
something to tell.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

from torch.utils.data import DataLoader, Dataset

from headrace.access.lance import LanceBackend
from headrace.tables.lance import process


class Taken(Dataset[Any]):
    def __init__(self, backend: LanceBackend) -> None:
        self.backend = backend

    def __len__(self) -> int:
        return self.backend.num_rows

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            ids = self.backend.take(indices, columns=["id"])["id"].to_pylist()
            start = indices[0]
            sliced = self.backend.slice(start, len(indices), columns=["id"])["id"].to_pylist()
        assert ids == sliced
        return {
            "ids": ids,
            "warned": [str(one.message) for one in warned],
            "helped": process._own is not None and process._own[0] == os.getpid(),
        }


def forked(backend: LanceBackend, method: str | None) -> dict[str, Any]:
    loader = DataLoader(
        Taken(backend),
        batch_size=50,
        num_workers=2,
        collate_fn=as_it_is,
        multiprocessing_context=method,
        timeout=100,
    )
    batches = list(loader)
    return {
        "ids": [number for batch in batches for number in batch["ids"]],
        "warned": [text for batch in batches for text in batch["warned"]],
        "helped": [batch["helped"] for batch in batches],
    }


def as_it_is(value: Any) -> Any:
    return value


def child_that_waits(backend: LanceBackend) -> None:
    """Print the ids of a child and of the process that reads for it, and wait to be killed."""
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend.take([0])
        assert process._own is not None
        helper = process._own[1]._process.pid
        print(json.dumps({"child": os.getpid(), "helper": helper}), flush=True)
        time.sleep(300)
        os._exit(1)
    os.waitpid(child, 0)


def main() -> None:
    backend = LanceBackend(sys.argv[1])
    for step in sys.argv[2:]:
        if step in ("fork", "forkserver", "spawn"):
            print(json.dumps(forked(backend, step)), flush=True)
        elif step == "import":
            import lance
        elif step == "use":
            import lance

            lance.dataset(sys.argv[1]).count_rows()
        elif step == "read":
            backend.get_row(0)
        else:
            child_that_waits(backend)


if __name__ == "__main__":
    main()
