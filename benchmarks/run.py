"""Run the library, its peers and the floors interleaved, and write docs/benchmarks.

    python benchmarks/run.py [--only sequential,csv] [--repeat 5] [--scale 0.05]

Every pass of every arm is a process of its own. Results are written to docs/benchmarks for the
whole table at scale 1; else they are only printed, unless --write is given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import report
from data import Data, make
from quiet import in_a_quiet_moment
from table import COMPARISONS, Comparison, Passes, judge

ROOT = Path(__file__).resolve().parent.parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
STAYS_IN_THE_RUN = 2.0
"""a setting that is slower than the best one by more than this factor is run once only"""
_PASS_TIMEOUT_S = 900


def main() -> None:
    options = _options()
    comparisons = _chosen(options.only)
    if not PEERS_PYTHON.exists():
        raise SystemExit("the peers are not installed; run: sh benchmarks/setup_peers.sh")
    data = Data(options.scale)
    make(data)
    passes = _run_interleaved(comparisons, data, options)
    _check_rows(comparisons, passes)
    verdicts = [judge(comparison, passes) for comparison in comparisons]
    print("\n" + report.table(verdicts))
    if options.write or (options.only is None and options.scale == 1):
        report.write(verdicts, passes, data, options.repeat, PEERS_PYTHON)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="keys of rows of the table, with commas between")
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
    keys = {comparison.key for comparison in COMPARISONS}
    wanted = keys if only is None else set(only.split(","))
    if wanted - keys:
        raise SystemExit(f"no such rows: {sorted(wanted - keys)}; there are {sorted(keys)}")
    return [comparison for comparison in COMPARISONS if comparison.key in wanted]


def _run_interleaved(
    comparisons: list[Comparison], data: Data, options: argparse.Namespace
) -> Passes:
    """All arms once, then again; every other round backwards, so that no arm is always first."""
    arms = list(dict.fromkeys(n for c in comparisons for n in (*c.rivals, c.arm)))
    passes: Passes = {name: [] for name in arms}
    for number in range(options.repeat):
        for name in arms if number % 2 == 0 else reversed(arms):
            result, foreign = in_a_quiet_moment(
                partial(_run_once, name, data),
                patience_s=options.patience,
                attempts=options.attempts,
            )
            passes[name].append({**result, "foreign_share": foreign})
            print(".", end="", flush=True)
        if number == 0:
            arms = _without_slow_settings(arms, comparisons, passes)
    return passes


def _without_slow_settings(
    arms: list[str], comparisons: list[Comparison], passes: Passes
) -> list[str]:
    """Leave out rivals that were far behind a rival of theirs in every row they are in."""
    needed = {comparison.arm for comparison in comparisons}
    for comparison in comparisons:
        seconds = {name: passes[name][0]["seconds"] for name in comparison.rivals}
        for name, took in seconds.items():
            if took <= STAYS_IN_THE_RUN * min(seconds.values()):
                needed.add(name)
    return [name for name in arms if name in needed]


def _run_once(name: str, data: Data) -> dict[str, float]:
    python = PEERS_PYTHON if name.startswith("tdu.") else Path(sys.executable)
    command = [str(python), str(ROOT / "benchmarks" / "arm.py"), name, "--scale", f"{data.scale}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_PASS_TIMEOUT_S
    )
    if done.returncode != 0:
        raise SystemExit(f"\n{name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _check_rows(comparisons: list[Comparison], passes: Passes) -> None:
    """Both sides of every row of the table that compares rates must have read as many rows."""
    for comparison in comparisons:
        if comparison.metric != "rate":
            continue
        rows = {name: passes[name][0]["rows"] for name in (comparison.arm, *comparison.rivals)}
        if len(set(rows.values())) > 1:
            raise SystemExit(f"\n{comparison.key}: rows differ: {rows}")


if __name__ == "__main__":
    main()
