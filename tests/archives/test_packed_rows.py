"""Rows packed into records and back: all types, nulls, slices, and records that are wrong."""

from __future__ import annotations

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.archives.packed_rows import MARK, PackedRows
from headrace.errors import ReadError, SchemaError


def where(place: int) -> str:
    return f"file: record {place}"


def back(table: pa.Table, columns: list[str] | None = None) -> pa.Table:
    packed = PackedRows(table.schema)
    records = list(packed.records(table))
    read = PackedRows.of_record(records[0])
    assert read is not None
    schema = read.schema
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    return read.table(records, schema, where)


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, -128, None]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
    "float16": (pa.float16(), [1.5, -2.0, 0.0]),
    "float32": (pa.float32(), [1.5, float("inf"), None]),
    "bool": (pa.bool_(), [True, None, False]),
    "date": (pa.date32(), [datetime.date(2020, 2, 29), None, datetime.date(1, 1, 1)]),
    "timestamp": (pa.timestamp("us"), [datetime.datetime(2020, 1, 1, 5), None, None]),
    "zoned": (pa.timestamp("ms", "Europe/Berlin"), [0, None, 10**12]),
    "decimal": (pa.decimal128(20, 3), [decimal.Decimal("1.250"), None, decimal.Decimal("-7")]),
    "hash": (pa.binary(4), [b"abcd", None, b"wxyz"]),
    "string": (pa.string(), ["", "ünï", None]),
    "large_string": (pa.large_string(), ["a" * 5000, "", None]),
    "binary": (pa.binary(), [b"", b"\0\xff", None]),
    "large_binary": (pa.large_binary(), [b"x" * 300, None, b""]),
    "list": (pa.list_(pa.float32()), [[1.0, 2.0], [], None]),
    "large_list": (pa.large_list(pa.int16()), [[1], None, [2, 3, 4]]),
    "list with nulls": (pa.list_(pa.int64()), [[1, None], [5], None]),
    "vector": (pa.list_(pa.float32(), 3), [[1, 2, 3], None, [4, 5, 6]]),
    "vector with nulls": (pa.list_(pa.float32(), 2), [[1, None], None, [4, 5]]),
    "list of text": (pa.list_(pa.string()), [["a", None], [], None]),
    "list of lists": (pa.list_(pa.list_(pa.int8())), [[[1], []], None, [[2, 3]]]),
    "list of truth": (pa.list_(pa.bool_()), [[True, False], None, []]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None, []]),
    "nothing": (pa.null(), [None, None, None]),
    "time": (pa.time64("us"), [datetime.time(1, 2, 3), None, datetime.time(0)]),
    "duration": (pa.duration("s"), [datetime.timedelta(seconds=3), None, None]),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type_comes_back(name: str) -> None:
    type_, values = TYPES[name]
    table = pa.table({"before": [1, 2, 3], "x": pa.array(values, type_), "after": ["a", "b", "c"]})
    read = back(table)
    read.validate(full=True)
    assert read.schema == table.schema
    assert read.to_pylist() == table.to_pylist()
    assert back(table, ["after", "x"]).to_pylist() == table.select(["after", "x"]).to_pylist()


@pytest.mark.parametrize("name", TYPES)
def test_single_rows_are_those_of_the_table(name: str) -> None:
    type_, values = TYPES[name]
    table = pa.table({"n": [1, 2, 3], "x": pa.array(values, type_), "t": ["a", None, "c"]})
    packed = PackedRows(table.schema)
    records = list(packed.records(table))
    assert [packed.row(one, packed.schema, where) for one in records] == table.to_pylist()
    some = pa.schema([packed.schema.field("t"), packed.schema.field("n")])
    rows = [packed.row(one, some, where) for one in records]
    assert rows == table.select(["t", "n"]).to_pylist()
    assert [list(row) for row in rows] == [["t", "n"]] * 3


@pytest.mark.parametrize("name", TYPES)
def test_rows_of_the_middle_of_a_column(name: str) -> None:
    type_, values = TYPES[name]
    column = pa.array(values * 3, type_).slice(2, 5)
    table = pa.table({"x": column})
    assert back(table).to_pylist() == table.to_pylist()
    chunks = pa.chunked_array([column, pa.array([], type_), column.slice(1)])
    assert back(pa.table({"x": chunks})).to_pylist() == pa.table({"x": chunks}).to_pylist()


