"""Rows of any types, in any batches and shards, are those that Arrow would give."""

from __future__ import annotations

import datetime
import decimal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from headrace.sources.arrow.backend import ArrowBackend

_STRUCT = pa.struct([("a", pa.int16()), ("b", pa.string()), ("c", pa.list_(pa.float32(), 2))])
TYPES = {
    "int8": pa.int8(),
    "int64": pa.int64(),
    "float16": pa.float16(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(9, 2),
    "bytes3": pa.binary(3),
    "bytes0": pa.binary(0),
    "string": pa.string(),
    "binary": pa.binary(),
    "large_string": pa.large_string(),
    "large_binary": pa.large_binary(),
    "string_view": pa.string_view(),
    "vector": pa.list_(pa.float32(), 3),
    "bits": pa.list_(pa.bool_(), 3),
    "matrix": pa.list_(pa.list_(pa.int16(), 2), 2),
    "list": pa.list_(pa.int32()),
    "large_list": pa.large_list(pa.float64()),
    "pairs": pa.list_(pa.list_(pa.uint8(), 2)),
    "texts": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.int32()),
    "struct": _STRUCT,
    "deep": pa.struct([("x", _STRUCT), ("y", pa.list_(_STRUCT))]),
    "codes": pa.dictionary(pa.int8(), pa.string()),
    "null": pa.null(),
    "uuid": pa.uuid(),
    "union": pa.dense_union([pa.field("i", pa.int32()), pa.field("s", pa.string())]),
    "runs": pa.run_end_encoded(pa.int32(), pa.int64()),
}


