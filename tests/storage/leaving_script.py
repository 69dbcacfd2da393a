"""Reads from a store in a process of its own and leaves it in mid-epoch, in one of many ways."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any


class EnoughError(Exception):
    """What a training loop raises."""


def leave(way: str, loader: Any) -> None:
    batches = iter(loader)
    next(batches)
    print("reading", flush=True)
    sys.stdin.readline()
    if way == "hold":
        KEPT.append(batches)
    elif way == "break":
        for number, _ in enumerate(batches):
            if number == 2:
                break
    elif way == "exit":
        sys.exit(3)
    elif way == "raise":
        raise EnoughError("of this")
    elif way == "interrupt":
        signal.raise_signal(signal.SIGINT)
    elif way == "thread":
        threading.Thread(target=list, args=(batches,), daemon=True).start()
    elif way == "outlive":
        threading.Thread(target=read_when_main_is_gone, args=(loader,)).start()
    else:
        raise ValueError(way)


def read_when_main_is_gone(loader: Any) -> None:
    threading.main_thread().join()
    print(sum(len(batch["id"]) for batch in loader), "rows")


def read_in_forked_workers(dataset: Any) -> None:
    from torch.utils.data import DataLoader

    how = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 100}
    forking = DataLoader(dataset, batch_size=None, **how)
    try:
        list(forking)
    except RuntimeError as error:
        print(error)


KEPT: list[Any] = []

if __name__ == "__main__":
    from headrace import StructuredDataset

    way, url, options = sys.argv[1:]
    loader, dataset = StructuredDataset.create_dataloader(url, **json.loads(options))
    if way == "fork":
        read_in_forked_workers(dataset)
    else:
        leave(way, loader)
