"""CPU time of processes that this one started and that still run."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["living_descendants_cpu_s"]


def living_descendants_cpu_s() -> float:
    """Return the CPU time of all running descendants, with that of their ended children.

    Without it, a library that keeps a cluster running would not be charged for its work.
    """
    ticks: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        ticks[int(stat.parent.name)] = int(words[1]), sum(map(int, words[11:15]))
    family, total = {os.getpid()}, 0
    while children := {one for one, (parent, _) in ticks.items() if parent in family} - family:
        family |= children
        total += sum(ticks[one][1] for one in children)
    return total / os.sysconf("SC_CLK_TCK")
