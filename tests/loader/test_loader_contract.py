"""The loader contract for Parquet, and a check of its reference order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, write_parquet

from headrace import StatefulLoader, StructuredDataset
from headrace.testing import LoaderContract
from headrace.testing.loader_contract import dealt_batches

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class TestParquetLoader(LoaderContract):
    rows = ROWS

    @classmethod
    def write(cls, directory: Path) -> None:
        write_parquet(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> tuple[StatefulLoader, StructuredDataset]:
        if options.get("shuffle") or options.get("mix", 1) > 1:
            options["split_rows"] = 70
        return StructuredDataset.create_dataloader(directory, **options)


def test_the_reference_order_is_that_of_the_design() -> None:
    assert dealt_batches(range(7), 2, 1) == [[0, 1], [2, 3], [4, 5], [6]]
    assert dealt_batches(range(7), 2, 2) == [[0, 1], [4, 5], [2, 3], [6]]
    assert dealt_batches(range(7), 2, 3) == [[0, 1], [3, 4], [5, 6], [2]]
    assert dealt_batches(range(3), 2, 4) == [[0, 1], [2]]
    assert dealt_batches(range(0), 2, 2) == []
