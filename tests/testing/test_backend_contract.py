"""The contract of backends, for the simplest possible backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather

from headrace.access import Backend
from headrace.model import Int64Array
from headrace.testing import BackendContract


class FeatherShards(Backend):
    """Files that are read as a whole, each time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._rows = np.array([feather.read_table(path).num_rows for path in paths])

    @property
    def schema(self) -> pa.Schema:
        return feather.read_table(self.paths[0]).schema

    @property
    def shard_rows(self) -> Int64Array:
        return self._rows

    @property
    def shard_names(self) -> Sequence[str]:
        return list(map(str, self.paths))

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        whole = pa.concat_tables([feather.read_table(path) for path in self.paths])
        return whole.select(schema.names).take(pa.array(rows))


class TestPlainBackend(BackendContract):
    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        for number, start in enumerate(range(0, cls.rows, 400)):
            feather.write_feather(table.slice(start, 400), directory / f"{number}.arrow")

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return FeatherShards(sorted(directory.iterdir()))


def test_rows_are_located_in_their_shards(tmp_path: Path) -> None:
    TestPlainBackend.write(tmp_path, TestPlainBackend.expected())
    backend = TestPlainBackend.open(tmp_path)
    rows = np.array([1153, 0, 400, 399, 800, 0])
    found = [
        (shard, places.tolist(), local.tolist()) for shard, places, local in backend.located(rows)
    ]
    assert found == [(0, [1, 3, 5], [0, 399, 0]), (1, [2], [0]), (2, [0, 4], [353, 0])]
