"""Ranks of a job, each of them a process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from servers.processes import free_port
from warm_interpreters import WarmProcess

PATIENCE_S = 300
SOURCES = Path(__file__).parents[2] / "src"


def run_ranks(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> None:
    """Start scripts with their arguments together, and wait until all have ended well."""
    with ExitStack() as running:
        jobs = [
            running.enter_context(WarmProcess(*command, env=env))
            for command, env in zip(commands, environments, strict=True)
        ]
        ended = [job.finish(timeout_s=PATIENCE_S) for job in jobs]
    outputs = "\n".join(one.stdout + one.stderr for one in ended)
    assert [one.returncode for one in ended] == [0] * len(jobs), outputs[-6000:]


def seen_by_ranks(script: Path, folder: Path) -> list[Any]:
    """What each of two ranks of a job of torch.distributed leaves in the folder."""
    shared = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "1",
    }
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    run_ranks([[str(script), str(folder)]] * 2, ranks)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
