"""Lists of any length of numbers, in each output form."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from arrow_versions import HAS_VIEWS

from headrace.convert import Block, Converter, concat
from headrace.errors import ConversionError, OptionError, SchemaError

ROWS = [[1, 2**53 + 1], [], [4, 5, 6], [7]]
LIST_TYPES = [
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
    *([pa.list_view(pa.int64()), pa.large_list_view(pa.int64())] if HAS_VIEWS else []),
    pa.list_(pa.dictionary(pa.int8(), pa.int64())),
]


def _block(array: pa.Array, fmt: str = "torch", **options: Any) -> Block:
    table = pa.table({"c": array})
    return Converter(table.schema, fmt, **options).convert(table)


def _sliced(type_: pa.DataType) -> pa.Array:
    return pa.array([[9, 9, 9], *ROWS, [8]], type_)[1:5]


@pytest.mark.parametrize("type_", LIST_TYPES, ids=str)
def test_list(type_: pa.DataType) -> None:
    block = _block(_sliced(type_))
    first, second = (batch["c"] for batch in block.batches(3))
    assert isinstance(first, list)
    assert [row.tolist() for row in first] == ROWS[:3]
    assert [row.tolist() for row in second] == ROWS[3:]
    assert {row.dtype for row in first} == {torch.int64}


@pytest.mark.parametrize("type_", LIST_TYPES, ids=str)
def test_list_in_numpy(type_: pa.DataType) -> None:
    (batch,) = _block(_sliced(type_), "numpy").batches(9)
    assert batch["c"].dtype == object
    assert [row.tolist() for row in batch["c"]] == ROWS


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
@pytest.mark.parametrize("type_", LIST_TYPES, ids=str)
def test_pad(type_: pa.DataType, fmt: str) -> None:
    first, second = _block(_sliced(type_), fmt, ragged="pad").batches(3)
    assert list(first) == ["c", "c_length"]
    assert first["c"].tolist() == [[1, 2**53 + 1, 0], [0, 0, 0], [4, 5, 6]]
    assert first["c_length"].tolist() == [2, 0, 3]
    assert second["c"].tolist() == [[7]]


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
@pytest.mark.parametrize("type_", LIST_TYPES, ids=str)
def test_offsets(type_: pa.DataType, fmt: str) -> None:
    first, second = (b["c"] for b in _block(_sliced(type_), fmt, ragged="offsets").batches(2))
    assert first["values"].tolist() == [1, 2**53 + 1]
    assert first["offsets"].tolist() == [0, 2, 2]
    assert second["values"].tolist() == [4, 5, 6, 7]
    assert second["offsets"].tolist() == [0, 3, 4]


def test_nested() -> None:
    (batch,) = _block(_sliced(pa.list_(pa.int64())), ragged="nested").batches(9)
    assert batch["c"].is_nested
    assert batch["c"].layout == torch.jagged
    assert [row.tolist() for row in batch["c"].unbind()] == ROWS


@pytest.mark.parametrize("form", ["list", "pad", "offsets", "nested"])
def test_every_form_after_take_slice_and_concat(form: str) -> None:
    block = _block(_sliced(pa.list_(pa.int64())), ragged=form)
    permuted = block.take(np.array([3, 0, 2, 0]))
    mixed = concat([permuted.slice(1, 3), block.slice(1, 2), block.slice(0, 0)])
    expected = [ROWS[0], ROWS[2], ROWS[0], ROWS[1], ROWS[2]]
    assert [row for batch in mixed.batches(2) for row in _rows(batch, form)] == expected
    assert mixed.num_rows == 5


def _rows(batch: dict[str, Any], form: str) -> list[list[int]]:
    column = batch["c"]
    if form == "pad":
        lengths = batch["c_length"].tolist()
        return [row[:n].tolist() for row, n in zip(column, lengths, strict=True)]
    if form == "offsets":
        edges = column["offsets"].tolist()
        return [column["values"][a:b].tolist() for a, b in pairwise(edges)]
    return [row.tolist() for row in (column.unbind() if form == "nested" else column)]


def test_joining_small_slices_does_not_keep_what_they_were_cut_from() -> None:
    block = _block(pa.array([list(range(100))] * 100))
    assert block.slice(0, 1).nbytes < 1000
    joined = concat([block.slice(0, 1), block.slice(5, 1)])
    (batch,) = joined.batches(2)
    assert batch["c"][0].untyped_storage().nbytes() == 2 * 100 * 8


def test_elements_may_have_a_shape() -> None:
    rows = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]
    array = pa.array(rows, pa.list_(pa.list_(pa.float32(), 2)))
    (batch,) = _block(array).batches(9)
    assert [row.tolist() for row in batch["c"]] == rows
    (padded,) = _block(array, ragged="pad").batches(9)
    assert padded["c"].shape == (3, 2, 2)
    assert padded["c"][2].tolist() == rows[2]


def test_null_elements() -> None:
    floats = _block(pa.array([[1.0, None], [None]]))
    (batch,) = floats.batches(2)
    assert math.isnan(batch["c"][0][1])
    assert math.isnan(batch["c"][1][0])
    whole = pa.array([[1, None], [None]])
    with pytest.raises(ConversionError, match=r"'c' \(int64\) holds 2 null values in 2 rows"):
        _block(whole)
    (filled,) = _block(whole, nulls={"c": -1}).batches(2)
    assert [row.tolist() for row in filled["c"]] == [[1, -1], [-1]]


@pytest.mark.parametrize("fill", [None, [], 0])
def test_null_rows(fill: Any) -> None:
    array = pa.array([[1], None, [2, 3]])
    with pytest.raises(ConversionError, match=r"'c' \(list.*1 null values in 3 rows.*'c': \[\]"):
        _block(array)
    (batch,) = _block(array, nulls={"c": fill}).batches(3)
    assert [row.tolist() for row in batch["c"]] == [[1], [], [2, 3]]


@pytest.mark.parametrize("form", ["list", "pad"])
def test_masks_mark_rows(form: str) -> None:
    (batch,) = _block(pa.array([[1], None, []]), nulls="mask", ragged=form).batches(3)
    assert list(batch) == (["c", "c_mask"] if form == "list" else ["c", "c_length", "c_mask"])
    assert batch["c_mask"].tolist() == [False, True, False]
    assert [len(row) for row in _rows(batch, form)] == [1, 0, 0]


def test_values_hidden_by_null_rows_do_not_show() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5]), pa.array([1, 2, None, 9, 3]), mask=pa.array([False, True, False])
    )
    (batch,) = _block(hidden, nulls={"c": []}, ragged="offsets").batches(3)
    assert batch["c"]["values"].tolist() == [1, 2, 3]
    assert batch["c"]["offsets"].tolist() == [0, 2, 2, 3]


def test_a_batch_of_empty_lists() -> None:
    (batch,) = _block(pa.array([[], []], pa.list_(pa.float32())), ragged="pad").batches(2)
    assert batch["c"].shape == (2, 0)
    assert batch["c"].dtype == torch.float32


def test_lists_of_type_null_are_empty_floats() -> None:
    (batch,) = _block(pa.array([[], []])).batches(2)
    assert [row.dtype for row in batch["c"]] == [torch.float64] * 2


def test_options() -> None:
    schema = pa.schema({"c": pa.list_(pa.int64()), "c_length": pa.int64()})
    with pytest.raises(SchemaError, match="'c' gets a companion 'c_length'"):
        Converter(schema, ragged="pad")
    with pytest.raises(OptionError, match="numpy has list, pad, offsets"):
        Converter(schema, "numpy", ragged="nested")
    with pytest.raises(OptionError, match="ragged must be one of list, pad, offsets, nested"):
        Converter(schema, ragged="jagged")
