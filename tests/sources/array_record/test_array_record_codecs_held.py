"""Records in loaders: bytes, labels and columns come as by way of Arrow, here and from workers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from array_record_files import records_of, write_records

from headrace import ArrayRecordDataset
from headrace.errors import SkippedDataWarning
from headrace.write import write_array_record

RECORDS = records_of(700, size=400)
TABLE = pa.table(
    {
        "id": range(700),
        "image": pa.array([None if i % 7 == 3 else r for i, r in enumerate(RECORDS)], pa.binary()),
        "large": pa.array(RECORDS, pa.large_binary()),
        "text": [f"row {i}" for i in range(700)],
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held")
    write_records(folder / "raw.array_record", RECORDS, group_size=100)
    labelled = [struct.pack("<II", i, len(r)) + r for i, r in enumerate(RECORDS)]
    write_records(folder / "labelled.array_record", labelled, group_size=100)
    write_array_record(TABLE, folder / "columns.array_record", group_size=100)
    return folder


def read(path: Path, **options: Any) -> dict[str, list[Any]]:
    """All rows, by column, as Python values."""
    loader, _ = ArrayRecordDataset.create_dataloader(path, batch_size=64, **options)
    found: dict[str, list[Any]] = {}
    for batch in loader:
        if isinstance(batch, pa.RecordBatch):
            batch = batch.to_pydict()
        for name, column in batch.items():
            found.setdefault(name, []).extend(
                column if isinstance(column, list) else column.tolist()
            )
    return found


ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True, "shuffle_seed": 3, "mix": 4, "split_rows": 50},
    "by numpy": {"output_format": "numpy"},
}


@pytest.mark.parametrize(
    ("name", "decode", "order", "workers"),
    [
        ("raw", None, "in order", 0),
        ("raw", None, "shuffled", 2),
        ("raw", "raw", "by numpy", 2),
        ("labelled", "label-payload", "in order", 2),
        ("labelled", "label-payload", "by numpy", 0),
        ("columns", None, "in order", 2),
        ("columns", None, "shuffled", 0),
        ("columns", None, "by numpy", 2),
    ],
)
def test_batches_are_those_of_arrow(
    folder: Path, name: str, decode: str | None, order: str, workers: int
) -> None:
    path, options = folder / f"{name}.array_record", ORDERS[order] | {"decode": decode}
    nulls = {"image": b"none"} if name == "columns" else None
    found = read(path, num_workers=workers, nulls=nulls, **options)
    expected = read(path, num_workers=workers, **options | {"output_format": "arrow"})
    if name == "columns":
        expected["image"] = [b"none" if one is None else one for one in expected["image"]]
    assert found == expected


def test_columns_and_masks(folder: Path) -> None:
    path = folder / "columns.array_record"
    found = read(path, columns=["image", "id"], nulls="mask", num_workers=2)
    assert list(found) == ["image", "image_mask", "id", "id_mask"]
    assert sorted(found["id"]) == list(range(700))
    for number, image, mask in zip(found["id"], found["image"], found["image_mask"], strict=True):
        assert mask == (number % 7 == 3)
        assert mask or image == RECORDS[number]
    assert read(path, columns=["id"]) == {"id": list(range(700))}


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_records_are_left_out(tmp_path: Path, workers: int) -> None:
    labelled = [struct.pack("<II", i, len(r)) + r for i, r in enumerate(RECORDS)]
    labelled[123] = labelled[123][:-1]
    path = write_records(tmp_path / "a.array_record", labelled, group_size=100)
    with pytest.warns(SkippedDataWarning, match="record 123 is not a label and payload"):
        found = read(path, decode="label-payload", on_error="skip", num_workers=workers)
    assert sorted(found["label"]) == [i for i in range(700) if i != 123]
    assert found["payload"] == [RECORDS[i] for i in found["label"]]
