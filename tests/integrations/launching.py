"""Scripts in separate processes, as ranks or not, which are ended if they hang."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from warm_interpreters import TRAINING, ColdProcess, WarmProcess, hung, run_warm

SCRIPTS = Path(__file__).parent / "scripts"
SOURCES = Path(__file__).parents[2] / "src"
PATIENCE_S = 400.0


def run_script(
    script: Path, *args: object, ranks: int = 0, torchrun: bool = False, killed: bool = False
) -> str:
    """Return the output of a script, run alone or in several ranks.

    All processes must succeed, unless ``killed`` is true. Processes that hang are ended, and the
    error shows their stacks and those of their workers.
    """
    if torchrun:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
        with ColdProcess(*launcher, script, *args, env=_environment()) as job:
            ended = [job.finish(timeout_s=PATIENCE_S)]
    elif ranks:
        ended = _run_ranks([script, *args], ranks)
    else:
        ended = [
            run_warm(script, *args, env=_environment(), timeout_s=PATIENCE_S, preloaded=TRAINING)
        ]
    output = "".join(one.stdout + one.stderr for one in ended)
    codes = [one.returncode for one in ended]
    assert any(codes) == killed, f"exit codes {codes}\n{output[-8000:]}"
    return output


def _run_ranks(command: list[object], ranks: int) -> list[subprocess.CompletedProcess[str]]:
    """Start ranks as torchrun does: with a common store, and ended together when one fails.

    The start of torchrun itself takes as long as that of a rank, so only a few tests use it.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with ExitStack() as running:
        jobs = [
            running.enter_context(
                WarmProcess(
                    *command,
                    env={**_environment(), **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    preloaded=TRAINING,
                )
            )
            for rank in range(ranks)
        ]
        deadline = time.monotonic() + PATIENCE_S
        while None in (codes := {job.poll() for job in jobs}):
            if codes - {None, 0}:
                for job in jobs:
                    job.close()
            if time.monotonic() > deadline:
                raise hung(*jobs, timeout_s=PATIENCE_S)
            time.sleep(0.02)
        return [job.finish() for job in jobs]


def results_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank has written with ``write_results``."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def _environment() -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("COV_")}
    paths = [str(SOURCES), str(SCRIPTS), os.environ.get("PYTHONPATH", "")]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
