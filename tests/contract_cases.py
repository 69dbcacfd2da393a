"""The loader contract in an eighth of its cases, for tables.

Parquet files are tested in all 128 cases. A table adds only a plan, and a reader that returns Arrow
tables. In these 16 cases any two of the five options meet in all combinations of their values.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from headrace.testing import LoaderContract

FORMATS = ("torch", "numpy", "arrow", "dict")


def crossed() -> list[tuple[str, int, bool, int, bool]]:
    """Return an orthogonal array of strength two: 4 × 4 × 2 × 2 × 2 options in 16 cases."""
    cases = []
    for form, workers in product(range(4), range(4)):
        shuffle = (form & 1) ^ (workers & 1)
        mixed = (form >> 1) ^ (workers >> 1)
        drop_last = (form & 1) ^ (form >> 1) ^ (workers >> 1)
        cases.append(
            (FORMATS[form], workers, bool(shuffle), 3 if mixed and shuffle else 1, bool(drop_last))
        )
    return cases


class CrossedLoaderContract(LoaderContract):
    @pytest.mark.parametrize(
        ("output_format", "num_workers", "shuffle", "mix", "drop_last"), crossed()
    )
    def test_every_row_once_in_exact_batches(
        self,
        data: Path,
        output_format: str,
        num_workers: int,
        shuffle: bool,
        mix: int | None,
        drop_last: bool,
    ) -> None:
        super().test_every_row_once_in_exact_batches(
            data, output_format, num_workers, shuffle, mix, drop_last
        )

    @pytest.mark.parametrize(("shuffle", "mix"), [(False, 1), (True, 3)])
    def test_lanes_and_not_workers_decide_the_order(
        self, data: Path, shuffle: bool, mix: int | None
    ) -> None:
        super().test_lanes_and_not_workers_decide_the_order(data, shuffle, mix)
