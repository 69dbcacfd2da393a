"""Which memory is shared with Arrow and which is copied. Writing to a batch is always safe."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace.convert import Converter

SHARED = [
    pa.array(np.arange(10, dtype="f4")),
    pa.array(range(10), pa.int64()),
    pa.array(range(10), pa.uint64()),
    pa.array(range(10), pa.timestamp("us")),
    pa.array([[i, i] for i in range(10)], pa.list_(pa.float32(), 2)),
    pa.array([[[i], [i]] for i in range(10)], pa.list_(pa.list_(pa.int16(), 1), 2)),
    pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [1, 2], permutation=[1, 0]),
        pa.array([[i, i] for i in range(10)], pa.list_(pa.float32(), 2)),
    ),
]


def _first(array: pa.Array, fmt: str = "torch") -> Any:
    table = pa.table({"c": array})
    return next(Converter(table.schema, fmt).convert(table).batches(len(array)))["c"]


def _values_address(array: pa.Array) -> int:
    start, stride = array.offset, 1
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    while pa.types.is_fixed_size_list(array.type):
        stride *= array.type.list_size
        array = array.values
    return int(array.buffers()[1].address + start * stride * array.type.bit_width // 8)


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("array", SHARED, ids=lambda a: str(a.type)[:40])
def test_values_are_not_copied(array: pa.Array, start: int) -> None:
    array = array[start:]
    assert _first(array).data_ptr() == _values_address(array)
    assert _first(array, "numpy").ctypes.data == _values_address(array)


def test_the_memory_outlives_the_table() -> None:
    tensor = _first(pa.array(np.arange(100_000)))
    gc.collect()
    assert tensor.sum().item() == 99_999 * 100_000 // 2


def test_batches_and_slices_are_views() -> None:
    table = pa.table({"c": pa.array(range(10))})
    block = Converter(table.schema).convert(table)
    second = list(block.slice(2, 8).batches(3))[1]["c"]
    assert second.data_ptr() == table["c"].chunk(0).buffers()[1].address + 5 * 8


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
def test_a_read_only_map_is_copied(tmp_path: Path, fmt: str) -> None:
    path = str(tmp_path / "x.arrow")
    table = pa.table({"c": range(1000)})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pa.memory_map(path) as source:
        mapped = pa.ipc.open_file(source).read_all()
        for batch in Converter(mapped.schema, fmt).convert(mapped).batches(100):
            batch["c"][:] = 7
        assert mapped["c"].to_pylist() == list(range(1000))


def test_ipc_read_into_memory_is_not_copied(tmp_path: Path) -> None:
    path = str(tmp_path / "x.arrow")
    table = pa.table({"c": range(1000)})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(path) as source:
        array = pa.ipc.open_file(source).get_batch(0)["c"]
    assert _first(array).data_ptr() == _values_address(array)


def test_immutable_python_memory_is_copied() -> None:
    data = np.arange(4).tobytes()
    array = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(data)])
    _first(array)[:] = -1
    assert data == np.arange(4).tobytes()


def test_misaligned_memory_is_copied() -> None:
    memory = np.zeros(33, np.uint8)
    memory[1:] = np.arange(4).view(np.uint8)
    array = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(memory)[1:]])
    tensor = _first(array)
    assert tensor.tolist() == [0, 1, 2, 3]
    assert tensor.data_ptr() % 8 == 0


@pytest.mark.parametrize("nulls", [None, "mask"])
@pytest.mark.parametrize("fmt", ["torch", "numpy"])
def test_every_leaf_can_be_written(fmt: str, nulls: str | None) -> None:
    table = pa.table(
        {
            "b": [True, False],
            "f": [1.0, None],
            "i": [1, 2],
            "u": pa.array([1, 2], pa.uint16()),
            "d": pa.array([1, 2]).dictionary_encode(),
            "z": pa.array([[np.float16(1)], [np.float16(2)]], pa.list_(pa.float16(), 1)),
            "x": pa.array(["1.5", "2.5"]).cast(pa.decimal128(3, 1)),
            "r": [[1], [2, 3]],
        }
    )
    block = Converter(table.schema, fmt, nulls=nulls, ragged="pad").convert(table)
    for batch in block.batches(1):
        for values in batch.values():
            values[:] = 1
            assert (values == 1).all()


def test_taking_with_read_only_rows() -> None:
    table = pa.table({"a": range(5)})
    rows = np.array([4, 1])
    rows.flags.writeable = False
    (batch,) = Converter(table.schema).convert(table).take(rows).batches(5)
    assert torch.equal(batch["a"], torch.tensor([4, 1]))
