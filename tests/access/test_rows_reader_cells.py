"""Rows and batches made directly from the bytes of rows are equal to those of a converter."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from headrace.access import ArrowBackend, RowDataset
from headrace.convert import Converter
from headrace.errors import ConversionError

ROWS = 40
PICKS = np.array([31, 0, 7, 7, 39, 12])
NUMBERS = np.arange(ROWS * 6)


def fixed(values: pa.Array, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values[: ROWS * size], size)


def shaped(permutation: list[int]) -> pa.Array:
    type_ = pa.fixed_shape_tensor(pa.int16(), (2, 3), permutation=permutation)
    return pa.ExtensionArray.from_storage(type_, fixed(pa.array(NUMBERS, pa.int16()), 6))


OF_CELLS = {
    "int64": pa.array(NUMBERS[:ROWS]),
    "uint8": pa.array(NUMBERS[:ROWS], pa.uint8()),
    "uint16": pa.array(NUMBERS[:ROWS], pa.uint16()),
    "uint64": pa.array(NUMBERS[:ROWS], pa.uint64()),
    "float16": pa.array(NUMBERS[:ROWS].astype(np.float16)),
    "date": pa.array(NUMBERS[:ROWS], pa.int32()).cast(pa.date32()),
    "time": pa.array(NUMBERS[:ROWS], pa.timestamp("us")),
    "one": fixed(pa.array(NUMBERS, pa.float32()), 1),
    "vector": fixed(pa.array(NUMBERS, pa.float32()), 3),
    "matrix": pa.array(NUMBERS.reshape(ROWS, 2, 3).tolist(), pa.list_(pa.list_(pa.int64(), 3), 2)),
    "tensor": shaped([0, 1]),
    "turned": shaped([1, 0]),
    "bytes": pa.array([b"%04d" % n for n in range(ROWS)]),
    "key": pa.array([b"%04d" % n for n in range(ROWS)], pa.binary(4)),
    "ending in zeros": pa.array([b"%d" % (n % 10) + b"\0\0" for n in range(ROWS)]),
}
NOT_OF_CELLS = {
    "text": pa.array([f"{n:04}" for n in range(ROWS)]),
    "flag": pa.array([n % 3 == 0 for n in range(ROWS)]),
    "price": pa.array(NUMBERS[:ROWS]).cast(pa.decimal128(30, 2)),
    "list": pa.array([[n, n] for n in range(ROWS)]),
}


def mapped(folder: Path, table: pa.Table) -> ArrowBackend:
    with ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    return ArrowBackend(folder)


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("name", {**OF_CELLS, **NOT_OF_CELLS})
def test_a_column_is_what_a_converter_makes_of_it(
    tmp_path: Path, name: str, output_format: str
) -> None:
    column = {**OF_CELLS, **NOT_OF_CELLS}[name]
    table = pa.table({"c": column, "n": OF_CELLS["int64"]})
    rows = RowDataset(mapped(tmp_path, table), output_format=output_format)
    (expected,) = Converter(table.schema, output_format).convert(table.take(PICKS)).batches(6)
    for actual in (rows.batch(PICKS), pickle.loads(pickle.dumps(rows)).batch(PICKS)):
        assert list(actual) == list(expected)
        for key in expected:
            assert type(actual[key]) is type(expected[key])
            assert repr(actual[key]) == repr(expected[key])
    one_by_one = [rows[int(place)]["c"] for place in PICKS]
    split = list(rows.__getitems__(PICKS))
    for row, other in zip(one_by_one, split, strict=True):
        assert type(row) is type(other["c"])
        assert repr(row) == repr(other["c"])


@pytest.mark.parametrize(
    ("nulls", "keys"),
    [
        (None, ["a", "b"]),
        ({"a": 7}, ["a", "b"]),
        ({"b": "mask"}, ["a", "b", "b_mask"]),
        ("mask", ["a", "a_mask", "b", "b_mask"]),
    ],
)
def test_masks_are_there_though_nothing_is_null(nulls: Any, keys: list[str]) -> None:
    table = pa.table({"a": OF_CELLS["int64"], "b": OF_CELLS["bytes"]})
    batch = RowDataset(ArrowBackend(table=table), nulls=nulls).batch(PICKS)
    assert list(batch) == keys
    assert not any(batch[key].any() for key in keys if key.endswith("_mask"))
    assert batch["a"].tolist() == PICKS.tolist()


def test_a_null_that_is_found_later_is_filled() -> None:
    """Check that columns come as cells until a batch with a null is read."""
    whole = pa.table({"a": OF_CELLS["int64"], "b": OF_CELLS["bytes"]})
    broken = pa.table({"a": pa.array([None, 1]), "b": pa.array([b"long one", None])})
    dataset = RowDataset(
        ArrowBackend(table=pa.concat_tables([whole, broken])), nulls={"a": -1, "b": b"?"}
    )
    assert dataset.batch([3, 1])["a"].tolist() == [3, 1]
    assert dataset.batch([ROWS + 1, ROWS, 2])["a"].tolist() == [1, -1, 2]
    assert dataset.batch([ROWS + 1, ROWS, 2])["b"] == [b"?", b"long one", b"0002"]
    assert dataset.batch([3, 1])["b"] == [b"0003", b"0001"]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_a_batch_may_be_written_to(tmp_path: Path, output_format: str) -> None:
    table = pa.table({"n": OF_CELLS["int64"], "v": OF_CELLS["vector"]})
    with ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    dataset = RowDataset(ArrowBackend(tmp_path), output_format=output_format)
    batch = dataset.batch(PICKS)
    batch["n"][:], batch["v"][:] = -1, -1
    again = dataset.batch(PICKS)
    assert again["n"].tolist() == PICKS.tolist()
    assert again["v"][:, 0].tolist() == (3 * PICKS).tolist()


def test_views_negative_indices_and_pickles() -> None:
    table = pa.table({"n": OF_CELLS["int64"], "b": OF_CELLS["bytes"]})
    dataset = RowDataset(ArrowBackend(table=table))
    view = pickle.loads(pickle.dumps(dataset.select([5, 3, 1])[::-1]))
    assert view.batch([-1, 0])["n"].tolist() == [5, 1]
    assert view.batch([-1, 0])["b"] == [b"0005", b"0001"]
    with pytest.raises(IndexError, match="no row 3"):
        view.batch([0, 3])


def nullable(values: pa.Array) -> pa.Array:
    """Return the values with a null in the second place."""
    return pa.array([None if n == 1 else value for n, value in enumerate(values.to_pylist())])


def test_one_row_of_columns_with_nulls(tmp_path: Path) -> None:
    columns = {**OF_CELLS, **NOT_OF_CELLS}
    fills = {"text": "-", "flag": True, "list": [], "int64": -1, "bytes": b"-"}
    for name, fill in fills.items():
        table = pa.table({name: nullable(columns[name])})
        for output_format in ("torch", "numpy"):
            rows = RowDataset(
                mapped(tmp_path, table), nulls={name: fill}, output_format=output_format
            )
            batch = list(rows.__getitems__(np.arange(4)))
            assert [repr(rows[n]) for n in range(4)] == [repr(dict(row)) for row in batch]


@pytest.mark.parametrize("in_memory", [False, True])
def test_one_raw_row(tmp_path: Path, in_memory: bool) -> None:
    table = pa.table({name: nullable(column) for name, column in NOT_OF_CELLS.items()})
    backend = ArrowBackend(table=table) if in_memory else mapped(tmp_path, table)
    rows = RowDataset(backend, output_format="raw").rename_column("text", "name")
    names = ["name", "flag", "price", "list"]
    assert [rows[n] for n in range(-3, 3)] == [
        dict(zip(names, table.to_pylist()[n].values(), strict=True)) for n in range(-3, 3)
    ]
    assert backend.get_row(1, columns=["price", "text"]) == {"price": None, "text": None}


def test_a_raw_value_that_python_has_no_object_for(tmp_path: Path) -> None:
    table = pa.table({"when": pa.array([0, 10**18], pa.int64()).cast(pa.timestamp("s"))})
    rows = RowDataset(mapped(tmp_path, table), output_format="raw")
    assert rows[0]["when"].year == 1970
    with pytest.raises(ConversionError, match="column 'when'"):
        rows[1]
