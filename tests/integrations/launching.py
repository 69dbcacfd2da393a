"""Scripts in processes of their own, under torchrun or not, that are ended if they hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
SOURCES = Path(__file__).parents[2] / "src"
PATIENCE_S = 400.0


def run_script(script: Path, *args: object, ranks: int = 0, killed: bool = False) -> str:
    """What a script prints; ``ranks=0`` runs it without torchrun. All must end well, or ``killed``.

    A script that hangs prints the stacks of all its threads and is ended with its children.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(launcher if ranks else []), str(script), *map(str, args)]
    job = subprocess.Popen(
        command,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=PATIENCE_S)
    finally:
        _end_group(job)
    assert (job.returncode != 0) == killed, f"exit code {job.returncode}\n{output[-8000:]}"
    return output


def results_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank has written with ``write_results``."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def _environment() -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("COV_")}
    paths = [str(SOURCES), str(SCRIPTS), os.environ.get("PYTHONPATH", "")]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "PENSTOCK_TEST_PATIENCE_S": str(PATIENCE_S - 5),
    }


def _end_group(job: subprocess.Popen[str]) -> None:
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    job.wait()
