"""Nulls: NaN for floats, otherwise an error that names the remedies, and each remedy."""

import math
import pickle
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_versions import HAS_VIEWS

from headrace.convert import Converter
from headrace.errors import ConversionError, OptionError, SchemaError

FLOATS = [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal256(40, 1)]
WHOLE = [
    pa.bool_(),
    pa.int8(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("us"),
    pa.duration("ms"),
    pa.dictionary(pa.int8(), pa.int32()),
]
OBJECTS = [
    (pa.string(), ["a", None, "b"], ""),
    (pa.large_string(), ["a", None, "b"], ""),
    *([(pa.string_view(), ["a", None, "b"], "")] if HAS_VIEWS else []),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b"], ""),
    (pa.binary(), [b"a", None, b"b"], b""),
    *([(pa.binary_view(), [b"a", None, b"b"], b"")] if HAS_VIEWS else []),
    (pa.binary(1), [b"a", None, b"b"], b""),
    (pa.list_(pa.string()), [["a"], None, ["b"]], []),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None, []], []),
]


def _one(values: Any, type_: pa.DataType | None = None, fmt: str = "torch", **options: Any) -> Any:
    """Return the only batch of a table with a column c, which is a slice of a longer column."""
    array = values if isinstance(values, pa.Array) else pa.array(values, type_)
    padded = pa.concat_arrays([array[:1], array])[1:]
    table = pa.table({"c": padded})
    (batch,) = Converter(table.schema, fmt, **options).convert(table).batches(len(array))
    return batch


