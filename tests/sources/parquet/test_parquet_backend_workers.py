"""Rows of Parquet files by index in worker processes, whatever way they are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.http_files import HttpServer
from torch.utils.data import DataLoader, Dataset

from headrace.loader.datasets import BackendDataset
from headrace.options import DatasetOptions, resolve
from headrace.sources.parquet.backend import ParquetBackend

ROWS = 3000


class Ids(Dataset[int]):
    """The least that a map-style dataset over a backend can be."""

    def __init__(self, backend: ParquetBackend) -> None:
        self.backend = backend

    def __len__(self) -> int:
        return len(self.backend)

    def __getitem__(self, index: int) -> int:
        return int(self.backend.get_row(index)["id"])

    def __getitems__(self, indices: list[int]) -> list[int]:
        table = self.backend.take(indices)
        texts = [int(text) for text in table["text"].to_pylist()]
        assert texts == table["id"].to_pylist()
        return texts


def write(path: Path, first: int, rows: int, **writing: Any) -> None:
    ids = np.arange(first, first + rows)
    pq.write_table(
        pa.table({"id": ids, "text": [f"{i:0500}" for i in ids]}),
        path,
        compression="none",
        use_dictionary=False,
        data_page_size=4096,
        write_batch_size=8,
        **writing,
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """One with a page index and one without."""
    write(tmp_path / "a.parquet", 0, 2000, write_page_index=True)
    write(tmp_path / "b.parquet", 2000, 1000, row_group_size=400)
    return tmp_path


def loaded(backend: ParquetBackend, start_method: str) -> list[int]:
    loader = DataLoader(
        Ids(backend),
        batch_size=50,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=start_method,
        timeout=120,
    )
    return [int(value) for batch in loader for value in batch]


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_rows_in_workers(files: Path, start_method: str) -> None:
    backend = ParquetBackend(files)
    backend.take([0, 2999, 17])  # there is something to be inherited
    seen = loaded(backend, start_method)
    assert seen != list(range(ROWS))
    assert sorted(seen) == list(range(ROWS))
    assert backend.take([1, 2998])["id"].to_pylist() == [1, 2998]


def test_rows_of_a_web_server_in_workers(files: Path, http_server: HttpServer) -> None:
    urls = [http_server.put(file.name, file.read_bytes()) for file in sorted(files.iterdir())]
    backend = ParquetBackend(urls)
    assert not backend.fork_safe
    backend.take([0, 2999, 17])
    assert sorted(loaded(backend, "forkserver")) == list(range(ROWS))


def test_rows_are_streamed_by_the_loader(files: Path) -> None:
    options = resolve(DatasetOptions, {"batch_size": 64, "shuffle": True, "columns": ["id"]})
    dataset = BackendDataset(ParquetBackend(files), options)
    seen = [value for batch in dataset for value in batch["id"].tolist()]
    assert seen != list(range(ROWS))
    assert sorted(seen) == list(range(ROWS))
