"""Run one arm once in this process and print what it took, as one line of JSON.

    python benchmarks/arm.py floor.parquet [--scale 0.05]

Imports are done and the files lie in the page cache before the clock starts.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from arms.registry import EPOCH_END, find
from data import Data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    data = Data(options.scale)
    arm = find(options.name)
    if arm.reads is not None:
        _warm(data.files(arm.reads))
    imports_bytes = _peak_bytes()
    if arm.prepare is not None:
        arm.prepare()
    cpu_s = -_cpu_s(resource.RUSAGE_SELF)
    start = time.perf_counter()
    first_s = epoch_s = None
    rows = epoch_rows = 0
    for piece in arm.run(data):
        if first_s is None:
            first_s = time.perf_counter() - start
        if piece is not EPOCH_END:
            rows += piece
        elif epoch_s is None:
            epoch_s, epoch_rows = time.perf_counter() - start, rows
    seconds = time.perf_counter() - start
    cpu_s += _cpu_s(resource.RUSAGE_SELF)
    gc.collect()  # ends worker processes that are still there: only ended ones are counted
    print(
        json.dumps(
            {
                "rows": rows,
                "seconds": seconds,
                "cpu_seconds": cpu_s + _cpu_s(resource.RUSAGE_CHILDREN),
                "first_batch_seconds": first_s,
                "first_epoch_seconds": epoch_s or seconds,
                "first_epoch_rows": epoch_rows or rows,
                "peak_bytes": _peak_bytes(),
                "imports_bytes": imports_bytes,
            }
        )
    )


def _warm(files: Iterable[Path]) -> None:
    """Read the files through a small buffer, so that memory is not grown by it."""
    buffer = bytearray(1 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _cpu_s(who: int) -> float:
    """User and system time of all threads, of this process or of its ended children."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _peak_bytes() -> int:
    """Largest resident set so far of this process or of any finished child of it.

    Not ``ru_maxrss`` of this process: that includes what its parent held when it started it.
    """
    status = Path("/proc/self/status").read_text()
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
    child_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own_kib, child_kib) * 1024


if __name__ == "__main__":
    main()
