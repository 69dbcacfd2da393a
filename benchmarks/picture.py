"""Draw the ten main comparisons as one picture, from the published figures.

usage: python benchmarks/picture.py

The picture is SVG text that follows from ``docs/benchmarks/results.json`` alone, so that a test can
compare both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["PICTURE", "draw", "svg"]

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
PICTURE = DOCS / "comparison.svg"

BARS = (
    ("sequential-peer", "Parquet in order", "torch-dataloader-utils"),
    ("shuffle-lance", "Parquet shuffled", "Lance"),
    ("shuffle-ray", "Parquet shuffled", "Ray Data"),
    ("shuffle-datasets", "Parquet shuffled", "Hugging Face datasets"),
    ("shuffle-litdata", "Parquet shuffled", "LitData"),
    ("shuffle-mosaic", "Parquet shuffled", "Mosaic streaming"),
    ("remote-all-peer", "Parquet from S3", "torch-dataloader-utils"),
    ("tar-order-webdataset", "tars in order", "webdataset"),
    ("sequential-floor", "Parquet in order", "pyarrow's decoder"),
    ("csv", "CSV in order", "pyarrow's decoder"),
)
"""The key of a comparison, its work, and the other side."""

# Narrow, so that the text can still be read where the picture is as wide as a phone.
_WIDTH, _LINE, _TOP = 480, 36, 62
_LABELS = 190
"""Where the names of the other libraries end."""
_LEFT, _RIGHT = 200, 415
"""Where bars of the smallest and of the largest ratio end."""
_LEAST, _MOST = 0.5, 100.0


def svg(ratios: Mapping[str, float]) -> str:
    """Return the picture of ratios, which are given by the key of their comparison."""
    height = _TOP + _LINE * len(BARS) + 34
    summary = "; ".join(f"{work} against {other}: {ratios[key]:.3g}" for key, work, other in BARS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-labelledby="t d" font-family="system-ui, sans-serif" font-size="15">',
        '  <title id="t">Throughput of headrace as a multiple of others</title>',
        f'  <desc id="d">{escape(summary)}</desc>',
        f'  <rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 26, "Rows per second: headrace divided by the other", 17),
        _text(12, 46, "2 cores; logarithmic scale; 1× is equal speed", 13, colour="#555555"),
    ]
    bottom = _TOP + _LINE * len(BARS)
    for tick in (1, 10, 100):
        x = _place(tick)
        dash = "" if tick == 1 else ' stroke-dasharray="3 4"'
        lines.append(
            f'  <line x1="{x}" y1="{_TOP - 4}" x2="{x}" y2="{bottom}" stroke="#999999"{dash}/>'
        )
        lines.append(_text(x, bottom + 20, f"{tick}×", 13, "middle", "#555555"))
    for number, (key, work, other) in enumerate(BARS):
        lines += _bar(_TOP + _LINE * number, work, other, ratios[key])
    return "\n".join([*lines, "</svg>", ""])


def _bar(y: float, work: str, other: str, ratio: float) -> list[str]:
    start, end = sorted((_place(1), _place(ratio)))
    colour = "#2a7f62" if ratio >= 1 else "#b5483a"
    width = max(2.0, round(end - start, 1))
    return [
        _text(_LABELS, y + 14, other, 15, "end"),
        _text(_LABELS, y + 28, work, 12, "end", "#555555"),
        f'  <rect x="{start}" y="{y + 4}" width="{width}" height="22" rx="2" fill="{colour}"/>',
        _text(max(end, _place(1)) + 8, y + 20, f"{ratio:.{1 if ratio >= 2 else 2}f}×", 15),
    ]


def _place(ratio: float) -> float:
    share = math.log(ratio / _LEAST) / math.log(_MOST / _LEAST)
    return round(_LEFT + share * (_RIGHT - _LEFT), 1)


def _text(
    x: float, y: float, text: str, size: int, anchor: str = "start", colour: str = "#222222"
) -> str:
    # The white edge keeps the lines of the scale away from the letters.
    return (
        f'  <text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="4" paint-order="stroke">{escape(text)}</text>'
    )


def draw(results: Mapping[str, Any]) -> None:
    """Write the picture of published results; write nothing if a comparison is missing."""
    rows = results["rows"]
    if all(key in rows for key, _, _ in BARS):
        PICTURE.write_text(svg({key: rows[key]["ratio"] for key, _, _ in BARS}))


if __name__ == "__main__":
    draw(json.loads((DOCS / "results.json").read_text()))