def test_types_of_which_only_the_values_are_kept() -> None:
    table = pa.table(
        {
            "d": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "v": pa.array(["a", "b", None, "c"], pa.string_view()),
            "w": pa.array([b"a", b"b", None, b"c"], pa.binary_view()),
            "u": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([b"0" * 16] * 4, pa.binary(16))
            ),
        }
    )
    read = back(table)
    kept = {"d": pa.string(), "v": pa.string(), "w": pa.binary(), "u": pa.binary(16)}
    assert read.schema == pa.schema(list(kept.items()))
    assert read.select(["d", "v", "w"]).to_pylist() == table.select(["d", "v", "w"]).to_pylist()
    assert read["u"].to_pylist() == [b"0" * 16] * 4


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-(2**31), 2**31 - 1),
            st.none() | st.binary(max_size=40),
            st.none() | st.text(max_size=10),
            st.none() | st.lists(st.none() | st.floats(allow_nan=False, width=32), max_size=4),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_rows_come_back(rows: list[tuple[Any, ...]]) -> None:
    types = [pa.int32(), pa.binary(), pa.string(), pa.list_(pa.float32())]
    columns = [pa.array(list(c), t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    table = pa.table(columns, names=["i", "b", "s", "l"])
    read = back(table)
    read.validate(full=True)
    assert read.to_pylist() == table.to_pylist()


def test_the_layout_is_the_one_that_is_documented() -> None:
    table = pa.table({"label": pa.array([7], pa.int64()), "image": pa.array([b"JPEG"])})
    text = b'[["label","int64"],["image","binary"]]'
    expected = b"\x93PENROW1" + len(text).to_bytes(4, "little") + text
    expected += b"\0\0" + (7).to_bytes(8, "little") + (4).to_bytes(4, "little") + b"JPEG"
    assert list(PackedRows(table.schema).records(table)) == [expected]


def test_records_of_other_columns_are_refused_by_their_place() -> None:
    good = pa.table({"a": [1, 2], "s": ["x", "y"]})
    packed = PackedRows(good.schema)
    records = list(packed.records(good))
    other = list(PackedRows(pa.schema([("b", pa.int8())])).records(pa.table({"b": [1]})))
    for wrong, said in [
        (b"anything", "is no packed row"),
        (other[0], r"has the columns \['b'\] and not \['a', 's'\]"),
        (records[0][:-1], "bytes, and not"),
        (records[0] + b"x", "bytes, and not"),
        (records[0][: len(packed.header) + 3], "ends before its values do"),
    ]:
        with pytest.raises(ReadError, match=f"file: record 1.*{said}"):
            packed.table([records[0], wrong], packed.schema, where)
        with pytest.raises(ReadError, match=said):
            packed.row(wrong, packed.schema, where)


def test_a_message_that_is_none() -> None:
    table = pa.table({"s": pa.array([["a"], ["b"]], pa.list_(pa.string()))})
    packed = PackedRows(table.schema)
    records = list(packed.records(table))
    begin = len(packed.header) + 5
    records[1] = records[1][:begin] + b"\xff" * (len(records[1]) - begin)
    with pytest.raises(ReadError, match=r"record 1 has no list"):
        packed.table(records, packed.schema, where)


def test_a_list_whose_bytes_are_no_whole_items() -> None:
    packed = PackedRows(pa.schema([("x", pa.list_(pa.int32()))]))
    good = next(iter(packed.records(pa.table({"x": pa.array([[1]], pa.list_(pa.int32()))}))))
    bad = good[: len(packed.header) + 1] + (3).to_bytes(4, "little") + b"abc"
    with pytest.raises(ReadError, match="record 1 has 3 bytes for a list"):
        packed.table([good, bad], packed.schema, where)


def test_other_bytes_are_not_taken_for_packed_rows() -> None:
    assert PackedRows.of_record(b"") is None
    assert PackedRows.of_record(MARK) is None
    assert PackedRows.of_record(MARK + b"\xff\xff\xff\xff{}") is None
    assert PackedRows.of_record(MARK + b'\x0e\0\0\0[["a","nope"]]') is None


def test_columns_that_cannot_be_packed() -> None:
    with pytest.raises(SchemaError, match="without columns"):
        PackedRows(pa.schema([]))
    with pytest.raises(SchemaError, match="different names"):
        PackedRows(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    inside = pa.list_(pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(SchemaError, match="'a' has dictionaries inside"):
        PackedRows(pa.schema([("a", inside)]))


def test_cells_of_more_than_an_array_holds_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.archives.pieces._ROOM_BYTES", 1000)
    table = pa.table({"n": range(50), "b": [bytes([i]) * 100 for i in range(50)]})
    packed = PackedRows(table.schema)
    records = list(packed.records(table))
    read = packed.table(records, packed.schema, where)
    assert read["b"].num_chunks > 5
    assert read.to_pylist() == table.to_pylist()
    with pytest.raises(ReadError, match="record 49"):
        packed.table([*records[:49], b"no"], packed.schema, where)


def test_it_pickles_small() -> None:
    packed = PackedRows(pa.schema([("a", pa.int64())]))
    assert packed.header
    copy = pickle.loads(pickle.dumps(packed))
    assert copy.schema == packed.schema
    assert len(pickle.dumps(packed)) < 1000


def test_values_of_numpy_rows() -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4)
    read = back(pa.table({"v": column}))
    assert np.array_equal(read["v"].combine_chunks().flatten().to_numpy().reshape(3, 4), vectors)
