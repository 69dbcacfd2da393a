"""Rows of ArrayRecord files as a dataset: records go from the reader into batches as they are."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from array_record_files import records_of, write_records
from torch.utils.data import DataLoader

from headrace.access import ArrayRecordBackend, RowDataset
from headrace.errors import ReadError, SkippedDataWarning
from headrace.sources.array_record.codecs import LabelPayload

RECORDS = records_of(120, size=900)
NAMED = [5, 3, 5, -1, 77]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("rows") / "a.array_record", RECORDS)


@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict", "arrow"])
def test_a_batch_is_what_is_taken(path: Path, output_format: str) -> None:
    rows = RowDataset(ArrayRecordBackend(path), output_format=output_format)
    wanted = [RECORDS[row] for row in NAMED]
    batch = rows.batch(NAMED)
    column = batch["record"]
    if output_format == "arrow":
        assert batch.schema == rows.schema
        column = column.to_pylist()
    assert list(column) == wanted
    assert type(column) is (np.ndarray if output_format == "numpy" else list)
    if output_format == "numpy":
        assert column.dtype == object
    one = rows[-1]["record"]
    assert (one[0].as_py() if output_format == "arrow" else one) == RECORDS[-1]
    if output_format != "arrow":
        assert [row["record"] for row in rows.__getitems__(NAMED)] == wanted
        assert len(rows.batch([])["record"]) == 0


def test_records_of_a_batch_are_not_joined(tmp_path: Path) -> None:
    records = [bytes([i]) * 100_000 for i in range(20)]
    rows = RowDataset(ArrayRecordBackend(write_records(tmp_path / "a.array_record", records)))
    assert len(rows.batch(range(20))["record"]) == 20  # what is opened and kept is by now
    tracemalloc.start()
    try:
        assert rows.batch(range(20))["record"] == records
        assert 2_000_000 < tracemalloc.get_traced_memory()[1] < 2_500_000
    finally:
        tracemalloc.stop()


def test_nulls_that_are_marked(path: Path) -> None:
    batch = RowDataset(ArrayRecordBackend(path), nulls="mask").batch(NAMED)
    assert list(batch) == ["record", "record_mask"]
    assert batch["record"] == [RECORDS[row] for row in NAMED]
    assert torch.equal(batch["record_mask"], torch.zeros(5, dtype=torch.bool))


def test_views_transforms_decoders_and_no_columns(path: Path) -> None:
    backend = ArrayRecordBackend(path)
    rows = RowDataset(backend, transform=lambda row: len(row["record"])).shuffle(3)[10:40]
    order = [RECORDS.index(row["record"]) for row in RowDataset(backend).shuffle(3)[10:40]]
    assert rows.__getitems__([4, 4, 9]) == [len(RECORDS[order[i]]) for i in (4, 4, 9)]
    lengths = RowDataset(backend, decode={"record": len}).batch(NAMED)["record"]
    assert lengths.tolist() == [len(RECORDS[row]) for row in NAMED]
    assert RowDataset(backend, columns=[]).batch(NAMED) == {}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_loaders_of_torch(path: Path, workers: int, output_format: str) -> None:
    rows = RowDataset(ArrayRecordBackend(path), output_format=output_format)
    context = "forkserver" if workers else None
    loader: Any = DataLoader(
        rows, batch_size=50, num_workers=workers, multiprocessing_context=context
    )
    batches = [list(batch["record"]) for batch in loader]
    assert batches == [RECORDS[:50], RECORDS[50:100], RECORDS[100:]]


def test_labels_and_payloads_in_rows(tmp_path: Path) -> None:
    table = pa.table({"label": pa.array(range(40), pa.uint32()), "payload": RECORDS[:40]})
    records = list(LabelPayload.of_columns(table.schema).records(table))
    path = write_records(tmp_path / "a.array_record", records)
    batch = RowDataset(ArrayRecordBackend(path, decode="label-payload")).batch([7, 1, 7])
    assert list(batch) == ["label", "payload"]
    assert batch["label"].tolist() == [7, 1, 7]
    assert batch["payload"] == [RECORDS[7], RECORDS[1], RECORDS[7]]


def test_records_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    records = [np.random.default_rng(i).bytes(2000) for i in range(30)]
    path = write_records(tmp_path / "a.array_record", records)
    data = bytearray(path.read_bytes())
    data[data.index(records[9]) + 1000] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ReadError, match="record 9 cannot be read"):
        RowDataset(ArrayRecordBackend(path)).batch(range(30))
    rows = RowDataset(ArrayRecordBackend(path), on_error="skip")
    with pytest.warns(SkippedDataWarning, match="record 9 cannot be read"):
        batch = rows.batch(range(30))
    assert batch["record"] == records[:9] + records[10:]
    assert rows.skipped == 1


class Shouting(ArrayRecordBackend):
    """Takes something else."""

    def _take(self, rows: Any, schema: pa.Schema) -> pa.Table:
        return pa.table({"record": [b"!"] * len(rows)}, schema=schema)


def test_a_backend_that_takes_otherwise_is_asked(path: Path) -> None:
    assert RowDataset(Shouting(path)).batch([3, 4])["record"] == [b"!", b"!"]
