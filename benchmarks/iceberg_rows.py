"""Rows of the table about Iceberg."""

from __future__ import annotations

from comparison import Comparison

__all__ = ["ICEBERG"]

ICEBERG = (
    Comparison(
        "iceberg-plain",
        "Iceberg table without deletes, torch output",
        "iceberg.plain",
        ("iceberg.files",),
        "`StructuredDataset` on the same files; both loaders are there before the clock starts",
        0.95,
    ),
    Comparison(
        "iceberg-deletes",
        "Iceberg, 1 % position deletes, one file of 20 row groups, 2 lanes, torch output",
        "iceberg.deletes",
        ("iceberg.arrow-scan",),
        "pyiceberg's `ArrowScan` to record batches",
        2,
    ),
    Comparison(
        "iceberg-plan",
        "planning an Iceberg table of 10,000 files",
        "iceberg.plan",
        ("iceberg.plan-files",),
        "pyiceberg's `plan_files` alone",
        1.3,
        "seconds",
    ),
)
