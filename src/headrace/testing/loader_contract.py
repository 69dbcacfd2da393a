"""The contract of loaders: every row once, exact batches, an order that is arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from headrace.loader import StatefulLoader, TabularDataset

__all__ = ["LoaderContract", "dealt_batches", "frozen", "ids_of"]


def ids_of(batch: Any) -> list[int]:
    """The values of the column ``id`` of a batch in any output format."""
    column = batch["id"]
    if isinstance(column, list):
        return column
    return list(column.to_pylist() if isinstance(column, pa.Array) else column.tolist())


def frozen(value: Any) -> Any:
    """A batch as a value that compares bit by bit, with the types and shapes of all its parts."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, pa.RecordBatch):
        return "arrow", str(value.schema), repr(value.to_pylist())
    if isinstance(value, Mapping):
        return "dict", tuple((key, frozen(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(frozen, value))
    return type(value).__name__, repr(value)


def dealt_batches(rows: Sequence[int], batch_size: int, lanes: int) -> list[list[int]]:
    """The epoch's batches when these rows, in this order, are dealt to so many lanes.

    Global batch g is batch ``g // lanes`` of lane ``g % lanes``; a lane is a run of the rows.
    """
    total = -(-len(rows) // batch_size)
    starts, at = [], 0
    for lane in range(lanes):
        starts.append(at)
        owned = len(range(lane, total, lanes)) * batch_size
        last = total > 0 and (total - 1) % lanes == lane
        at += owned - (total * batch_size - len(rows) if last else 0)
    stops = [*starts[1:], len(rows)]
    dealt = []
    for batch in range(total):
        lane, place = batch % lanes, batch // lanes
        start = starts[lane] + place * batch_size
        dealt.append(list(rows[start : min(start + batch_size, stops[lane])]))
    return dealt


class LoaderContract:
    """Inherit as ``TestX(LoaderContract)`` and define ``write`` and ``create``.

    ``write`` makes several files of uneven sizes; their column ``id`` counts up from 0 in file
    order to ``rows``.
    """

    rows = 1154
    batch_size = 100

    @classmethod
    def write(cls, directory: Path) -> None:
        """Write the files of the data set."""
        raise NotImplementedError

    @classmethod
    def create(cls, directory: Path, **options: Any) -> tuple[StatefulLoader, TabularDataset]:
        """A loader over them whose rows are counted, with these options."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def data(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The directory of the files."""
        directory = tmp_path_factory.mktemp("data")
        cls.write(directory)
        return directory

    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize(("shuffle", "mix"), [(False, 1), (True, None), (True, 1), (True, 3)])
    @pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
    @pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
    def test_every_row_once_in_exact_batches(
        self,
        data: Path,
        output_format: str,
        num_workers: int,
        shuffle: bool,
        mix: int | None,
        drop_last: bool,
    ) -> None:
        loader = self._loader(
            data,
            output_format=output_format,
            num_workers=num_workers,
            shuffle=shuffle,
            mix=mix,
            drop_last=drop_last,
        )
        got = list(map(ids_of, loader))
        full, rest = divmod(self.rows, self.batch_size)
        sizes = [self.batch_size] * full + ([rest] if rest and not drop_last else [])
        assert list(map(len, got)) == sizes
        assert len(loader) == len(sizes)
        seen = [row for batch in got for row in batch]
        assert len(set(seen)) == len(seen) == sum(sizes)
        assert set(seen) <= set(range(self.rows))
        if not shuffle:
            expected = dealt_batches(range(self.rows), self.batch_size, max(num_workers, 1))
            assert got == expected[: len(sizes)]
        else:
            assert seen != sorted(seen)

    def test_it_is_a_torch_loader_without_batching_of_its_own(self, data: Path) -> None:
        loader, dataset = self.create(data, num_workers=0, batch_size=self.batch_size)
        assert isinstance(loader, DataLoader)
        assert loader.batch_size is None
        assert loader.dataset is dataset
        assert dataset.num_rows == self.rows

    @pytest.mark.parametrize(("shuffle", "mix"), [(False, 1), (True, None), (True, 1), (True, 3)])
    def test_lanes_and_not_workers_decide_the_order(
        self, data: Path, shuffle: bool, mix: int | None
    ) -> None:
        orders = [
            list(map(ids_of, self._loader(data, num_workers=n, lanes=4, shuffle=shuffle, mix=mix)))
            for n in (0, 1, 2)
        ]
        assert orders[0] == orders[1] == orders[2]
        if not shuffle:
            assert orders[0] == dealt_batches(range(self.rows), self.batch_size, 4)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_epochs_differ_and_can_be_had_again(self, data: Path, num_workers: int) -> None:
        options = {"num_workers": num_workers, "shuffle": True, "mix": 2}
        loader = self._loader(data, **options)
        epochs = [list(map(ids_of, loader)) for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        assert all(sorted(chain(*epoch)) == list(range(self.rows)) for epoch in epochs)
        again = self._loader(data, **options)
        again.set_epoch(2)
        assert list(map(ids_of, again)) == epochs[2]
        other = self._loader(data, **options, shuffle_seed=7)
        assert list(map(ids_of, other)) != epochs[0]

    def _loader(self, data: Path, **options: Any) -> StatefulLoader:
        return self.create(data, batch_size=self.batch_size, **options)[0]
