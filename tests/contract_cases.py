"""The loader contract in a quarter of its cases, for tables.

Files of Parquet go through all 128. What a table adds is a plan and a reader, which no more than
three of the five options reach together: any three still meet in all combinations of their values.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from headrace.testing import LoaderContract

FORMATS = ("torch", "numpy", "arrow", "dict")


def crossed() -> list[tuple[str, int, bool, int, bool]]:
    """An orthogonal array of strength three: 4 × 4 × 2 × 2 × 2 options in 32 cases."""
    cases = []
    for form, workers, bit in product(range(4), range(4), range(2)):
        mixed = bit ^ (form & 1) ^ (workers & 1)
        drop_last = bit ^ (form >> 1) ^ (workers >> 1)
        cases.append(
            (FORMATS[form], workers, bool(bit), 3 if mixed and bit else 1, bool(drop_last))
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
