"""Pinned memory stays until it has been copied to a device, even if its tensor is freed before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from worker_code import with_process

from headrace import StructuredDataset
from headrace.convert import Converter
from headrace.convert.packing import pack
from headrace.loader._feed import Parcel, pack_blocks, pack_dicts

ROWS, BATCH_ROWS = 100, 25


def pinned_batches(packed: Any, *, whole: bool) -> list[Any]:
    cursors = [(0, end) for end in range(BATCH_ROWS, ROWS + 1, BATCH_ROWS)]
    parcel = Parcel(0, cursors, ROWS, *packed, whole, {})
    return list(parcel.run(BATCH_ROWS, pin=True).batches())


@pytest.mark.parametrize("how", ["columns", "blocks", "dicts", "values"])
def test_tensors_are_views_of_what_torch_has_pinned(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pin whole storages: torch identifies pinned memory by its storage while it is copied."""
    pinned: dict[int, torch.Tensor] = {}

    def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        pinned_tensor = tensor.clone()
        pinned[pinned_tensor.untyped_storage().data_ptr()] = pinned_tensor
        return pinned_tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    numbers = {"a": np.arange(ROWS), "b": np.arange(ROWS, dtype=np.float32), "c": np.ones(ROWS)}
    table = pa.table({**numbers, "text": ["x"] * ROWS} if how == "blocks" else numbers)
    converter = Converter(table.schema, "torch")
    block = converter.convert(table)
    batches = list(block.batches(BATCH_ROWS))
    sent = {"columns": [block], "blocks": [block], "dicts": batches, "values": batches}[how]
    pack_them: Any = {"dicts": pack_dicts, "values": pack}.get(how, pack_blocks)
    arrived = pinned_batches(pack_them(sent), whole=sent[0] is block)
    assert len(arrived) == len(batches)
    for batch, expected in zip(arrived, batches, strict=True):
        assert batch.keys() == expected.keys()
        for name in numbers:
            assert torch.equal(batch[name], expected[name])
            assert batch[name].untyped_storage().data_ptr() in pinned


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("transform", [None, with_process])
def test_what_is_on_its_way_to_a_device_does_not_change(tmp_path: Path, transform: Any) -> None:
    rows = 4_000_000
    columns = {f"c{i}": np.arange(rows, dtype=np.float32) for i in range(4)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=200_000)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path,
        num_workers=2,
        batch_size=20_000,
        pin_memory=True,
        transform=transform,
        multiprocessing_context="spawn",
    )
    batches = iter(loader)
    next(batches)
    torch.empty(
        2 * rows, device="cuda"
    )  # memory for all batches, so that no allocation waits later
    torch.cuda._sleep(8_000_000_000)  # all copies wait for this
    expected, copied = [], []
    for batch in batches:
        assert batch["c3"].is_pinned()
        expected.append(batch["c3"].clone())
        copied.append(batch["c3"].cuda(non_blocking=True))
        del batch
    torch.cuda.synchronize()
    assert torch.equal(torch.cat(copied).cpu(), torch.cat(expected))
