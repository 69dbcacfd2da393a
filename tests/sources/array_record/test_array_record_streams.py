"""ArrayRecord files through the loader, and the contract of backends."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from array_record_files import write_records

from headrace import ArrayRecordDataset
from headrace.access import Backend
from headrace.errors import OptionError, ReadError
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.testing import BackendContract
from headrace.write import write_array_record


class TestArrayRecords(BackendContract):
    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        write_array_record(table, directory / "all", shard_records=500)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return ArrayRecordBackend(directory)


class TestArrayRecordsInGroups(BackendContract):
    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        write_array_record(table.slice(0, 700), directory / "0.array_record", group_size=64)
        write_array_record(table.slice(700), directory / "1.array_record", group_size=300)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return ArrayRecordBackend([directory / "0.array_record", directory / "1.array_record"])


ROWS = 3000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = pa.table({"id": range(ROWS), "data": [bytes([i % 251]) * 900 for i in range(ROWS)]})
    path = tmp_path_factory.mktemp("records") / "a.array_record"
    write_array_record(table, path, group_size=100)
    return path


@pytest.mark.parametrize("high_memory", [False, True], ids=["blocks", "at once"])
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_share_one_file_by_records(
    path: Path, workers: int, high_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loader, _ = ArrayRecordDataset.create_dataloader(
            path,
            batch_size=64,
            num_workers=workers,
            high_memory=high_memory,
            split_rows=200,
            columns=["id"],
        )
        ids = [batch["id"].tolist() for batch in loader]
    assert sorted(i for batch in ids for i in batch) == list(range(ROWS))
    assert "groups" not in caplog.text
    if workers:
        assert ids[1][0] >= ROWS // 2 - 64  # the second worker begins in the middle


def test_chunks_are_whole_groups(path: Path) -> None:
    backend = ArrayRecordBackend(path)
    assert (backend.unit_rows(0) or 1) % 100 == 0


def test_filters_columns_and_resuming(path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 100, "num_workers": 0, "columns": ["id"]}
    loader, _ = ArrayRecordDataset.create_dataloader(path, filters=[("id", "<", 250)], **options)
    assert sorted(i for b in loader for i in b["id"].tolist()) == list(range(250))
    loader, _ = ArrayRecordDataset.create_dataloader(path, shuffle=True, **options)
    whole = [b["id"].tolist() for b in loader]
    loader, _ = ArrayRecordDataset.create_dataloader(path, shuffle=True, **options)
    first = iter(loader)
    begun = [next(first)["id"].tolist() for _ in range(7)]
    state = loader.state_dict()
    other, _ = ArrayRecordDataset.create_dataloader(path, shuffle=True, **options)
    other.load_state_dict(state)
    assert begun + [b["id"].tolist() for b in other] == whole


def test_a_damaged_record_is_skipped_with_its_chunk(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", [np.random.bytes(2000) for _ in range(300)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 9] = bytes(9)
    path.write_bytes(bytes(data))
    options: dict[str, Any] = {"split_rows": 10, "output_format": "arrow", "batch_size": 50}
    loader, _ = ArrayRecordDataset.create_dataloader(path, **options)
    with pytest.raises(ReadError, match=r"a\.array_record: record \d+ cannot be read"):
        list(loader)
    loader, _ = ArrayRecordDataset.create_dataloader(path, on_error="skip", **options)
    with pytest.warns(UserWarning, match=r"skipped: .*record \d+ cannot be read"):
        rows = sum(batch.num_rows for batch in loader)
    assert 280 <= rows < 300


def test_options_that_are_none(path: Path) -> None:
    with pytest.raises(OptionError, match="high_memory must be True or False"):
        ArrayRecordDataset(path, high_memory="yes")  # type: ignore[arg-type]


def test_a_single_row_costs_the_same_in_a_long_file(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        file = write_records(tmp_path / f"{count}.array_record", [b"0123456789"] * count)
        backend = ArrayRecordBackend(file)
        rows = np.random.default_rng(0).integers(0, count, 300).tolist()
        taken = []
        for _ in range(7):
            start = time.process_time()
            for row in rows:
                backend.get_row(row)
            taken.append(time.process_time() - start)
        return min(taken)

    assert seconds(200_000) < 8 * seconds(2_000)  # looking at every record would be 100 times


def test_rows_of_a_dataset(path: Path) -> None:
    dataset = ArrayRecordDataset(path, batch_size=10)
    assert dataset.backend.get_row(7)["id"] == 7
