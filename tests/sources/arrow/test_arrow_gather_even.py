"""Rows that are all equally long are found by arithmetic, and are the same rows."""

from __future__ import annotations

import datetime
import decimal
import re
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from headrace.access import ArrowBackend, RowDataset
from headrace.convert import Converter
from headrace.convert.columns import ObjectColumn
from headrace.errors import ConversionError, ReadError, SkippedDataWarning

TENSOR = pa.fixed_shape_tensor(pa.int16(), (2, 3), permutation=(1, 0))
TYPES = {
    "blob": pa.binary(),
    "large": pa.large_binary(),
    "text": pa.string(),
    "key": pa.binary(5),
    "number": pa.int64(),
    "short": pa.uint16(),
    "day": pa.date32(),
    "price": pa.decimal128(9, 2),
    "flag": pa.bool_(),
    "vector": pa.list_(pa.float32(), 3),
    "list": pa.list_(pa.int32()),
    "tensor": TENSOR,
    "uuid": pa.uuid(),
}
BATCHES = ["even", "wider", "uneven", "null", "empty"]


def lengths_of(kind: str, rows: int) -> list[int]:
    if kind == "uneven":
        return [4 + (i % 3 == 1) - (i % 3 == 2) for i in range(rows)]
    return [{"wider": 6, "empty": 0}.get(kind, 4)] * rows


