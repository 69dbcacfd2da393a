"""Real processes with a gloo group that connects them."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed as dist

PATIENCE_S = 400.0


def run_ranks(
    work: Callable[[int], Any], size: int, folder: Path, *, die: tuple[int, ...] = ()
) -> list[Any]:
    """Return the results of ``work(rank)`` in ``size`` processes; None for those that die."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.device_mesh", "headrace.loader.ranks"])
    jobs = [
        context.Process(target=be_rank, args=(work, rank, size, folder), daemon=True)
        for rank in range(size)
    ]
    try:
        for job in jobs:
            job.start()
        deadline = time.monotonic() + PATIENCE_S
        for rank, job in enumerate(jobs):
            if rank not in die:
                job.join(max(0.0, deadline - time.monotonic()))
                assert job.exitcode == 0, f"rank {rank}: exit code {job.exitcode}"
    finally:
        for job in jobs:
            job.kill()
            job.join()
    results = [folder / f"{rank}.pickle" for rank in range(size)]
    return [pickle.loads(path.read_bytes()) if path.exists() else None for path in results]


def be_rank(work: Callable[[int], Any], rank: int, size: int, folder: Path) -> None:
    store = f"file://{folder / 'store'}"
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=patience)
    # A rank that dies at once would break the connections that another is still making.
    (folder / f"{rank}.connected").touch()
    until = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("*.connected"))) < size and time.monotonic() < until:
        time.sleep(0.01)
    result = work(rank)
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(result))


def refusal(kind: type[Exception], action: Callable[..., Any], *args: Any) -> str:
    try:
        action(*args)
    except kind as error:
        return str(error)
    return "nothing was refused"
