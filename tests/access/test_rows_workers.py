"""Rows in worker processes of torch's own loader, with samplers of torch and of this library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from row_tables import ROWS, make_table, sharded
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset
from headrace.errors import ConversionError


def texts(batch: Any) -> list[str]:
    return [row["text"] for row in batch]


def as_they_are(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("forkserver", 1), ("spawn", 1)])
def test_workers_of_every_kind(tmp_path: Path, method: str, workers: int) -> None:
    rows = RowDataset(sharded(tmp_path)).shuffle(3)
    assert rows[0]["text"].startswith("row ")  # the parent reads as well
    sampler = GlobalShuffleSampler(len(rows), seed=1)
    order = sampler.indices(0, ROWS).tolist()
    loader = DataLoader(
        rows, batch_size=64, sampler=sampler, num_workers=workers, multiprocessing_context=method
    )
    batches = list(loader)
    expected = [rows[order[start : start + 64]] for start in range(0, ROWS, 64)]
    assert len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        assert type(batch) is dict
        assert list(batch) == list(wanted)
        assert torch.equal(batch["vector"], wanted["vector"])
        assert torch.equal(batch["pair"]["a"], wanted["pair"]["a"])
        assert batch["text"] == wanted["text"]
        assert batch["blob"] == wanted["blob"]
        assert [tags.tolist() for tags in batch["tags"]] == [t.tolist() for t in wanted["tags"]]


def addresses(value: Any) -> list[tuple[int, int]]:
    if isinstance(value, dict):
        return [place for part in value.values() for place in addresses(part)]
    if isinstance(value, list):
        return [place for part in value for place in addresses(part)]
    held = isinstance(value, torch.Tensor) and value.nbytes
    return [(value.data_ptr(), value.nbytes)] if held else []


def test_batches_cross_in_one_buffer() -> None:
    table = pa.table({f"x{i}": np.arange(1000) * i for i in range(40)})
    table = table.append_column("ragged", pa.array([[i] * (i % 3) for i in range(1000)]))
    loader = DataLoader(
        RowDataset(ArrowBackend(table=table)),
        batch_size=500,
        num_workers=1,
        multiprocessing_context="fork",
    )
    for batch in loader:
        places = addresses(batch)
        assert len(places) > 300
        begin, end = min(at for at, _ in places), max(at + size for at, size in places)
        assert end - begin < 2 * 500 * 8 * 41 + 600 * 64
        assert batch["x3"][0] == 3 * batch["x1"][0]
        batch["x3"] += 1  # it belongs to the receiver


@pytest.mark.parametrize("output_format", ["numpy", "arrow", "dict"])
def test_other_formats_cross(output_format: str) -> None:
    rows = RowDataset(ArrowBackend(table=make_table(20)), output_format=output_format)
    loader = DataLoader(rows, batch_size=10, num_workers=1, multiprocessing_context="fork")
    batch = list(loader)[1]
    ids = batch["id"].to_pylist() if output_format == "arrow" else list(batch["id"])
    assert ids == list(range(10, 20))
    assert type(batch) is (pa.RecordBatch if output_format == "arrow" else dict)


def test_rows_cross_as_well() -> None:
    rows = RowDataset(ArrowBackend(table=make_table(6)))

    def loaded(collate: Any) -> list[Any]:
        return list(
            DataLoader(
                rows,
                batch_size=3,
                num_workers=1,
                multiprocessing_context="fork",
                collate_fn=collate,
            )
        )

    assert loaded(texts) == [["row 0", "row 1", "row 2"], ["row 3", "row 4", "row 5"]]
    sent = loaded(as_they_are)
    assert [type(batch) for batch in sent] == [list, list]
    assert sent[1][2]["text"] == "row 5"
    assert torch.equal(sent[1][2]["vector"], rows[5]["vector"])


def test_samplers_of_torch() -> None:
    rows = RowDataset(ArrowBackend(table=make_table()))
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(rows, batch_size=50, sampler=RandomSampler(rows, generator=generator))
    ids = [i for batch in loader for i in batch["id"].tolist()]
    assert sorted(ids) == list(range(ROWS))
    assert ids != list(range(ROWS))

    shuffled = DataLoader(rows, batch_size=50, shuffle=True)
    assert sorted(i for batch in shuffled for i in batch["id"].tolist()) == list(range(ROWS))

    parts = []
    for rank in range(2):
        sampler = DistributedSampler(rows, num_replicas=2, rank=rank, seed=3)
        sampler.set_epoch(1)
        loader = DataLoader(rows, batch_size=50, sampler=sampler)
        parts.append([i for batch in loader for i in batch["id"].tolist()])
    assert sorted(parts[0] + parts[1]) == list(range(ROWS))


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [([0, 1], ConversionError, "column 'x'"), ([0, 5], IndexError, "there is no row 5")],
    ids=["null", "beyond"],
)
def test_errors_of_workers_say_what_happened(
    order: list[int], error: type[Exception], message: str
) -> None:
    rows = RowDataset(ArrowBackend(table=pa.table({"x": [1, None]})))
    loader = DataLoader(
        rows, sampler=order, batch_size=2, num_workers=1, multiprocessing_context="fork"
    )
    batches = iter(loader)
    with pytest.raises(error, match=message):
        next(batches)
    assert list(batches) == []  # torch ends workers without further work, and waits long for others


def test_persistent_workers_go_through_epochs(tmp_path: Path) -> None:
    rows = RowDataset(sharded(tmp_path))
    sampler = GlobalShuffleSampler(len(rows), seed=2)
    loader = DataLoader(
        rows,
        batch_size=100,
        sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for epoch in range(3):
        ids = [i for batch in loader for i in batch["id"].tolist()]
        assert ids == sampler.indices(0, ROWS, epoch=epoch).tolist()