def column(type_: pa.DataType, kind: str, rows: int, rng: np.random.Generator) -> pa.Array:
    """Values of which those that have a length are as long as the kind of batch says."""
    lengths = lengths_of(kind, rows)
    values: list[Any]
    if isinstance(type_, pa.BaseExtensionType):
        inner = column(type_.storage_type, "even", rows, rng)
        return pa.ExtensionArray.from_storage(type_, inner)
    if pa.types.is_fixed_size_binary(type_):
        values = [rng.bytes(type_.byte_width) for _ in range(rows)]
    elif pa.types.is_fixed_size_list(type_):
        values = rng.integers(0, 100, (rows, type_.list_size)).tolist()
    elif pa.types.is_list(type_):
        values = [rng.integers(0, 100, size).tolist() for size in lengths]
    elif pa.types.is_string(type_):
        values = [rng.bytes(size).hex()[:size] for size in lengths]
    elif pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        values = [rng.bytes(size)[:-1] + b"\0" if size else b"" for size in lengths]
    elif pa.types.is_boolean(type_):
        values = [bool(value) for value in rng.integers(0, 2, rows)]
    else:
        values = [_number(type_, int(value)) for value in rng.integers(0, 28, rows)]
    if kind == "null" and rows:
        values[rows // 2] = None
    return pa.array(values, type_)


def _number(type_: pa.DataType, value: int) -> Any:
    if pa.types.is_date(type_):
        return datetime.date(2020, 1, 1 + value)
    return decimal.Decimal(value) / 4 if pa.types.is_decimal(type_) else value


def batch_of(names: list[str], kind: str, rows: int, seed: int) -> pa.RecordBatch:
    """Rows that are cut out of more of them."""
    rng = np.random.default_rng(seed)
    columns = [column(TYPES[name], kind, rows + 5, rng) for name in names]
    return pa.RecordBatch.from_arrays(columns, names).slice(3, rows)


def write(path: Path, batches: list[pa.RecordBatch], compression: str | None) -> None:
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor | np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        one, other = one.tolist(), other.tolist()
    if isinstance(one, list):
        for each, wanted in zip(one, other, strict=True):
            assert_same(each, wanted)
    else:
        assert repr(one) == repr(other)  # nan is what a null decimal is


def check(backend: ArrowBackend, rows: list[dict[str, Any]], picks: list[int]) -> None:
    """By a table, and by what a table becomes: in torch and numpy, with and without a mask."""
    table = backend.take(picks)
    table.validate(full=True)
    assert table.to_pylist() == [rows[pick] for pick in picks]
    for output_format, nulls in product(("torch", "numpy"), ("mask", None)):
        dataset = RowDataset(backend, output_format=output_format, nulls=nulls)
        converter = Converter(backend.schema, output_format, nulls=nulls)
        try:
            (expected,) = converter.convert(table).batches(len(picks))
        except ConversionError as error:
            with pytest.raises(ConversionError, match=re.escape(str(error))):
                dataset.batch(picks)
            continue
        batch = dataset.batch(picks)
        assert list(batch) == list(expected)
        for key in batch:
            assert_same(batch[key], expected[key])


@settings(max_examples=80, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4, unique=True),
    kinds=st.lists(st.tuples(st.sampled_from(BATCHES), st.integers(0, 6)), min_size=1, max_size=6),
    form=st.sampled_from(["files", "lz4", "table"]),
    seed=st.integers(0, 1000),
    takes=st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=8), max_size=4),
)
def test_batches_that_are_even_and_not(
    names: list[str],
    kinds: list[tuple[str, int]],
    form: str,
    seed: int,
    takes: list[list[int]],
) -> None:
    """Whatever of them is looked at first."""
    batches = [batch_of(names, kind, rows, seed + n) for n, (kind, rows) in enumerate(kinds)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    with tempfile.TemporaryDirectory() as folder:
        if form == "table":
            backend = ArrowBackend(table=pa.Table.from_batches(batches))
        else:
            half = (len(batches) + 1) // 2
            for number, part in enumerate([batches[:half], batches[half:]]):
                if part:
                    path = Path(folder, f"{number}.arrow")
                    write(path, part, "lz4" if form == "lz4" else None)
            backend = ArrowBackend(folder)
        for picks in takes if rows else []:
            check(backend, rows, [pick % len(rows) for pick in picks])


@pytest.mark.parametrize("odd", BATCHES)
def test_every_type_beside_batches_of_every_kind(odd: str) -> None:
    names = list(TYPES)
    kinds = ["even", "even", odd]
    batches = [batch_of(names, kind, 10, seed) for seed, kind in enumerate(kinds)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    backend = ArrowBackend(table=pa.Table.from_batches(batches))
    for picks in ([3], [19, 0, 11, 3, 3], [29, 20, 25], [4, 25, 29, 12, 0]):
        check(backend, rows, picks)


@pytest.mark.parametrize("many", [1, 5])
def test_cells_that_are_wide_and_many(many: int) -> None:
    """Rows longer than pages, and of hundreds of batches."""
    blobs = [np.random.default_rng(i).bytes(9_001) for i in range(300)]
    table = pa.concat_tables([pa.table({"blob": [blob, blob[::-1]]}) for blob in blobs])
    dataset = RowDataset(ArrowBackend(table=table))
    picks = np.random.default_rng(0).permutation(600).repeat(many)
    wanted = [blobs[pick // 2][:: -1 if pick % 2 else 1] for pick in picks.tolist()]
    assert dataset.batch(picks)["blob"] == wanted


def test_shards_that_are_opened_one_after_the_other(tmp_path: Path) -> None:
    batches = [batch_of(["blob", "number"], "even", 6, seed) for seed in range(6)]
    for number in range(3):
        write(tmp_path / f"{number}.arrow", batches[2 * number : 2 * number + 2], None)
    rows = [row for batch in batches for row in batch.to_pylist()]
    backend = ArrowBackend(tmp_path)
    for picks in ([30], [3, 30], [4, 20, 35, 3], [17, 0, 35]):
        check(backend, rows, picks)


def test_offsets_that_are_even_but_for_one(tmp_path: Path) -> None:
    offsets = np.arange(0, 81, 8, dtype=np.int32)
    offsets[5] = 1_000
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"12345678" * 10)]
    blobs = pa.Array.from_buffers(pa.binary(), 10, buffers)
    write(tmp_path / "a.arrow", [pa.record_batch({"blob": blobs})], None)
    backend = ArrowBackend(tmp_path)
    with pytest.raises(ReadError, match=r"row 5: .*damaged"):
        RowDataset(backend).batch([3, 5, 8])
    with pytest.warns(SkippedDataWarning, match="row 5 "):
        batch = RowDataset(backend, on_error="skip").batch([3, 5, 8])
    assert batch["blob"] == [b"12345678"] * 2


def test_what_a_batch_holds_is_its_own() -> None:
    table = pa.table({"number": [1, 2, 3]})
    dataset = RowDataset(ArrowBackend(table=table))
    dataset.batch([0, 2])["number"].fill_(7)
    assert dataset.batch([0, 2])["number"].tolist() == [1, 3]
    assert table["number"].to_pylist() == [1, 2, 3]


def test_numbers_that_torch_has_no_place_for() -> None:
    table = pa.table({"number": pa.array([1, 2**63], pa.uint64())})
    dataset = RowDataset(ArrowBackend(table=table))
    assert dataset.batch([0])["number"].tolist() == [1]
    with pytest.raises(ConversionError, match=r"'number' \(uint64\)"):
        dataset.batch([0, 1])


def test_columns_of_cells_are_columns() -> None:
    narrow = ObjectColumn(np.frombuffer(b"abcdef", "V2"), None, as_array=False)
    wide = ObjectColumn(np.frombuffer(b"ghi\0", "V4"), None, as_array=False)
    assert list(narrow.split(2)) == [[b"ab", b"cd"], [b"ef"]]
    assert list(narrow.slice(1, 9).split(9)) == [[b"cd", b"ef"]]
    assert list(narrow.take(np.array([2, 0, 2])).split(9)) == [[b"ef", b"ab", b"ef"]]
    of_arrow = ObjectColumn(pa.array([b"j"], pa.large_binary()), None, as_array=False)
    joined = ObjectColumn.concat([narrow, wide, of_arrow])
    assert list(joined.split(9)) == [[b"ab", b"cd", b"ef", b"ghi\0", b"j"]]
    assert narrow.nbytes == 6
    assert list(ObjectColumn.to_send([narrow]).split(9)) == [[b"ab", b"cd", b"ef"]]
