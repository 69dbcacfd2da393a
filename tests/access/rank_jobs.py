"""Ranks of a job, each of them a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from warm_interpreters import WarmProcess

PATIENCE_S = 300


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
