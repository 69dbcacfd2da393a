"""Jobs whose ranks are processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from servers.processes import free_port
from warm_interpreters import TRAINING, WarmProcess

PATIENCE_S = 300
SOURCES = Path(__file__).parents[2] / "src"


def run_ranks(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> None:
    """Start scripts with their arguments at the same time, and wait until all have succeeded."""
    with ExitStack() as running:
        jobs = [
            running.enter_context(WarmProcess(*command, env=env, preloaded=TRAINING))
            for command, env in zip(commands, environments, strict=True)
        ]
        results = [job.finish(timeout_s=PATIENCE_S) for job in jobs]
    outputs = "\n".join(one.stdout + one.stderr for one in results)
    assert [one.returncode for one in results] == [0] * len(jobs), outputs[-6000:]


def results_of_ranks(script: Path, folder: Path) -> list[Any]:
    """Run a script in two ranks of torch.distributed, and return the results that they write."""
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
