"""Rows as Arrow streams in records: all types, nulls, slices, and records that are wrong."""

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

from headrace.errors import ReadError, SchemaError
from headrace.sources.array_record.codecs import ArrowRows


def where(place: int) -> str:
    return f"file: record {place}"


def back(table: pa.Table, columns: list[str] | None = None) -> pa.Table:
    records = list(ArrowRows.of_columns(table.schema).records(table))
    read = ArrowRows.of_record(records[0])
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
    packed = ArrowRows.of_columns(table.schema)
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
    kept = {
        "d": pa.string(),
        "v": pa.large_string(),
        "w": pa.large_binary(),
        "u": pa.binary(16),
    }
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


def test_a_record_is_an_arrow_stream_that_anybody_reads() -> None:
    table = pa.table({"label": [7, 8], "image": [b"JPEG", None]}).replace_schema_metadata(
        {"a": "b"}
    )
    records = list(ArrowRows.of_columns(table.schema).records(table))
    streams = [pa.ipc.open_stream(record).read_all() for record in records]
    assert pa.concat_tables(streams).equals(table.replace_schema_metadata())
    assert not streams[0].schema.metadata


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_streams_of_other_writers_are_read() -> None:
    """They may have metadata, compressed buffers and an end mark."""
    table = pa.table({"a": [1], "s": ["x" * 500]})
    packed = ArrowRows.of_columns(table.schema)
    told = table.replace_schema_metadata({"who": "another"})
    records = [
        *packed.records(table),
        stream_of(told),
        stream_of(table, compression="zstd"),
        stream_of(told.schema.empty_table())[:-8] + stream_of(told)[len(told.schema.serialize()) :],
    ]
    assert packed.table(records, packed.schema, where).to_pylist() == table.to_pylist() * 4
    for record in records:
        read = ArrowRows.of_record(record)
        assert read is not None
        assert read.schema == table.schema


def test_records_of_other_columns_are_refused_by_their_place() -> None:
    good = pa.table({"a": [1, 2], "s": ["x", "y"]})
    packed = ArrowRows.of_columns(good.schema)
    records = list(packed.records(good))
    for wrong, said in [
        (b"anything", "is not a row of columns: it is not an Arrow message"),
        (b"", "is not a row of columns"),
        (stream_of(pa.table({"b": [1]})), r"has the columns \['b'\] instead of \['a', 's'\]"),
        (stream_of(pa.table({"a": [1], "t": ["x"]})), r"has the columns \['a', 't'\]"),
        (stream_of(pa.table({"a": ["x"], "s": ["x"]})), "a is string instead of int64"),
        (stream_of(good), "it has 2 rows"),
        (stream_of(good.slice(0, 0)), "it has 0 rows"),
        (records[0][: len(records[0]) // 2], "is not a row of columns"),
        (records[0][:-8], "is not a row of columns"),
        (packed._header, "is not a row of columns: it has 0 rows"),
    ]:
        with pytest.raises(ReadError, match=f"file: record 1 .*{said}"):
            packed.table([records[0], wrong], packed.schema, where)
        with pytest.raises(ReadError, match=said):
            packed.row(wrong, packed.schema, where)


NESTED = pa.table(
    {
        "s": ["some text", "more"],
        "l": [[["a", "b"], []], [["c"]]],
        "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
        "v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    }
)


@settings(deadline=None, max_examples=300)
@given(place=st.integers(0, 2000), damage=st.binary(min_size=1, max_size=9))
def test_damaged_bytes_are_an_error_or_other_values(place: int, damage: bytes) -> None:
    """And never the end of the process, whatever is made of the table afterwards."""
    packed = ArrowRows.of_columns(NESTED.schema)
    records = list(packed.records(NESTED))
    place %= len(records[1])
    records[1] = (records[1][:place] + damage + records[1][place + len(damage) :])[
        : len(records[1])
    ]
    for columns in (NESTED.column_names, ["m", "s"]):
        schema = pa.schema([packed.schema.field(name) for name in columns])
        try:
            read = packed.table(records, schema, where)
        except ReadError as error:
            said = str(error)
        else:
            said = f"record 1 has {len(read.take([1, 0, 1]).to_pylist())} rows"
        assert "record 1 " in said


def test_an_offset_that_points_elsewhere() -> None:
    table = pa.table({"s": ["text of a row"]})
    packed = ArrowRows.of_columns(table.schema)
    good = next(packed.records(table))
    end = good.rindex((13).to_bytes(4, "little"), 0, good.index(b"text of a row"))
    bad = good[:end] + (1 << 30).to_bytes(4, "little") + good[end + 4 :]
    with pytest.raises(ReadError, match="record 1 is damaged"):
        packed.table([good, bad], packed.schema, where)


def test_other_bytes_are_not_taken_for_rows() -> None:
    assert ArrowRows.of_record(b"") is None
    assert ArrowRows.of_record(b"\xff\xff\xff\xff") is None
    assert ArrowRows.of_record(b"\xff\xff\xff\xff\x10\0\0\0" + bytes(40)) is None
    assert ArrowRows.of_record(stream_of(pa.table({"a": [1, 2]}))) is None
    text = pa.array(["x"])
    for array in (text.dictionary_encode(), text.cast(pa.string_view())):
        assert ArrowRows.of_record(stream_of(pa.table({"a": array}))) is None


def test_columns_that_cannot_be_packed() -> None:
    with pytest.raises(SchemaError, match="without columns"):
        ArrowRows.of_columns(pa.schema([]))
    with pytest.raises(SchemaError, match="different names"):
        ArrowRows.of_columns(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    inside = pa.list_(pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(SchemaError, match="'a' has dictionaries inside"):
        ArrowRows.of_columns(pa.schema([("a", inside)]))


def test_it_pickles_small() -> None:
    packed = ArrowRows.of_columns(pa.schema([("a", pa.int64())]))
    list(packed.records(pa.table({"a": [1]})))
    copy = pickle.loads(pickle.dumps(packed))
    assert copy.schema == packed.schema
    assert len(pickle.dumps(packed)) < 1000


def test_values_of_numpy_rows() -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4)
    read = back(pa.table({"v": column}))
    assert np.array_equal(read["v"].combine_chunks().flatten().to_numpy().reshape(3, 4), vectors)


def test_six_hundred_columns() -> None:
    table = pa.table({f"c{number}": [number, None] for number in range(600)})
    assert back(table).equals(table)
    assert back(table, ["c7"]).to_pylist() == [{"c7": 7}, {"c7": None}]