def _with_null(type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return _with_null(type_.value_type).dictionary_encode().cast(type_)
    numbers = pa.array([1, None, 0], pa.int32() if type_.bit_width <= 32 else pa.int64())
    return numbers.cast(type_)


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
@pytest.mark.parametrize("type_", FLOATS, ids=str)
def test_floats_become_nan(type_: pa.DataType, fmt: str) -> None:
    values = [np.float16(1), None, np.float16(0)] if type_ == pa.float16() else [1, None, 0]
    batch = _one(
        [Decimal(v) if pa.types.is_decimal(type_) and v is not None else v for v in values],
        type_,
        fmt,
    )
    assert list(batch) == ["c"]
    assert batch["c"][[0, 2]].tolist() == [1, 0]
    assert math.isnan(batch["c"][1])


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
@pytest.mark.parametrize("type_", WHOLE, ids=str)
def test_others_are_an_error_with_its_cures(type_: pa.DataType, fmt: str) -> None:
    with pytest.raises(ConversionError) as caught:
        _one(_with_null(type_), fmt=fmt)
    message = str(caught.value)
    assert "column 'c'" in message
    assert "1 null values in 3 rows" in message
    for cure in ("nulls={'c': ", '"mask"', "is_valid", "columns="):
        assert cure in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
@pytest.mark.parametrize("type_", WHOLE, ids=str)
def test_masks_of_numbers(type_: pa.DataType, fmt: str) -> None:
    batch = _one(_with_null(type_), fmt=fmt, nulls="mask")
    bare = _one(_with_null(type_).drop_null(), fmt=fmt)
    assert list(batch) == ["c", "c_mask"]
    assert batch["c_mask"].tolist() == [False, True, False]
    assert batch["c"].dtype == bare["c"].dtype
    assert batch["c"][[0, 2]].tolist() == bare["c"].tolist()
    assert batch["c"][[1]].tolist() == bare["c"][[1]].tolist()  # the zero of this type


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
def test_masks_are_there_without_nulls(fmt: str) -> None:
    batch = _one([1, 2], pa.int64(), fmt, nulls={"c": "mask"})
    assert batch["c_mask"].tolist() == [False, False]


def test_columns_that_are_never_null_get_no_mask() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    table = pa.table([pa.array([1]), pa.array([None], pa.int64())], schema=schema)
    (batch,) = Converter(schema, nulls="mask").convert(table).batches(1)
    assert list(batch) == ["a", "b", "b_mask"]


@pytest.mark.parametrize(
    ("type_", "fill", "stored"),
    [
        (pa.bool_(), True, True),
        (pa.int64(), 2**53 + 1, 2**53 + 1),
        (pa.int8(), np.int64(-128), -128),
        (pa.uint16(), -1, -1),
        (pa.uint64(), -1, -1),
        (pa.date32(), date(1970, 1, 3), 2),
        (pa.timestamp("us"), 5, 5),
        (pa.timestamp("ms"), datetime(1970, 1, 2), 86_400_000),
        (pa.duration("ms"), timedelta(seconds=2), 2000),
        (pa.dictionary(pa.int8(), pa.int32()), 9, 9),
    ],
    ids=str,
)
def test_fill_values(type_: pa.DataType, fill: Any, stored: Any) -> None:
    batch = _one(_with_null(type_), nulls={"c": fill})
    assert list(batch) == ["c"]
    assert batch["c"][1].item() == stored


def test_fill_values_of_moments_in_numpy() -> None:
    batch = _one(_with_null(pa.date32()), fmt="numpy", nulls={"c": date(1970, 1, 3)})
    assert batch["c"][1] == np.datetime64("1970-01-03")
    batch = _one(_with_null(pa.duration("ms")), fmt="numpy", nulls={"c": 3})
    assert batch["c"][1] == np.timedelta64(3, "ms")


@pytest.mark.parametrize(
    ("type_", "fill"),
    [
        (pa.int8(), 128),
        (pa.int64(), 1.5),
        (pa.int64(), "x"),
        (pa.int64(), None),
        (pa.int64(), True),
        (pa.uint8(), -1),
        (pa.bool_(), 2),
        (pa.float32(), "nan"),
        (pa.timestamp("us"), "yesterday"),
        (pa.string(), 0),
        (pa.binary(), ""),
        (pa.list_(pa.string()), "x"),
        (pa.list_(pa.int64()), "x"),
        (pa.list_(pa.int64()), [1]),
        (pa.struct({"x": pa.int64()}), 0),
    ],
    ids=str,
)
def test_fill_values_that_do_not_fit(type_: pa.DataType, fill: Any) -> None:
    with pytest.raises(OptionError, match=r"nulls=\{'c': "):
        Converter(pa.schema({"c": type_}), nulls={"c": fill})


@pytest.mark.parametrize(("type_", "values", "empty"), OBJECTS, ids=lambda v: str(v)[:30])
def test_objects(type_: pa.DataType, values: list[Any], empty: Any) -> None:
    array = pa.array(values, type_)
    with pytest.raises(ConversionError, match=r"'c'.*1 null values in 3 rows"):
        _one(array)
    assert _one(array, nulls={"c": None})["c"] == values
    masked = _one(array, nulls="mask")
    assert masked["c"] == [values[0], empty, values[2]]
    assert masked["c_mask"].tolist() == [False, True, False]
    in_numpy = _one(array, fmt="numpy", nulls={"c": None})
    assert in_numpy["c"].tolist() == values


def test_a_string_fill() -> None:
    assert _one(["a", None], nulls={"c": "?"})["c"] == ["a", "?"]


def test_filled_lists_are_not_shared() -> None:
    rows = _one(pa.array([["a"], None, None], pa.list_(pa.string())), nulls={"c": []})["c"]
    rows[1].append("x")
    assert rows == [["a"], ["x"], []]


def test_fixed_size_lists_of_floats() -> None:
    values = _one(pa.array([[1, None], None, [3, 4]], pa.list_(pa.float32(), 2)))["c"]
    assert values.isnan().tolist() == [[False, True], [True, True], [False, False]]


def test_fixed_size_lists_of_integers() -> None:
    array = pa.array([[1, None], None, [3, 4]], pa.list_(pa.int32(), 2))
    with pytest.raises(ConversionError, match="3 null values in 3 rows"):
        _one(array)
    assert _one(array, nulls={"c": -1})["c"].tolist() == [[1, -1], [-1, -1], [3, 4]]
    masked = _one(array, nulls="mask")
    assert masked["c"].tolist() == [[1, 0], [0, 0], [3, 4]]
    assert masked["c_mask"].tolist() == [[False, True], [True, True], [False, False]]


def test_values_hidden_by_null_lists_do_not_show() -> None:
    hidden = pa.FixedSizeListArray.from_arrays(
        pa.array([1, 2, None, 9]), 2, mask=pa.array([False, True])
    )
    assert _one(hidden, nulls={"c": 0})["c"].tolist() == [[1, 2], [0, 0]]


def test_null_structs_make_their_fields_null() -> None:
    rows = [{"x": 1, "y": 0.5, "s": "a"}, None, {"x": None, "y": None, "s": None}]
    fields = [("x", pa.int64()), ("y", pa.float64()), ("s", pa.string())]
    array = pa.array(rows, pa.struct(fields))
    with pytest.raises(ConversionError, match=r"'c\.x'.*2 null values in 3 rows.*'c\.x': 0"):
        _one(array)
    batch = _one(array, nulls={"c.x": -1, "c.s": None})["c"]
    assert batch["x"].tolist() == [1, -1, -1]
    assert batch["y"].isnan().tolist() == [False, True, True]
    assert batch["s"] == ["a", None, None]


@pytest.mark.parametrize("nulls", ["mask", {"c": "mask"}])
def test_masks_of_structs(nulls: Any) -> None:
    batch = _one(pa.array([{"x": 1}, None, {"x": None}]), nulls=nulls)
    assert batch["c_mask"].tolist() == [False, True, False]
    assert batch["c"]["x"].tolist() == [1, 0, 0]
    assert batch["c"]["x_mask"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    "child",
    [
        pa.array([1, 2, 3]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array([1, 2, 3])),
        *([pa.array([1, 2, 3], pa.int8()).cast(pa.bool8())] if HAS_VIEWS else []),
    ],
    ids=lambda a: str(a.type),
)
def test_null_structs_reach_encoded_fields(child: pa.Array) -> None:
    array = pa.StructArray.from_arrays([child], ["x"], mask=pa.array([False, True, False]))
    assert _one(array, nulls={"c.x": -1})["c"]["x"].tolist() == [1, -1, 3]


def test_names_are_checked() -> None:
    schema = pa.schema({"price": pa.int64(), "s": pa.struct({"size": pa.int64()})})
    with pytest.raises(SchemaError, match=r"'prise'.*'price'"):
        Converter(schema, nulls={"prise": 0})
    with pytest.raises(SchemaError, match=r"'s\.sise'.*'s\.size'"):
        Converter(schema, nulls={"s.sise": 0})
    twice = pa.schema({"s": pa.struct({"x": pa.int64()}), "s.x": pa.int64()})
    with pytest.raises(SchemaError, match=r"both a column and a field"):
        Converter(twice, nulls={"s.x": 0})


@pytest.mark.parametrize("nulls", ["masks", 0, ["c"], True])
def test_the_option_is_checked(nulls: Any) -> None:
    with pytest.raises(OptionError, match="nulls must be"):
        Converter(pa.schema({"c": pa.int64()}), nulls=nulls)


def test_a_companion_must_not_hide_a_column() -> None:
    schema = pa.schema({"c": pa.int64(), "c_mask": pa.int64()})
    with pytest.raises(SchemaError, match=r"'c' gets a companion 'c_mask'"):
        Converter(schema, nulls={"c": "mask"})
    inside = pa.schema({"s": pa.struct(schema)})
    with pytest.raises(SchemaError, match=r"'s\.c' gets a companion 'c_mask'"):
        Converter(inside, nulls="mask")


def test_codes_hidden_by_null_structs_and_lists_may_point_nowhere() -> None:
    codes = pa.array([0, 7, 1], pa.int8())
    wild = pa.DictionaryArray.from_arrays(codes, pa.array([5, 6]), safe=False)
    hidden = pa.array([False, True, False])
    struct = pa.StructArray.from_arrays([wild], ["x"], mask=hidden)
    assert _one(struct, nulls={"c.x": -1})["c"]["x"].tolist() == [5, -1, 6]
    table = pa.table({"c": pa.FixedSizeListArray.from_arrays(wild, 1, mask=hidden)})
    (batch,) = Converter(table.schema, nulls={"c": -1}).convert(table).batches(3)
    assert batch["c"].tolist() == [[5], [-1], [6]]


def test_filling_leaves_the_table_and_other_blocks_alone() -> None:
    table = pa.table({"c": [1, None, 3]})
    (first,) = Converter(table.schema, nulls={"c": 7}).convert(table).batches(3)
    (second,) = Converter(table.schema, nulls={"c": 8}).convert(table).batches(3)
    assert first["c"].tolist() == [1, 7, 3]
    assert second["c"].tolist() == [1, 8, 3]
