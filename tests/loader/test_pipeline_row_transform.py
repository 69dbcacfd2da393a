"""``row_transform``: a function of each row, for every source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sample_tars import SIZES, write_samples

from headrace import OptionError, StructuredDataset, TarDataset
from headrace.sources.tar import index_tars


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "tars", [9, 4])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = {"id": range(10), "x": [float(i) for i in range(10)], "t": [f"t{i}" for i in range(10)]}
    rows["s"] = [{"a": i, "b": str(i)} for i in range(10)]  # type: ignore[assignment]
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def renamed(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": row["png"].float() / 255, "label": row["cls"]}


def to_tuple(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["x"] * 2, row["t"].upper(), np.full(3, int(row["id"])), row["s"]["b"]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_tars_are_renamed_and_changed(folder: Path, workers: int) -> None:
    loader, _ = TarDataset.create_dataloader(
        folder, decode=True, row_transform=renamed, batch_size=5, num_workers=workers
    )
    batch = next(iter(loader))
    assert list(batch) == ["image", "label"]
    assert batch["label"].tolist() == [0, 1, 2, 3, 4]
    assert [one.shape[1:] for one in batch["image"]] == [(h, w) for w, h in [*SIZES, SIZES[0]]]
    assert batch["image"][0].dtype == torch.float32


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_files_become_tuples(table: Path, workers: int) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        table, row_transform=to_tuple, batch_size=4, num_workers=workers
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    doubled, text, full, inner = batches[1]
    assert torch.equal(doubled, torch.tensor([8.0, 10.0, 12.0, 14.0], dtype=torch.float64))
    assert text == ["T4", "T5", "T6", "T7"]
    assert full.shape == (4, 3)
    assert inner == ["4", "5", "6", "7"]
    assert dataset.rows[5][1] == "T5"


def test_a_batch_is_made_before_transform_and_collate_fn(table: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        table,
        row_transform=lambda row: {"n": int(row["id"]) + 1},
        transform=lambda batch: batch["n"] * 10,
        collate_fn=lambda batch: {"all": batch},
        batch_size=10,
        num_workers=0,
    )
    assert next(iter(loader))["all"].tolist() == list(range(10, 110, 10))


@pytest.mark.parametrize(
    ("output_format", "expected"),
    [("dict", {"n": [0, 1]}), ("arrow", [{"n": 0}, {"n": 1}]), ("numpy", {"n": [0, 1]})],
)
def test_other_formats(table: Path, output_format: str, expected: Any) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        table,
        row_transform=lambda row: {"n": int(row["id"])},
        output_format=output_format,
        batch_size=2,
        num_workers=0,
    )
    batch = next(iter(loader))
    if output_format == "numpy":
        assert isinstance(batch["n"], np.ndarray)
        batch = {"n": batch["n"].tolist()}
    assert batch == expected


def test_images_of_one_shape_are_changed_too(folder: Path) -> None:
    index_tars(folder, geometry=True)
    loader, _ = TarDataset.create_dataloader(
        folder,
        bucketed=True,
        decode=True,
        columns=["png", "cls"],
        row_transform=renamed,
        batch_size=3,
        num_workers=0,
    )
    labels = [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(labels) == sorted(number % 10 for number in range(13))


def test_lists_that_are_no_rows_are_refused(table: Path) -> None:
    with pytest.raises(OptionError, match='ragged="offsets"'):
        StructuredDataset(table, row_transform=to_tuple, ragged="offsets")
