"""Batches of rows, unchanged or changed by a user's code, here and sent by a worker."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
import torch
from row_tables import rows_of
from torch.utils.data import DataLoader, default_collate

from headrace.access import ArrowBackend, RowDataset
from headrace.convert.packing import Batch

ROWS = 64


def rows(**options: Any) -> RowDataset:
    table = pa.table(
        {
            "id": range(ROWS),
            "text": [f"row {i}" * (i % 3) for i in range(ROWS)],
            "data": [bytes([i]) * 1_000 for i in range(ROWS)],
            "some": [None if i % 2 else f"{i}" for i in range(ROWS)],
        }
    )
    return RowDataset(ArrowBackend(table=table), nulls={"some": "none"}, **options)


def changed_number(batch: Any) -> Any:
    collated = default_collate(batch)
    collated["id"] += 1_000
    return collated


def changed_word(batch: Any) -> Any:
    collated = default_collate(batch)
    collated["text"][0] = "changed"
    return collated


def changed_column(batch: Any) -> Any:
    collated = default_collate(batch)
    collated["some"] = torch.ones(len(collated["id"]))
    collated["more"] = 7
    return collated


@pytest.mark.parametrize(
    ("output_format", "collate"),
    [
        ("torch", None),
        ("torch", changed_number),
        ("torch", changed_word),
        ("torch", changed_column),
        ("numpy", None),
        ("numpy", changed_word),
        ("dict", None),
        ("dict", changed_word),
    ],
)
def test_workers_hand_out_what_was_made(output_format: str, collate: Any) -> None:
    if output_format == "dict":
        given = rows().with_format("dict")
    else:
        given = rows(output_format=output_format)
    here = list(DataLoader(given, batch_size=10, collate_fn=collate))
    there = list(DataLoader(given, batch_size=10, collate_fn=collate, num_workers=1))
    assert len(here) == len(there) == 7
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            plain, sent = one[key], other[key]
            assert type(plain) is type(sent)
            assert getattr(plain, "dtype", None) == getattr(sent, "dtype", None)
            assert (list(plain) if key != "more" else plain) == (
                list(sent) if key != "more" else sent
            )


def test_bytes_cross_in_the_shared_buffer() -> None:
    batch = Batch(rows().__getitems__(range(32)).columns)
    make, arguments = batch.__reduce__()
    assert make(*arguments)["data"] == [bytes([i]) * 1_000 for i in range(32)]
    buffer, layout = arguments
    assert buffer.memory.nbytes > 32_000
    assert len(layout) < 2_000, "no value is in the pickle"
    assert len(pickle.dumps(layout)) < 3_000


def hundredfold(batch: Any) -> Any:
    for row in batch:
        row["x"] *= 100
        row["new"] = 1
        del row["text"]
    return default_collate(batch)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_changes_of_rows_are_collated(output_format: str, workers: int) -> None:
    rows = rows_of({"x": range(6), "text": ["a"] * 6}, output_format=output_format)
    loader = DataLoader(rows, batch_size=3, collate_fn=hundredfold, num_workers=workers)
    for number, batch in enumerate(loader):
        assert batch["x"].tolist() == [100 * (3 * number + place) for place in range(3)]
        assert list(batch) == ["x", "new"]
        assert batch["new"].tolist() == [1, 1, 1]


def test_a_row_is_the_same_each_time() -> None:
    rows = rows_of({"x": range(4), "pair": [{"a": i} for i in range(4)]})
    batch = rows.__getitems__([2, 3, 0])
    batch[0]["x"] = torch.tensor(-1)
    batch[0]["pair"]["a"] = torch.tensor(-2)
    assert batch[0] is batch[0] is next(iter(batch))
    collated = default_collate(batch)
    assert collated["x"].tolist() == [-1, 3, 0]
    assert collated["pair"]["a"].tolist() == [-2, 3, 0]


def test_columns_of_rows_that_were_only_read_stay_as_they_are() -> None:
    lists = [[float(i)] * i + [float("nan")] for i in range(4)]
    table = {"x": range(4), "m": [[1, 2], [3, 4]] * 2, "lists": lists}
    batch = rows_of(table, ragged="pad").__getitems__([1, 2])
    assert [len(row["lists"]) for row in batch] == [2, 3]
    assert default_collate(batch)["lists"].shape == (2, 3)
    batch[1]["x"] = torch.tensor(7)
    collated = default_collate(batch)
    assert collated["x"].tolist() == [1, 7]
    assert collated["lists"].shape == (2, 3)


def test_a_transposed_row_is_a_changed_one() -> None:
    cubes = torch.arange(8).reshape(2, 2, 2)
    rows = rows_of({"n": range(2)}).add_column("m", cubes)
    batch = rows.__getitems__([0, 1])
    for row in batch:
        row["m"] = row["m"].T
    assert torch.equal(default_collate(batch)["m"], cubes.transpose(1, 2))
