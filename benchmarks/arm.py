"""Run one arm once in this process and print its measurements as one line of JSON.

    python benchmarks/arm.py floor.parquet [--scale 0.05] [--beforehand | --strength]

Modules are imported and the files are in the page cache before the clock starts.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from arms.registry import Arm, Mark, find
from data import Data
from descendants import living_descendants_cpu_s
from remote_store import endpoint, traffic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("--scale", type=float, default=1.0)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--beforehand", action="store_true", help="do what comes before all passes")
    mode.add_argument("--strength", action="store_true", help="measure how well it shuffles")
    options = parser.parse_args()
    data = Data(options.scale)
    arm = find(options.name)
    if options.beforehand:
        if arm.beforehand is not None:
            arm.beforehand(data)
        return
    if arm.reads is not None:
        _warm(data.files(arm.reads))
    result = _strength(arm, data) if options.strength else _measure(arm, data)
    print(json.dumps(result), flush=True)


def _strength(arm: Arm, data: Data) -> dict[str, float]:
    """Return measures of the order of its rows."""
    from arms.shuffling import strength  # imported here: torch's memory would be counted

    if arm.batches is None:
        raise SystemExit(f"{arm.name} does not shuffle")
    if arm.prepare is not None:
        arm.prepare()
    return strength(arm.batches(data), data)


def _measure(arm: Arm, data: Data) -> dict[str, float]:
    """Run one pass, and return its measurements."""
    imports_bytes = _peak_bytes()
    if arm.prepare is not None:
        arm.prepare()
    cpu_s = -_cpu_s(resource.RUSAGE_SELF)
    start = time.perf_counter()
    first_s = epoch_s = None
    rows = epoch_rows = 0
    exact = True
    before = 0, 0
    for piece in arm.run(data):
        if piece is Mark.CLOCK_STARTS:
            before = _traffic()
            children_s = _cpu_s(resource.RUSAGE_CHILDREN) + living_descendants_cpu_s()
            cpu_s, start = -_cpu_s(resource.RUSAGE_SELF) - children_s, time.perf_counter()
            continue
        if first_s is None:
            first_s = time.perf_counter() - start
        if piece is Mark.EPOCH_END:
            if epoch_s is None:
                epoch_s, epoch_rows = time.perf_counter() - start, rows
        elif piece is Mark.NOT_THE_NEXT:
            exact = False
        else:
            rows += piece
    seconds = time.perf_counter() - start
    cpu_s += _cpu_s(resource.RUSAGE_SELF)
    requests, fetched_bytes = _traffic()
    gc.collect()  # ends worker processes that still run
    descendants_cpu_s = living_descendants_cpu_s()
    return {
        "rows": rows,
        "seconds": seconds,
        "cpu_seconds": cpu_s + _cpu_s(resource.RUSAGE_CHILDREN) + descendants_cpu_s,
        "descendants_cpu_seconds": descendants_cpu_s,
        "first_batch_seconds": first_s or seconds,
        "first_epoch_seconds": epoch_s or seconds,
        "first_epoch_rows": epoch_rows or rows,
        "peak_bytes": _peak_bytes(),
        "imports_bytes": imports_bytes,
        "exact": exact,
        "requests": requests - before[0],
        "fetched_bytes": fetched_bytes - before[1],
        "requests_before": before[0],
        "fetched_bytes_before": before[1],
    }


def _traffic() -> tuple[int, int]:
    """Return the requests and bytes so far, for arms that use a store."""
    return traffic() if endpoint() is not None else (0, 0)


def _warm(files: Iterable[Path]) -> None:
    """Read the files through a small buffer, so that this takes little memory."""
    buffer = bytearray(1 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _cpu_s(target: int) -> float:
    """Return user and system time of all threads of this process, or of its ended children."""
    usage = resource.getrusage(target)
    return usage.ru_utime + usage.ru_stime


def _peak_bytes() -> int:
    """Return the largest resident set so far of this process or of any ended child.

    This is not ``ru_maxrss`` of this process, which includes the memory of its parent at the start.
    """
    status = Path("/proc/self/status").read_text()
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
    child_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own_kib, child_kib) * 1024


if __name__ == "__main__":
    main()
