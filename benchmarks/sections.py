"""Tables of the page beside the main one: settings tried, shuffles, resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from comparison import FIELDS, Passes, Verdict
from order_rows import RESUME_PLACES
from peers import peer_of, share_of

__all__ = ["Strengths", "resumes", "settings", "shuffle_settings", "strengths"]

Strengths = dict[str, dict[str, float]]
"""by arm: measures of the order of its rows"""


def resumes(verdicts: Sequence[Verdict]) -> str:
    """Return times to the first batch after a resume, as multiples of those of a fresh start."""
    lines: dict[str, dict[int, Verdict]] = {}
    for verdict in verdicts:
        if verdict.comparison.resume is not None:
            title, place = verdict.comparison.resume
            lines.setdefault(title, {})[place] = verdict
    if not lines:
        return "Resumes were not part of this run."
    places = "".join(f" {place} % |" for place in RESUME_PLACES)
    out = [f"| loader |{places} the right batch |", "|---|" + "---|" * (len(RESUME_PLACES) + 1)]
    for title, by_place in lines.items():
        cells = "".join(
            f" {by_place[place].ratio:.2f} |" if place in by_place else " |"
            for place in RESUME_PLACES
        )
        exact = "yes" if all(one.exact for one in by_place.values()) else "**no**"
        out.append(f"| {title} |{cells} {exact} |")
    return "\n".join(out)


def strengths(verdicts: Sequence[Verdict], measured: Mapping[str, Mapping[str, float]]) -> str:
    """Return how thoroughly each of the compared shuffles mixes the rows."""
    titles: dict[str, str] = {}
    for verdict in verdicts:
        row = verdict.comparison
        if row.arm in measured:
            titles.setdefault(row.arm, f"headrace, {row.work}")
        if verdict.rival is not None and verdict.rival in measured:
            titles.setdefault(verdict.rival, row.against_what)
    if not titles:
        return "Shuffles were not part of this run."
    out = [
        "| shuffle | mean displacement | row groups in a batch | still after its neighbour |",
        "|---|---|---|---|",
    ]
    for arm, title in sorted(titles.items(), key=lambda one: -measured[one[0]]["groups"]):
        one = measured[arm]
        cells = f"{one['displacement']:.3f} | {one['groups']:.1f} | {one['neighbours']:.2%}"
        out.append(f"| {title} | {cells} |")
    return "\n".join(out)


def settings(passes: Passes) -> str:
    """Return the settings of torch-dataloader-utils tried in order, as shares of the fastest."""
    tried = [name for name in passes if name.startswith("tdu.") and not _of_order(name)]
    if not tried:
        return "The peer was not part of this run."
    lines = ["| setting | share of its best | passes |", "|---|---|---|"]
    for name, share in _shares(tried, passes):
        words = name.removeprefix("tdu.").replace("workers-", "num_workers=")
        setting = words.replace("round-robin-", "RoundRobinSplitStrategy, ")
        lines.append(f"| {setting} | {share:.3f} | {len(passes[name])} |")
    return "\n".join(lines)


def shuffle_settings(passes: Passes) -> str:
    """Return the settings of each library that were tried for its shuffle."""
    by_peer: dict[str, list[str]] = {}
    for name in passes:
        peer = peer_of(name)
        if peer is not None and ".shuffle-" in name:
            by_peer.setdefault(peer.title, []).append(name)
    if not by_peer:
        return "Shuffles were not part of this run."
    lines = [
        "| library | setting | share of its best | passes | of the rows |",
        "|---|---|---|---|---|",
    ]
    for title, tried in by_peer.items():
        for name, share in _shares(tried, passes):
            setting = name.rpartition(".shuffle-")[2].replace("workers-", "num_workers=")
            cells = f"{share:.3f} | {len(passes[name])} | {share_of(name):.0%}"
            lines.append(f"| {title} | {setting} | {cells} |")
    return "\n".join(lines)


def _of_order(name: str) -> bool:
    return ".shuffle-" in name or ".resume-" in name


def _shares(tried: Iterable[str], passes: Passes) -> list[tuple[str, float]]:
    """Return rates as shares of the fastest, the fastest first."""
    rates = {name: median(FIELDS["rate"](one) for one in passes[name]) for name in sorted(tried)}
    best = max(rates.values())
    return sorted(((name, rate / best) for name, rate in rates.items()), key=lambda one: -one[1])
