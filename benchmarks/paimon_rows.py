"""Rows of the table about Paimon."""

from __future__ import annotations

from comparison import Comparison

__all__ = ["PAIMON"]

PAIMON = (
    Comparison(
        "paimon-chunks",
        "Paimon table, chunks of 1,000 rows shuffled, torch output",
        "paimon.chunks",
        ("paimon.to-torch",),
        "pypaimon's `to_torch` with its chunk shuffle",
        3,
    ),
)
