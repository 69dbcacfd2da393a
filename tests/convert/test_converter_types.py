"""Every Arrow type, one by one, to torch and to numpy, in every memory layout."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from arrow_versions import HAS_VIEWS

from headrace.convert import Block, Converter, concat
from headrace.errors import ConversionError, SchemaError


@dataclass(frozen=True)
class Case:
    """Four values of a type, and the values they are converted to."""

    type_: pa.DataType
    values: list[Any]
    torch_dtype: torch.dtype
    numbers: list[Any]
    numpy_dtype: str

    def __str__(self) -> str:
        return str(self.type_)


BIG = 2**53 + 1
MOMENTS = [
    datetime(1970, 1, 1),
    datetime(1969, 12, 31),
    datetime(2024, 2, 29),
    datetime(1970, 1, 2),
]
DAYS = [0, -1, 19782, 1]
ODD = [1, -2, 3, BIG]


def _integers(type_: pa.DataType, dtype: torch.dtype, numpy_dtype: str) -> Case:
    limits = np.iinfo(numpy_dtype)
    top = min(limits.max, 2**63 - 1)
    values = [0, 1, limits.min, top]
    return Case(type_, values, dtype, values, numpy_dtype)


def _moments(type_: pa.DataType, per_day: int, numpy_dtype: str) -> Case:
    tz = getattr(type_, "tz", None)
    values = [m.replace(tzinfo=UTC) if tz else m for m in MOMENTS]
    if pa.types.is_date(type_):
        values = [m.date() for m in MOMENTS]
    return Case(type_, values, torch.int64, [d * per_day for d in DAYS], numpy_dtype)


CASES = [
    Case(pa.bool_(), [True, False, False, True], torch.bool, [True, False, False, True], "?"),
    _integers(pa.int8(), torch.int8, "i1"),
    _integers(pa.int16(), torch.int16, "i2"),
    _integers(pa.int32(), torch.int32, "i4"),
    _integers(pa.int64(), torch.int64, "i8"),
    _integers(pa.uint8(), torch.uint8, "u1"),
    _integers(pa.uint16(), torch.int32, "u2"),
    _integers(pa.uint32(), torch.int64, "u4"),
    _integers(pa.uint64(), torch.int64, "u8"),
    Case(pa.int64(), ODD, torch.int64, ODD, "i8"),
    Case(
        pa.float16(), [np.float16(v) for v in (0, 1.5, -2, 3)], torch.float16, [0, 1.5, -2, 3], "f2"
    ),
    Case(pa.float32(), [0.0, 1.5, -2.0, 3.0], torch.float32, [0, 1.5, -2, 3], "f4"),
    Case(pa.float64(), [0.1, 1.5, -2.0, 1e300], torch.float64, [0.1, 1.5, -2, 1e300], "f8"),
    *(
        Case(
            type_,
            [Decimal(v) for v in ("0.10", "-1.25", "3.00", "99.99")],
            torch.float64,
            [0.1, -1.25, 3.0, 99.99],
            "f8",
        )
        for type_ in (pa.decimal128(6, 2), pa.decimal256(15, 2))
    ),
    Case(
        pa.decimal256(50, 2),
        [Decimal(v) for v in ("0.50", "-1.25", "3.00", "99.75")],
        torch.float64,
        [0.5, -1.25, 3.0, 99.75],
        "f8",
    ),
    _moments(pa.date32(), 1, "M8[D]"),
    _moments(pa.date64(), 86_400_000, "M8[ms]"),
    _moments(pa.timestamp("s"), 86_400, "M8[s]"),
    _moments(pa.timestamp("ms"), 86_400_000, "M8[ms]"),
    _moments(pa.timestamp("us", "Europe/Berlin"), 86_400 * 10**6, "M8[us]"),
    _moments(pa.timestamp("ns"), 86_400 * 10**9, "M8[ns]"),
    *(
        Case(
            pa.duration(unit),
            [timedelta(seconds=s) for s in (0, -1, 60, 3)],
            torch.int64,
            [s * per_second for s in (0, -1, 60, 3)],
            f"m8[{unit}]",
        )
        for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
    ),
    *(
        Case(
            type_,
            [time(0), time(0, 0, 1), time(23, 59, 59), time(1)],
            torch.int64,
            [s * per_second for s in (0, 1, 86_399, 3_600)],
            "i8",
        )
        for type_, per_second in (
            (pa.time32("s"), 1),
            (pa.time32("ms"), 10**3),
            (pa.time64("us"), 10**6),
            (pa.time64("ns"), 10**9),
        )
    ),
    Case(pa.dictionary(pa.int8(), pa.int64()), ODD, torch.int64, ODD, "i8"),
    Case(pa.list_(pa.int64(), 2), [[v, 7] for v in ODD], torch.int64, [[v, 7] for v in ODD], "i8"),
    Case(
        pa.list_(pa.list_(pa.float32(), 3), 2),
        [[[v, 1, 2], [3, 4, 5]] for v in range(4)],
        torch.float32,
        [[[v, 1, 2], [3, 4, 5]] for v in range(4)],
        "f4",
    ),
    Case(pa.list_(pa.bool_(), 1), [[True], [False]] * 2, torch.bool, [[True], [False]] * 2, "?"),
    Case(pa.list_(pa.int32(), 0), [[]] * 4, torch.int32, [[]] * 4, "i4"),
    Case(
        pa.list_(pa.dictionary(pa.int8(), pa.int16()), 2),
        [[1, 2], [2, 1], [3, 3], [1, 1]],
        torch.int16,
        [[1, 2], [2, 1], [3, 3], [1, 1]],
        "i2",
    ),
]
LISTS = [
    (pa.string(), ["a", "", "ü€😀", "d"]),
    (pa.large_string(), ["a", "", "ü€😀", "d"]),
    *([(pa.string_view(), ["a", "", "a string longer than twelve bytes", "d"])] * HAS_VIEWS),
    (pa.binary(), [b"a", b"", b"\0\xff", b"d"]),
    (pa.large_binary(), [b"a", b"", b"\0\xff", b"d"]),
    *([(pa.binary_view(), [b"a", b"", b"\0\xff", b"d"])] * HAS_VIEWS),
    (pa.binary(2), [b"ab", b"cd", b"\0\xff", b"\0\0"]),
    (pa.dictionary(pa.int16(), pa.string()), ["x", "y", "x", "z"]),
    (pa.list_(pa.string()), [["a", "b"], [], ["c"], ["d"]]),
    (pa.list_(pa.list_(pa.int64())), [[[1], [2, 3]], [], [[]], [[4]]]),
    (pa.list_(pa.string(), 1), [["a"], ["b"], ["c"], ["d"]]),
    (pa.list_(pa.struct({"x": pa.int64()})), [[{"x": 1}], [], [{"x": None}], [{"x": BIG}]]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [("b", None), ("c", BIG)], [("d", 4)]]),
]
LAYOUTS = ["whole", "sliced", "chunked", "empty chunks"]


def _column(type_: pa.DataType, values: list[Any], layout: str) -> pa.ChunkedArray:
    if layout == "sliced":
        return pa.chunked_array([pa.array([*values[::-1], *values, values[0]], type_)[4:8]])
    if layout == "whole":
        return pa.chunked_array([pa.array(values, type_)])
    pieces = [pa.array(values[:1], type_), pa.array([values[2], *values[1:]], type_)[1:]]
    if layout == "empty chunks":
        pieces = [pa.array([], type_), pieces[0], pa.array([], type_), pieces[1]]
    return pa.chunked_array(pieces)


def _block(column: pa.ChunkedArray, output_format: str) -> Block:
    table = pa.table({"c": column})
    return Converter(table.schema, output_format).convert(table)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_to_torch(case: Case, layout: str) -> None:
    block = _block(_column(case.type_, case.values, layout), "torch")
    (batch,) = block.batches(10)
    assert list(batch) == ["c"]
    assert batch["c"].dtype == case.torch_dtype
    assert batch["c"].tolist() == case.numbers
    permuted = block.take(np.array([3, 0, 0]))
    assert [b["c"].tolist() for b in permuted.batches(2)] == [
        [case.numbers[3], case.numbers[0]],
        [case.numbers[0]],
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_to_numpy(case: Case, layout: str) -> None:
    (batch,) = _block(_column(case.type_, case.values, layout), "numpy").batches(10)
    dtype = np.dtype(case.numpy_dtype)
    assert batch["c"].dtype == dtype
    numbers = batch["c"].view("i8") if dtype.kind in "Mm" else batch["c"]
    assert numbers.tolist() == case.numbers


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_rows_have_the_dtype_of_many(case: Case, output_format: str) -> None:
    full = _block(_column(case.type_, case.values, "whole"), output_format)
    none = _block(pa.chunked_array([], case.type_), output_format)
    assert none.num_rows == 0
    assert list(none.batches(5)) == []
    (batch,) = concat([none, full, none]).batches(10)
    assert batch["c"].tolist() == next(full.batches(10))["c"].tolist()
    assert batch["c"].dtype == next(full.batches(10))["c"].dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("type_", "values"), LISTS, ids=lambda v: str(v)[:40])
def test_objects(type_: pa.DataType, values: list[Any], layout: str) -> None:
    column = _column(type_, values, layout)
    block = _block(column, "torch")
    assert [b["c"] for b in block.batches(3)] == [values[:3], values[3:]]
    permuted = concat([block.take(np.array([2, 2])), block.slice(1, 1)])
    assert next(permuted.batches(9))["c"] == [values[2], values[2], values[1]]
    (batch,) = _block(column, "numpy").batches(4)
    assert batch["c"].dtype == object
    assert batch["c"].shape == (4,)
    assert batch["c"].tolist() == values


def test_uint64_above_int64_is_an_error_that_names_the_column() -> None:
    with pytest.raises(ConversionError, match=r"'c' \(uint64\) holds 9223372036854775808"):
        _block(pa.chunked_array([[1, 2**63]], pa.uint64()), "torch")
    (batch,) = _block(pa.chunked_array([[1, 2**64 - 1]], pa.uint64()), "numpy").batches(2)
    assert batch["c"].tolist() == [1, 2**64 - 1]


def test_uint64_in_a_null_slot_does_not_count() -> None:
    values = pa.array(np.array([1, 2**64 - 1], "u8"), mask=np.array([False, True]))
    table = pa.table({"c": values})
    (batch,) = Converter(table.schema, nulls={"c": -1}).convert(table).batches(2)
    assert batch["c"].tolist() == [1, -1]


@pytest.mark.parametrize("permutation", [None, [0, 1], [1, 0]])
@pytest.mark.parametrize("start", [0, 1])
def test_fixed_shape_tensors(permutation: list[int] | None, start: int) -> None:
    type_ = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=permutation)
    stored = pa.array([list(range(i, i + 6)) for i in range(4)], pa.list_(pa.int32(), 6))
    array = pa.ExtensionArray.from_storage(type_, stored)[start:]
    (batch,) = _block(pa.chunked_array([array]), "torch").batches(9)
    assert batch["c"].tolist() == array.to_numpy_ndarray().tolist()
    (rows,) = _block(pa.chunked_array([array]), "numpy").take(np.array([1, 0])).batches(9)
    assert rows["c"].tolist() == array.to_numpy_ndarray()[[1, 0]].tolist()


@pytest.mark.skipif(not HAS_VIEWS, reason="there is no such type")
def test_extension_types_are_their_storage() -> None:
    values = [bytes(range(16)), bytes(16)]
    array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))
    assert next(_block(pa.chunked_array([array]), "torch").batches(2))["c"] == values


def test_run_ends_are_decoded() -> None:
    encoded = pa.RunEndEncodedArray.from_arrays([2, 5], pa.array([BIG, 3]))
    (batch,) = _block(pa.chunked_array([encoded[1:4]]), "torch").batches(9)
    assert batch["c"].tolist() == [BIG, 3, 3]


def test_dictionaries_of_several_chunks_agree() -> None:
    chunks = [pa.array(v).dictionary_encode() for v in (["a", "b"], ["b", "a"])]
    blocks = [_block(pa.chunked_array([chunk]), "torch") for chunk in chunks]
    assert next(concat(blocks).batches(9))["c"] == ["a", "b", "b", "a"]
    assert next(_block(pa.chunked_array(chunks), "torch").batches(9))["c"] == ["a", "b", "b", "a"]


def test_structs_are_dicts_at_any_depth() -> None:
    rows = [{"x": BIG, "s": {"y": 0.5, "name": "a"}}, {"x": 2, "s": {"y": 1.5, "name": "b"}}]
    column = pa.chunked_array([pa.array([rows[1], *rows])[1:]])
    block = _block(column, "torch")
    (batch,) = block.batches(2)
    assert batch["c"]["x"].tolist() == [BIG, 2]
    assert batch["c"]["s"]["y"].tolist() == [0.5, 1.5]
    assert batch["c"]["s"]["name"] == ["a", "b"]
    swapped = concat([block.take(np.array([1, 0])), block.slice(1, 1)])
    assert [b["c"]["s"]["name"] for b in swapped.batches(2)] == [["b", "a"], ["b"]]


def test_a_struct_without_fields() -> None:
    block = _block(pa.chunked_array([pa.array([{}, {}, {}], pa.struct([]))]), "torch")
    assert list(block.batches(2)) == [{"c": {}}, {"c": {}}]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize(
    "type_",
    [
        pa.month_day_nano_interval(),
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.list_(pa.month_day_nano_interval()),
        pa.struct({"in": pa.month_day_nano_interval()}),
    ],
    ids=str,
)
def test_types_without_representation(type_: pa.DataType, output_format: str) -> None:
    schema = pa.schema({"odd": type_})
    with pytest.raises(SchemaError, match=r"'odd(\.in)?' has the type .*columns=.*\"arrow\""):
        Converter(schema, output_format)
    assert Converter(schema, "arrow").schema == schema


def test_a_column_of_type_null_needs_a_remedy() -> None:
    table = pa.table({"n": pa.nulls(3)})
    with pytest.raises(SchemaError, match=r"'n' has the type null.*schema=.*nulls="):
        Converter(table.schema)
    (filled,) = Converter(table.schema, nulls={"n": 7}).convert(table).batches(3)
    assert filled["n"].dtype == torch.float64
    assert filled["n"].tolist() == [7, 7, 7]
    (masked,) = Converter(table.schema, nulls="mask").convert(table).batches(3)
    assert masked["n"].isnan().all()
    assert masked["n_mask"].all()


def test_dates_beyond_python_are_numbers() -> None:
    far = pa.array([10**15], pa.int64()).cast(pa.timestamp("s"))
    assert next(_block(pa.chunked_array([far]), "torch").batches(1))["c"].tolist() == [10**15]
    with pytest.raises(ConversionError, match=r"'c' \(timestamp\[s\]\)"):
        list(_block(pa.chunked_array([far]), "dict").batches(1))


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"x": v}])
@pytest.mark.parametrize("value", [str, int])
def test_dictionaries_that_together_outgrow_their_codes(wrap: Any, value: Any) -> None:
    codes = pa.dictionary(pa.int8(), pa.array([value(0)]).type)
    kinds = {str: codes, list: pa.list_(codes), dict: pa.struct({"x": codes})}
    type_ = kinds.get(type(wrap(value(0))), codes)
    rows = [wrap(value(i)) for i in range(300)]
    chunks = [pa.array(rows[i : i + 100], type_) for i in (0, 100, 200)]
    table = pa.table({"c": pa.chunked_array(chunks)})
    (whole,) = Converter(table.schema).convert(table).batches(300)
    parts = [pa.table({"c": chunk}) for chunk in chunks]
    joined = concat([Converter(table.schema).convert(part) for part in parts])
    (again,) = joined.batches(300)
    assert _plain(whole["c"]) == _plain(again["c"]) == _plain(pa.array(rows).to_pylist())
    with pytest.raises(ConversionError, match="wider index type"):
        list(_block(table["c"], "arrow").batches(300))


def _plain(column: Any) -> list[Any]:
    if isinstance(column, dict):
        return [{"x": value} for value in _plain(column["x"])]
    return [row.tolist() if hasattr(row, "tolist") else row for row in list(column)]