def made(type_: pa.DataType, rng: np.random.Generator, nulls: float) -> Any:
    """A value of a type."""
    if rng.random() < nulls:
        return None
    number = int(rng.integers(0, 100))
    if isinstance(type_, pa.BaseExtensionType):
        return rng.bytes(16)
    if pa.types.is_boolean(type_):
        return bool(number % 2)
    if pa.types.is_floating(type_):
        return number / 4
    if pa.types.is_decimal(type_):
        return decimal.Decimal(number) / 4
    if pa.types.is_date(type_):
        return datetime.date(2020, 1, 1 + number % 28)
    if pa.types.is_timestamp(type_):
        return datetime.datetime(2020, 1, 1, 2, 3, 4, number, datetime.UTC)
    if pa.types.is_fixed_size_binary(type_):
        return rng.bytes(type_.byte_width)
    if any(is_text(type_) for is_text in (pa.types.is_string, pa.types.is_large_string)):
        return "aé€" * (number % 5)
    if pa.types.is_string_view(type_):
        return "view" * (number % 7)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return rng.bytes(number % 7)
    if pa.types.is_fixed_size_list(type_):
        return [made(type_.value_type, rng, nulls / 4) for _ in range(type_.list_size)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [made(type_.value_type, rng, nulls / 4) for _ in range(number % 4)]
    if pa.types.is_map(type_):
        return [(f"k{i}", made(type_.item_type, rng, nulls)) for i in range(number % 3)]
    if pa.types.is_struct(type_):
        return {field.name: made(field.type, rng, nulls) for field in type_}
    if pa.types.is_dictionary(type_):
        return f"code {number % 5}"
    return None if pa.types.is_null(type_) else number


def column(type_: pa.DataType, rows: int, rng: np.random.Generator, nulls: float) -> pa.Array:
    if pa.types.is_union(type_):
        kinds = pa.array(rng.integers(0, 2, rows).astype(np.int8))
        children = [pa.array(range(rows), pa.int32()), pa.array(map(str, range(rows)), pa.string())]
        offsets = pa.array(np.arange(rows), pa.int32())
        return pa.UnionArray.from_dense(kinds, offsets, children, ["i", "s"])
    values = [made(type_, rng, nulls) for _ in range(rows)]
    if pa.types.is_run_end_encoded(type_):
        return pc.run_end_encode(pa.array([number or 0 for number in values], pa.int64()))
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    return pa.array(values, type_)


def batch_of(schema: pa.Schema, rows: int, seed: int, nulls: float) -> pa.RecordBatch:
    """Rows that are cut out of more of them, in memory."""
    rng = np.random.default_rng(seed)
    columns = [column(field.type, rows + 5, rng, nulls) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(3, rows)


def with_one_dictionary(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same with the codes that all batches have: a file has one dictionary a column."""
    codes = [f"code {number}" for number in range(5)]
    columns = [
        pa.DictionaryArray.from_arrays(
            pc.index_in(each.cast("string"), pa.array(codes)).cast("int8"), codes
        )
        if pa.types.is_dictionary(each.type)
        else each
        for each in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def write(form: str, path: Path, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    compression = "lz4" if form.startswith("lz4") else None
    options = ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    new = ipc.new_stream if form.endswith("stream") else ipc.new_file
    with new(path, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch if form.endswith("stream") else with_one_dictionary(batch))


def check(
    form: str, names: list[str], shards: list[list[int]], seed: int, nulls: float, picks: list[int]
) -> None:
    schema = pa.schema([(name, TYPES[name]) for name in names])
    written = [
        [batch_of(schema, rows, seed + 31 * s + n, nulls) for n, rows in enumerate(shard)]
        for s, shard in enumerate(shards)
    ]
    rows = [row for shard in written for batch in shard for row in batch.to_pylist()]
    with tempfile.TemporaryDirectory() as directory:
        if form == "table":
            batches = [batch for shard in written for batch in shard]
            backend = ArrowBackend(table=pa.Table.from_batches(batches, schema))
        else:
            for s, shard in enumerate(written):
                write(form, Path(directory, f"{s:03}.arrow"), schema, shard)
            backend = ArrowBackend(directory)
        assert backend.num_rows == len(rows)
        picked = [pick % len(rows) for pick in picks] if rows else []
        for columns in (None, names[::-1][:2]):
            table = backend.take(picked, columns=columns)
            table.validate(full=True)
            assert table.schema.equals(backend.projected(columns))
            wanted = [rows[pick] for pick in picked]
            if columns is not None:
                wanted = [{name: row[name] for name in columns} for row in wanted]
            assert table.to_pylist() == wanted
        assert backend.table.to_pylist() == rows
        half = len(rows) // 2
        if half:
            assert backend.slice(half, len(rows) - half).to_pylist() == rows[half:]


FORMS = ["file", "stream", "lz4 file", "lz4 stream", "table"]


@settings(max_examples=120, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    names=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4, unique=True),
    shards=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4),
    seed=st.integers(0, 10_000),
    nulls=st.sampled_from([0.0, 0.1, 0.9]),
    picks=st.lists(st.integers(0, 10_000), max_size=20),
)
@example("file", ["string"], [[0, 3, 0], [], [2]], 1, 0.0, [4, 3, 2, 1, 0, 4])
@example("file", ["int64"], [[5, 5], [5, 9]], 1, 0.0, [4, 5, 18, 19, 20, 23])
@example("file", ["int64"], [[5, 5], [5, 3]], 1, 0.0, [4, 5, 14, 15, 16, 17])
@example("table", ["matrix"], [[1, 1]], 0, 0.1, [0, 1])
@example("stream", ["codes"], [[5, 5, 5]], 1, 0.5, [14, 0, 7, 7])
def test_rows_are_those_that_were_written(
    form: str, names: list[str], shards: list[list[int]], seed: int, nulls: float, picks: list[int]
) -> None:
    check(form, names, shards, seed, nulls, picks)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("nulls", [0.0, 0.3], ids=["full", "nulls"])
def test_every_type(form: str, nulls: float) -> None:
    picks = [0, 21, 5, 5, 13, 14, 20, 1, 9, 10]
    check(form, list(TYPES), [[5, 0, 5], [], [7, 5]], 3, nulls, picks)
