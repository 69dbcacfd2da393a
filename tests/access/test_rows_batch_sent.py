"""Batches of rows sent by a worker, both unchanged ones and those that a user's code changed."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
import torch
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
