"""Run the library, its peers and the floors interleaved, and write docs/benchmarks.

    python benchmarks/run.py [--only 'csv,shuffle-*'] [--repeat 5] [--scale 0.05]

Every pass of every arm is a separate process. For the whole table at scale 1, results are written
to docs/benchmarks; otherwise they are only printed, unless --write is given, which keeps the rows
of the table that were not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import report
import sections
from access_rows import ACCESS_MODULES, ACCESS_STOPS_EARLY
from comparison import Comparison, Passes, Verdict, judge
from data import Data, make, write_again
from peers import PEERS, Peer, peer_of, share_of, strength_share_of
from quiet import in_a_quiet_moment
from remote_store import TWO_COLUMNS, BucketBehindProxy, needed_bytes, network_of, serving
from requests_table import requests
from table import COMPARISONS
from tar_rows import TAR_MODULES, TAR_STOPS_EARLY
from versions import versions

ROOT = Path(__file__).resolve().parent.parent
STAYS_IN_THE_RUN = 2.0
"""a setting that is slower than the best one by more than this factor is run only once"""
_PASS_TIMEOUT_S = 900
_STOPS_EARLY = ("paimon.to-torch", *ACCESS_STOPS_EARLY, *TAR_STOPS_EARLY)
"""arms with a constant and low rate, of which only a part is run"""


def main() -> None:
    options = _options()
    comparisons = _chosen(options.only)
    peers = _needed_peers(comparisons)
    data = Data(options.scale)
    make(data)
    _do_beforehand(comparisons, data)
    with ExitStack() as servers:
        remote = any(network_of(row.arm) is not None for row in comparisons)
        bucket = servers.enter_context(serving()) if remote else None
        passes = _run_interleaved(comparisons, data, options, bucket)
    _check_rows(comparisons, passes)
    verdicts = [judge(comparison, passes) for comparison in comparisons]
    strengths = _measure_strengths(verdicts, data)
    print(f"\n{report.table(verdicts)}\n\n{sections.resumes(verdicts)}")
    print(f"\n{sections.strengths(verdicts, strengths)}\n\n{sections.shuffle_settings(passes)}")
    print(f"\n{requests(passes)}")
    if options.write or (options.only is None and options.scale == 1):
        report.write(verdicts, passes, strengths, data=data, versions=versions(peers))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="keys of rows, with commas between; * is any text")
    parser.add_argument("--repeat", type=int, default=5, help="passes of each arm, at least 3")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data")
    parser.add_argument(
        "--patience", type=float, default=30, help="seconds to wait for an idle machine, each pass"
    )
    parser.add_argument(
        "--attempts", type=int, default=3, help="passes to make for one that is not disturbed"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks in any case")
    return parser.parse_args()


def _chosen(only: str | None) -> list[Comparison]:
    if only is None:
        return list(COMPARISONS)
    patterns = only.split(",")
    keys = [comparison.key for comparison in COMPARISONS]
    unknown = [one for one in patterns if not any(fnmatchcase(key, one) for key in keys)]
    if unknown:
        raise SystemExit(f"no such rows: {unknown}; there are {keys}")
    return [row for row in COMPARISONS if any(fnmatchcase(row.key, one) for one in patterns)]


def _needed_peers(comparisons: list[Comparison]) -> list[Peer]:
    names = {name for row in comparisons for name in (row.arm, *row.rivals)}
    peers = [peer for peer in PEERS if any(peer_of(name) == peer for name in names)]
    missing = [peer.title for peer in peers if not peer.python.exists()]
    if missing:
        raise SystemExit(f"not installed: {missing}; run: sh benchmarks/setup_peers.sh")
    return peers


def _do_beforehand(comparisons: list[Comparison], data: Data) -> None:
    """Make conversions and states, once, in separate processes."""
    names = dict.fromkeys(name for row in comparisons for name in (*row.rivals, row.arm))
    for name in names:
        make(Data(data.scale * share_of(name)), ["small" if ".startup-" in name else "parquet"])
        prepared = peer_of(name) is not None or ".resume-" in name or name.startswith("iceberg.")
        if network_of(name) is None and prepared:
            print("_", end="", flush=True)
            _call(name, Data(data.scale * share_of(name)), "--beforehand")
    if "floor.arrow-written" in names:
        write_again(data, "arrow")
    for modules in (ACCESS_MODULES, TAR_MODULES):
        shared = next((name for name in names if name.partition(".")[0] in modules), None)
        if shared is not None:  # one arm makes the data of all of them
            print("_", end="", flush=True)
            _call(shared, data, "--beforehand")


def _measure_strengths(verdicts: list[Verdict], data: Data) -> sections.Strengths:
    """Measure how thoroughly the shuffles of the table mix."""
    rows = [verdict for verdict in verdicts if verdict.comparison.key.startswith("shuffle-")]
    names = dict.fromkeys(name for row in rows for name in (row.comparison.arm, row.rival) if name)
    measured: sections.Strengths = {}
    for name in names:
        here = Data(data.scale * strength_share_of(name))
        _call(name, here, "--beforehand")
        measured[name] = json.loads(_call(name, here, "--strength"))
        print("~", end="", flush=True)
    return measured


def _run_interleaved(
    comparisons: list[Comparison],
    data: Data,
    options: argparse.Namespace,
    bucket: BucketBehindProxy | None,
) -> Passes:
    """Run all arms in turn, several times; every other round in reverse order."""
    arms = list(dict.fromkeys(n for c in comparisons for n in (*c.rivals, c.arm)))
    passes: Passes = {name: [] for name in arms}
    for number in range(options.repeat):
        for name in arms if number % 2 == 0 else reversed(arms):
            result, foreign = in_a_quiet_moment(
                partial(_run_once, name, data, bucket),
                patience_s=options.patience,
                attempts=options.attempts,
                unseen_s=lambda one: one["descendants_cpu_seconds"],
            )
            passes[name].append({**result, "foreign_share": foreign})
            print(".", end="", flush=True)
        if number == 0:
            arms = _without_slow_settings(arms, comparisons, passes)
    return passes


def _without_slow_settings(
    arms: list[str], comparisons: list[Comparison], passes: Passes
) -> list[str]:
    """Leave out arms that were far behind another rival in every row that contains them."""
    needed = {comparison.arm for comparison in comparisons}
    for comparison in comparisons:
        seconds = {name: passes[name][0]["seconds"] for name in comparison.rivals}
        for name, took in seconds.items():
            if took <= STAYS_IN_THE_RUN * min(seconds.values()):
                needed.add(name)
    return [name for name in arms if name in needed]


def _run_once(name: str, data: Data, bucket: BucketBehindProxy | None) -> dict[str, float]:
    here, network = Data(data.scale * share_of(name)), network_of(name)
    if network is None or bucket is None:
        result: dict[str, float] = json.loads(_call(name, here))
        return result
    result = json.loads(_call(name, here, environment=bucket.prepare(network)))
    if ".startup-" not in name and not name.startswith(TAR_MODULES):
        columns = tuple(TWO_COLUMNS) if ".two-" in name else None
        result["needed_bytes"] = needed_bytes(here, columns)
    return result


def _call(
    name: str, data: Data, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return the last line that a process of this arm printed."""
    peer = peer_of(name)
    python = Path(sys.executable) if peer is None else peer.python
    script = ROOT / "benchmarks" / "arm.py"
    command = [str(python), str(script), name, "--scale", f"{data.scale}", *arguments]
    # The data are local: no library has to look for a server.
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command,
        env={**variables, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=_PASS_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise SystemExit(f"\n{name} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1] if done.stdout.strip() else ""


def _check_rows(comparisons: list[Comparison], passes: Passes) -> None:
    """Check that both sides of every row that compares rates have read the same number of rows."""
    for comparison in comparisons:
        if comparison.metric != "rate":
            continue
        rows = {
            name: round(passes[name][0]["rows"] / share_of(name))
            for name in (comparison.arm, *comparison.rivals)
            if name not in _STOPS_EARLY
        }
        if len(set(rows.values())) > 1:
            raise SystemExit(f"\n{comparison.key}: rows differ: {rows}")


if __name__ == "__main__":
    main()
