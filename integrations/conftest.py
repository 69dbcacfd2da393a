"""A folder of rows for every test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import ROWS, Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    data = tmp_path / "data"
    data.mkdir()
    random = np.random.default_rng(0)
    for number, ids in enumerate(np.array_split(np.arange(ROWS), 3)):
        x = random.normal(size=(len(ids), 4)).astype(np.float32)
        table = {
            "id": ids,
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4),
            "y": pa.array(x.sum(axis=1)),
        }
        pq.write_table(pa.table(table), data / f"part-{number}.parquet", row_group_size=100)
    return Job(tmp_path)
