"""Tensors of types that numpy does not know, and nested ones, are sent unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace import StructuredDataset
from headrace.convert.packing import pack, unpack
from headrace.loader._feed import pack_dicts

NARROW = torch.float8_e4m3fn


def with_narrow(batch: dict[str, Any]) -> dict[str, Any]:
    return {"narrow": batch["x"].to(NARROW), "x": batch["x"]}


def with_nested(batch: dict[str, Any]) -> dict[str, Any]:
    return {"nested": torch.nested.nested_tensor([batch["x"][:3], batch["x"][:5]]), **batch}


@pytest.mark.parametrize("dtype", [NARROW, torch.float8_e5m2, torch.bfloat16])
def test_types_that_numpy_does_not_know(dtype: torch.dtype) -> None:
    batches = [{"a": torch.arange(4).to(dtype), "b": torch.arange(4)} for _ in range(2)]
    assert pack_dicts(batches) is None
    arrived = unpack(*pack(batches))
    assert [batch["a"].dtype for batch in arrived] == [dtype] * 2
    assert [batch["a"].float().tolist() for batch in arrived] == [[0, 1, 2, 3]] * 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("transform", [with_narrow, with_nested])
def test_they_come_from_workers(tmp_path: Path, transform: Any) -> None:
    pq.write_table(pa.table({"x": np.arange(40, dtype=np.float32)}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, num_workers=1, batch_size=10, transform=transform
    )
    starts = []
    for batch in loader:
        expected = transform({"x": batch["x"]})
        starts.append(int(batch["x"][0]))
        if transform is with_narrow:
            assert torch.equal(batch["narrow"].float(), expected["narrow"].float())
        else:
            parts = zip(batch["nested"].unbind(), expected["nested"].unbind(), strict=True)
            assert all(torch.equal(one, other) for one, other in parts)
    assert starts == [0, 10, 20, 30]
