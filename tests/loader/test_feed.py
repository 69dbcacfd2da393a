"""Values that are sent between processes arrive unchanged, in one shared buffer."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace import StructuredDataset
from headrace.convert import Converter, concat
from headrace.convert.packing import Batch, pack, unpack
from headrace.convert.shared import SharedBuffer
from headrace.loader._feed import pack_blocks, pack_dicts


def tensors(rows: int, start: int = 0) -> dict[str, Any]:
    ids = torch.arange(start, start + rows)
    return {"id": ids, "x": ids.float().reshape(-1, 1) / 2, "on": ids % 2 == 0}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        if one.dtype == object:
            return other.dtype == object and same(one.tolist(), other.tolist())
        return one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def test_alike_dicts_of_tensors_go_column_by_column() -> None:
    batches = [tensors(4), tensors(4, 4), tensors(1, 8), tensors(0)]
    packed = pack_dicts(batches)
    assert packed is not None
    assert isinstance(packed[0], SharedBuffer)
    arrived = unpack(*packed)
    assert len(arrived) == 4
    assert all(same(a, b) for a, b in zip(arrived, batches, strict=True))
    arrived[0]["id"].zero_()
    assert arrived[1]["id"].tolist() == [4, 5, 6, 7], "the batches share rows"


@pytest.mark.parametrize(
    "batches",
    [
        [tensors(2), {"id": torch.arange(2)}],
        [{"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int64)}],
        [{"a": torch.zeros(2, 3)}, {"a": torch.zeros(2, 4)}],
        [{"a": torch.tensor(1.0)}],
        [{"a": [1, 2]}],
        [{"a": torch.zeros(2, dtype=torch.bfloat16)}],
        [{"a": torch.zeros(2, requires_grad=True)}],
        [{}],
        [torch.zeros(2)],
    ],
)
def test_all_else_goes_pickled(batches: list[Any]) -> None:
    assert pack_dicts(batches) is None


@pytest.mark.parametrize(
    "value",
    [
        tensors(3),
        {"nested": {"t": torch.zeros(2, 3, dtype=torch.bfloat16)}, "l": [1, "x", None]},
        {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "bool": torch.tensor([True])},
        {"strided": torch.arange(12).reshape(3, 4).t(), "n": np.arange(5)[::2]},
        {"objects": np.array(["a", None], object)},
        (torch.arange(3), "text"),
    ],
)
def test_a_packed_value_arrives(value: Any) -> None:
    buffer, layout = pack(value)
    assert isinstance(buffer, SharedBuffer)
    arrived = unpack(buffer, layout)
    if isinstance(value, dict):
        flat = {**value, **value.get("nested", {})}
        got = {**arrived, **arrived.get("nested", {})}
        flat.pop("nested", None), flat.pop("objects", None)
        assert all(same(flat[k], got[k]) for k in flat)
    else:
        assert torch.equal(arrived[0], value[0])
        assert arrived[1] == value[1]


def test_a_slice_of_a_record_batch_does_not_take_the_whole_along() -> None:
    whole = pa.record_batch({"a": np.arange(100_000)})
    buffer, layout = pack(whole.slice(10, 5))
    assert buffer.memory.nbytes < 5_000
    assert len(layout) < 10
    assert unpack(buffer, layout).equals(whole.slice(10, 5))


def test_a_batch_of_a_hand_made_loader_arrives_as_a_plain_dict() -> None:
    from multiprocessing.reduction import ForkingPickler

    sent = ForkingPickler.dumps(Batch(tensors(3)))
    arrived = pickle.loads(sent)
    assert type(arrived) is dict
    assert same(arrived, tensors(3))


def strings_and_lists(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": range(rows),
            "text": [None if i % 5 == 0 else "ä" * (i % 9) for i in range(rows)],
            "data": [bytes([i % 256]) * (i % 7) for i in range(rows)],
            "items": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int32())),
            "inner": [{"name": f"n{i}", "size": i} for i in range(rows)],
        }
    )


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_blocks_of_strings_and_lists_arrive_as_they_were(output_format: str) -> None:
    table = strings_and_lists(1_000)
    nulls = {"text": "?"} if output_format in ("torch", "numpy") else None
    block = Converter(table.schema, output_format, nulls=nulls).convert(table)
    cut = block.slice(333, 40)
    packed = pack_blocks([cut, block.slice(0, 0), block.slice(990, 10)])
    if output_format == "dict":
        assert packed is None  # the worker makes Python values
        return
    assert packed is not None
    assert packed[0].memory.nbytes < 20_000  # only the rows of the slice
    arrived = list(unpack(*packed).batches(25))
    expected = list(concat([cut, block.slice(990, 10)]).batches(25))
    assert len(arrived) == len(expected) == 2
    assert all(same(one, other) for one, other in zip(arrived, expected, strict=True))


def test_lists_of_strings_are_made_where_there_are_more_cores() -> None:
    table = pa.table({"words": [["a", "b"], []]})
    assert pack_blocks([Converter(table.schema).convert(table)]) is None


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
