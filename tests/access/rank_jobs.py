"""Ranks of a job, each of them a process."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

PATIENCE_S = 300


def run_ranks(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> None:
    """Start them together, and wait until all have ended well."""
    jobs = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command, env in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [job.communicate(timeout=PATIENCE_S)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(outputs)[-6000:]
