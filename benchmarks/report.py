"""From verdicts to docs/benchmarks: the table, the figures behind it, and a plot."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from statistics import median

from data import Data
from quiet import FOREIGN_SHARE
from table import FIELDS, Passes, Verdict

__all__ = ["table", "write"]

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
_METHOD = Path(__file__).with_name("method.md")
_GROUND = ("torch", "pyarrow", "numpy", "pandas")
"""what both sides have in common; pyarrow imports pandas where it is installed"""


def table(verdicts: Sequence[Verdict]) -> str:
    """The table in Markdown; rows without a target come after, under a line of their own."""
    parts = [_rows([v for v in verdicts if v.reached is not None])]
    informative = [v for v in verdicts if v.reached is None]
    if informative:
        parts += ["For information, without a target:", _rows(informative)]
    return "\n\n".join(parts)


def _rows(verdicts: Sequence[Verdict]) -> str:
    lines = [
        "| work | compared with | to reach | ratio | of all rounds | CPU ratio | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        row = verdict.comparison
        reached = {True: "yes", False: "**no**", None: ""}[verdict.reached]
        cpu = "" if verdict.cpu_ratio is None else f"{verdict.cpu_ratio:.2f}"
        cells = (
            row.work,
            row.against_what,
            row.goal,
            f"**{verdict.ratio:.2f}**",
            f"{verdict.low:.2f} to {verdict.high:.2f}",
            cpu,
            reached,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(
    verdicts: Sequence[Verdict], passes: Passes, data: Data, repeat: int, peers_python: Path
) -> None:
    """Write README.md, results.json and throughput.png."""
    DOCS.mkdir(parents=True, exist_ok=True)
    versions = _versions(peers_python)
    page = _METHOD.read_text().format(
        table=table(verdicts),
        disturbed=_disturbed(passes),
        settings=_settings(verdicts, passes),
        repeat=repeat,
        rows=f"{data.rows('parquet'):,}",
        quarter=f"{data.rows('csv'):,}",
        group=f"{data.rows_per_group:,}",
        cores=os.cpu_count(),
        versions=", ".join(f"{name} {number}" for name, number in versions.items()),
    )
    (DOCS / "README.md").write_text(page)
    figures = {
        "versions": versions,
        "cores": os.cpu_count(),
        "scale": data.scale,
        "rows": {v.comparison.key: _figures(v) for v in verdicts},
        "passes": passes,
    }
    (DOCS / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    _plot(verdicts)


def _figures(verdict: Verdict) -> dict[str, object]:
    return {
        "arm": verdict.comparison.arm,
        "against": verdict.rival or verdict.comparison.against,
        "target": verdict.comparison.goal,
        "ratio": round(verdict.ratio, 3),
        "range": [round(verdict.low, 3), round(verdict.high, 3)],
        "cpu_ratio": None if verdict.cpu_ratio is None else round(verdict.cpu_ratio, 3),
        "reached": verdict.reached,
    }


def _versions(peers_python: Path) -> dict[str, str]:
    """Of both sides; it is an error if they do not stand on the same ground."""
    ask = (
        "import json, sys; from importlib.metadata import distributions;"
        "print(json.dumps({d.name: d.version for d in distributions() if d.name in sys.argv[1:]}))"
    )
    peer = "torch-dataloader-utils"
    asked = subprocess.run(
        [str(peers_python), "-c", ask, peer, *_GROUND], capture_output=True, text=True, check=True
    )
    theirs: dict[str, str] = json.loads(asked.stdout)
    ours = {one.name: one.version for one in distributions() if one.name in _GROUND}
    if ours != {name: theirs[name] for name in theirs if name != peer}:
        raise SystemExit(f"versions differ: {ours} here, {theirs} for the peers")
    return {"Python": platform.python_version(), **ours, peer: theirs[peer]}


def _disturbed(passes: Passes) -> str:
    shares = [one["foreign_share"] for of_arm in passes.values() for one in of_arm]
    beyond = sum(share > FOREIGN_SHARE for share in shares)
    return f"{beyond} of {len(shares)}"


def _settings(verdicts: Sequence[Verdict], passes: Passes) -> str:
    """Which settings of the peer were tried, each as a share of the fastest."""
    tried = sorted(name for name in passes if name.startswith("tdu."))
    if not tried:
        return "The peer was not part of this run."
    rates = {name: median(FIELDS["rate"](one) for one in passes[name]) for name in tried}
    best = max(rates.values())
    lines = ["| setting | share of its best | passes |", "|---|---|---|"]
    for name in sorted(tried, key=lambda one: -rates[one]):
        words = name.removeprefix("tdu.").replace("workers-", "num_workers=")
        setting = words.replace("round-robin-", "RoundRobinSplitStrategy, ")
        lines.append(f"| {setting} | {rates[name] / best:.3f} | {len(passes[name])} |")
    return "\n".join(lines)


def _plot(verdicts: Sequence[Verdict]) -> None:
    """Ratios of throughput on a logarithmic axis, with the target of each as a mark."""
    import matplotlib  # here, so that a run without a report does without it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [v for v in verdicts if v.comparison.metric == "rate" and v.reached is not None]
    if not shown:
        return
    shown.reverse()
    labels = [f"{v.comparison.work}\nagainst {v.comparison.against_what}" for v in shown]
    places = list(range(len(shown)))
    figure, axes = pyplot.subplots(figsize=(10, 0.75 * len(shown) + 1.2))
    colours = ["#2a7f62" if v.reached else "#b5483a" for v in shown]
    axes.barh(places, [v.ratio for v in shown], color=colours, height=0.6)
    for place, verdict in zip(places, shown, strict=True):
        target = verdict.comparison.target or 1
        axes.plot([target, target], [place - 0.4, place + 0.4], color="black", linewidth=2)
        right_of = max(verdict.ratio, target) if verdict.ratio > target / 2 else verdict.ratio
        axes.text(right_of * 1.06, place, f"{verdict.ratio:.2f}", va="center", fontsize=9)
    axes.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(0.1, 3 * max(v.ratio for v in shown))
    axes.set_yticks(places, [label.replace("`", "") for label in labels], fontsize=8)
    axes.set_xlabel("rows per second of penstock, as a multiple of the other (black: to reach)")
    figure.tight_layout()
    figure.savefig(DOCS / "throughput.png", dpi=110)
