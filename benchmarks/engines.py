"""Compare clients of S3 with each other, and write the table of docs/storage.md.

    python benchmarks/engines.py [--repeat 3] [--dry]

Needs .venv-peers for s3fs: sh benchmarks/setup_peers.sh
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from data import FOLDER
from engine_clients import CLIENTS, Ranges
from remote_store import BucketBehindProxy, Network, serving

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "storage.md"
BEGIN, END = "<!-- written by benchmarks/engines.py -->", "<!-- end -->"
THREADS = 32
NETWORK = Network("20 ms", 0.02)
_KEY = "object"
_OBJECT_BYTES = 512 << 20
_MIB, _KIB = 1 << 20, 1 << 10
WORKS: dict[str, Ranges] = {
    "64 × 8 MiB": [(at, at + 8 * _MIB) for at in range(0, _OBJECT_BYTES, 8 * _MIB)],
    "2,000 × 64 KiB": [(at * 256 * _KIB, (at * 256 + 64) * _KIB) for at in range(2000)],
}
Figures = dict[tuple[str, str], list[dict[str, float]]]
"""by client and work: seconds and CPU-seconds of each pass"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the table, write nothing")
    parser.add_argument("--once", nargs=2, metavar=("CLIENT", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(_measure(*options.once)), flush=True)
        return
    with serving(_folder()) as bucket:
        written = _table(_run_interleaved(bucket, options.repeat))
    print(f"\n{written}")
    if not options.dry:
        _put(written)


def _folder() -> Path:
    """Make a folder with one sparse file, whose content does not matter."""
    folder = FOLDER / "engines"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _KEY).open("ab") as file:
        file.truncate(_OBJECT_BYTES)
    return folder


def _run_interleaved(bucket: BucketBehindProxy, repeat: int) -> Figures:
    """Run all clients in turn, several times; every other round in reverse order."""
    pairs = [(client, work) for work in WORKS for client in CLIENTS]
    figures: Figures = {pair: [] for pair in pairs}
    for number in range(repeat):
        for client, work in pairs if number % 2 == 0 else reversed(pairs):
            figures[client, work].append(_call(bucket, client, work))
            print(".", end="", flush=True)
    return figures


def _call(bucket: BucketBehindProxy, client: str, work: str) -> dict[str, float]:
    environment = ".venv-peers" if client.startswith("s3fs") else ".venv"
    done = subprocess.run(
        [str(ROOT / environment / "bin" / "python"), __file__, "--once", client, work],
        env={**os.environ, **bucket.prepare(NETWORK)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"\n{client}, {work} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(client: str, work: str) -> dict[str, float]:
    """Measure in a separate process: the client has fetched something before the clock starts."""
    fetch = CLIENTS[client](_KEY, THREADS)
    fetch([(0, _KIB)])
    ranges = WORKS[work]
    cpu_s, start = -_cpu_s(), time.perf_counter()
    size = fetch(ranges)
    seconds = time.perf_counter() - start
    if size != sum(stop - begin for begin, stop in ranges):
        raise SystemExit(f"{client} fetched {size} bytes")
    return {"seconds": seconds, "cpu_seconds": cpu_s + _cpu_s()}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _table(figures: Figures) -> str:
    first = next(iter(CLIENTS))
    heads = "".join(f" {work}: speed | CPU s |" for work in WORKS)
    lines = [f"| client |{heads}", "|---|" + "---|---|" * len(WORKS)]
    for client in CLIENTS:
        cells = ""
        for work in WORKS:
            speed = _median(figures, first, work, "seconds") / _median(
                figures, client, work, "seconds"
            )
            cells += f" {speed:.2f} | {_median(figures, client, work, 'cpu_seconds'):.2f} |"
        lines.append(f"| {client} |{cells}")
    return "\n".join(lines)


def _median(figures: Figures, client: str, work: str, field: str) -> float:
    return median(one[field] for one in figures[client, work])


def _put(table: str) -> None:
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the table, between {BEGIN} and {END}")
    PAGE.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main())
