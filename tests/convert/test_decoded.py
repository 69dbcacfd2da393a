"""Columns of arrays, JSON and Python objects, for which Arrow has no types."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sample_tars import npy

from headrace.convert import Block, Converter, concat
from headrace.convert.columns import StructColumn
from headrace.convert.kinds import Kind, npy_array, npy_header
from headrace.convert.packing import pack, unpack
from headrace.errors import ConversionError, OptionError

SAME = [np.full((2, 3), i, np.float32) for i in range(5)]
SHAPES = [np.arange(3 * (i + 1), dtype=np.uint8).reshape(3, -1) for i in range(5)]


def arrays_table(arrays: list[np.ndarray | None]) -> pa.Table:
    column = pa.array([None if one is None else npy(one) for one in arrays], pa.large_binary())
    return pa.table({"a": column})


def block_of(table: pa.Table, output_format: str = "torch", **options: Any) -> Block:
    options.setdefault("kinds", {"a": Kind.NPY})
    return Converter(table.schema, output_format, **options).convert(table)


def test_arrays_of_one_shape_are_stacked() -> None:
    (batch,) = block_of(arrays_table(list(SAME))).batches(5)
    assert batch["a"].dtype == torch.float32
    assert batch["a"].shape == (5, 2, 3)
    assert batch["a"][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    batch["a"] += 1  # users may write to their batches
    (numbers,) = block_of(arrays_table(list(SAME)), "numpy").batches(5)
    assert np.array_equal(numbers["a"], np.stack(SAME))


def test_others_are_a_list() -> None:
    (batch,) = block_of(arrays_table(list(SHAPES))).batches(5)
    assert isinstance(batch["a"], list)
    assert all(
        np.array_equal(one.numpy(), made) for one, made in zip(batch["a"], SHAPES, strict=True)
    )
    (numbers,) = block_of(arrays_table(list(SHAPES)), "numpy").batches(5)
    assert numbers["a"].dtype == object
    (values,) = block_of(arrays_table(list(SHAPES)), "dict").batches(5)
    assert isinstance(values["a"], list)
    assert np.array_equal(values["a"][4], SHAPES[4])


def test_rows_move_and_join_as_those_of_other_columns() -> None:
    block = block_of(arrays_table(list(SHAPES)))
    joined = concat([block, block.slice(1, 2)])
    assert isinstance(joined, StructColumn)
    moved = joined.take(np.array([6, 0, 4]))
    (batch,) = moved.batches(3)
    assert [one.shape[1] for one in batch["a"]] == [3, 1, 5]
    assert type(block).to_send([block]) is None  # arrays cross in batches
    ((first, second), third) = [batch["a"] for batch in block.slice(2, 3).batches(2)]
    assert (first.shape[1], second.shape[1]) == (3, 4)
    assert third.shape == (1, 3, 5)


@pytest.mark.parametrize("dtype", ["int8", ">i4", "float64", "bool", "uint16", "complex64"])
def test_types_of_numbers(dtype: str) -> None:
    odd = np.zeros(3, np.uint8)  # makes the bytes after it unaligned
    made = np.arange(6).reshape(2, 3).astype(dtype)
    (batch,) = block_of(arrays_table([odd, np.asfortranarray(made), made])).batches(3)
    assert batch["a"][1].tolist() == batch["a"][2].tolist() == made.tolist()
    assert all(one.data_ptr() % one.element_size() == 0 for one in batch["a"])
    if dtype == "uint16":
        assert batch["a"][1].dtype == torch.int32


def test_numbers_that_torch_has_no_type_for() -> None:
    table = arrays_table([np.arange(3, dtype=np.longdouble)])
    (batch,) = block_of(table).batches(1)
    assert batch["a"][0].dtype == np.longdouble
    late = b"{'shape': (1,), 'fortran_order': False, 'descr': '<u8'}"  # not in numpy's order
    stored = np.lib.format.magic(1, 0) + len(late).to_bytes(2, "little") + late + b"\xff" * 8
    table = pa.table({"a": pa.array([stored], pa.large_binary())})
    with pytest.raises(ConversionError, match="18446744073709551615"):
        list(block_of(table).batches(1))


def test_nulls_are_none_where_the_user_says_so() -> None:
    table = arrays_table([SAME[0], None, SAME[1]])
    with pytest.raises(ConversionError, match=r"'a'.*1 null"):
        block_of(table)
    (batch,) = block_of(table, nulls={"a": None}).batches(3)
    assert batch["a"][1] is None
    assert batch["a"][2].tolist() == SAME[1].tolist()
    (batch,) = block_of(table, nulls="mask").batches(3)
    assert batch["a_mask"].tolist() == [False, True, False]
    with pytest.raises(OptionError, match="None only"):
        block_of(table, nulls={"a": 0})


@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict"])
def test_json_and_objects(output_format: str) -> None:
    objects: list[Any] = [{"a": 1, "b": [1, 2]}, [3], "text"]
    texts = pa.array([json.dumps(one) for one in objects], pa.large_string())
    kept = pa.array([pickle.dumps(one) for one in objects], pa.large_binary())
    kinds = {"json": Kind.JSON, "object": Kind.PICKLE}
    block = block_of(pa.table({"json": texts, "object": kept}), output_format, kinds=kinds)
    (batch,) = block.batches(3)
    assert list(batch["json"]) == list(batch["object"]) == objects
    if output_format == "torch":
        sent = type(block).to_send([block])
        assert sent is not None
        (arrived,) = unpack(*pack(sent)).batches(3)
        assert arrived["json"] == objects


def test_arrow_has_what_is_stored() -> None:
    table = arrays_table(list(SAME))
    (batch,) = block_of(table, "arrow").batches(5)
    assert batch["a"][2].as_py() == npy(SAME[2])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no .npy"),
        (b"\x93NUMPY", "no .npy"),
        (b"not an array at all", "no .npy"),
        (npy(np.zeros(100))[:-1], "too few"),
        (npy(np.zeros(100))[:40], "."),
        (npy(np.array([object()], object)), "Python objects"),
    ],
    ids=["empty", "magic", "text", "cut", "cut header", "objects"],
)
def test_what_is_no_array(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        npy_array(np.frombuffer(data, np.uint8))


def test_headers_are_those_of_numpy() -> None:
    made = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    assert npy_header(made.shape, made.dtype) + made.tobytes() == npy(made)
    empty = np.empty((0, 4), np.float32)
    assert npy_array(np.frombuffer(npy(empty), np.uint8)).shape == (0, 4)
    second = (
        np.lib.format.magic(2, 0)
        + b"\x76\0\0\0"
        + b"{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }"
    )
    padded = second + b" " * (12 + 0x76 - len(second)) + b"\1\0\2\0"
    assert npy_array(np.frombuffer(padded, np.uint8)).tolist() == [1, 2]
