"""Write docs/benchmarks from verdicts: the tables, the figures behind them, and a plot."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import picture
import sections
from comparison import Passes, Verdict
from data import Data
from quiet import FOREIGN_SHARE
from requests_table import requests
from table import COMPARISONS

__all__ = ["table", "write"]

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
_METHOD = Path(__file__).with_name("method.md")
_RESULTS = DOCS / "results.json"


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the table in Markdown; rows without a target come last, under their own heading."""
    rows = [verdict for verdict in verdicts if verdict.comparison.resume is None]
    parts = [_rows([verdict for verdict in rows if verdict.reached is not None])]
    informative = [verdict for verdict in rows if verdict.reached is None]
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
    verdicts: Sequence[Verdict],
    passes: Passes,
    strengths: sections.Strengths,
    *,
    data: Data,
    versions: dict[str, str],
) -> None:
    """Write README.md, results.json, comparison.svg and throughput.png.

    Rows that were not part of this run are kept from an earlier one: both sides of a row come from
    the same run.
    """
    DOCS.mkdir(parents=True, exist_ok=True)
    before: dict[str, Any] = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
    fresh = {verdict.comparison.key: verdict for verdict in verdicts}
    kept = before.get("rows", {}) if before.get("scale") == data.scale else {}
    rows = [
        fresh.get(row.key) or _restored(row.key, kept[row.key])
        for row in COMPARISONS
        if row.key in fresh or row.key in kept
    ]
    if kept:
        passes = {**before["passes"], **passes}
        strengths = {**before.get("strengths", {}), **strengths}
        versions = {**before["versions"], **versions}
    repeats = {len(of_arm) for of_arm in passes.values()} - {1}
    published = _published()
    page = _METHOD.read_text().format(
        published=published,
        table=table(rows),
        resumes=sections.resumes(rows),
        strengths=sections.strengths(rows, strengths),
        disturbed=_disturbed(passes),
        settings=sections.settings(passes),
        requests=requests(passes),
        shuffle_settings=sections.shuffle_settings(passes),
        repeat=" or ".join(map(str, sorted(repeats))) or "1",
        rows=f"{data.rows('parquet'):,}",
        quarter=f"{data.rows('csv'):,}",
        group=f"{data.rows_per_group:,}",
        cores=os.cpu_count(),
        versions=", ".join(f"{name} {number}" for name, number in versions.items()),
    )
    (DOCS / "README.md").write_text(page)
    figures = {
        "published": published,
        "versions": versions,
        "cores": os.cpu_count(),
        "scale": data.scale,
        "rows": {verdict.comparison.key: _figures(verdict) for verdict in rows},
        "strengths": strengths,
        "passes": passes,
    }
    _RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    picture.draw(figures)
    _plot(rows)


def _published() -> str:
    """Return the version and the commit that are measured, in words."""
    asked = ["git", "log", "-1", "--format=commit %h of %cs"]
    commit = subprocess.run(asked, cwd=DOCS, capture_output=True, text=True, check=True)
    return f"headrace {version('headrace')}, {commit.stdout.strip()}"


def _figures(verdict: Verdict) -> dict[str, object]:
    return {
        "arm": verdict.comparison.arm,
        "against": verdict.rival or verdict.comparison.against,
        "target": verdict.comparison.goal,
        "ratio": round(verdict.ratio, 6),  # shown with two digits, after later runs too
        "range": [round(verdict.low, 6), round(verdict.high, 6)],
        "cpu_ratio": None if verdict.cpu_ratio is None else round(verdict.cpu_ratio, 6),
        "reached": verdict.reached,
        "exact": verdict.exact,
    }


def _restored(key: str, figures: dict[str, Any]) -> Verdict:
    """Return a row of an earlier run."""
    comparison = next(row for row in COMPARISONS if row.key == key)
    rival = figures["against"] if isinstance(figures["against"], str) else None
    low, high = figures["range"]
    cpu_ratio, exact = figures["cpu_ratio"], figures.get("exact", True)
    return Verdict(comparison, rival, figures["ratio"], low, high, cpu_ratio, exact)


def _disturbed(passes: Passes) -> str:
    shares = [one["foreign_share"] for of_arm in passes.values() for one in of_arm]
    beyond = sum(share > FOREIGN_SHARE for share in shares)
    return f"{beyond} of {len(shares)}"


def _plot(verdicts: Sequence[Verdict]) -> None:
    """Draw ratios of throughput on a logarithmic axis, each with its target as a mark."""
    import matplotlib  # imported here: a run without a report does not need it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = [v for v in verdicts if v.comparison.metric == "rate" and v.reached is not None]
    if not rates:
        return
    rates.reverse()
    labels = [f"{v.comparison.work}\nagainst {v.comparison.against_what}" for v in rates]
    places = list(range(len(rates)))
    figure, axes = pyplot.subplots(figsize=(10, 0.75 * len(rates) + 1.2))
    colours = ["#2a7f62" if v.reached else "#b5483a" for v in rates]
    axes.barh(places, [v.ratio for v in rates], color=colours, height=0.6)
    for place, verdict in zip(places, rates, strict=True):
        target = verdict.comparison.target or 1
        axes.plot([target, target], [place - 0.4, place + 0.4], color="black", linewidth=2)
        right_of = max(verdict.ratio, target) if verdict.ratio > target / 2 else verdict.ratio
        axes.text(right_of * 1.06, place, f"{verdict.ratio:.2f}", va="center", fontsize=9)
    axes.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(0.1, 3 * max(v.ratio for v in rates))
    axes.set_yticks(places, [label.replace("`", "") for label in labels], fontsize=8)
    axes.set_xlabel("rows per second of headrace, as a multiple of the other (black: to reach)")
    figure.tight_layout()
    figure.savefig(DOCS / "throughput.png", dpi=110)
