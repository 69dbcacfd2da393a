"""Rows that were mapped, copied or given columns: values and types of what is stored."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from row_tables import rows_of

from headrace.access import ArrowBackend, RowDataset
from headrace.errors import SchemaError
from headrace.sources.files.schemas import plain_type


def replaced(old: pa.Array, new: list[Any]) -> pa.ChunkedArray:
    """Return the stored column after ``map`` puts new values in the place of old ones."""
    rows = rows_of({"x": old, "n": range(len(new))}).map(lambda row: {"x": new[row["n"]]})
    assert isinstance(rows.backend, ArrowBackend)
    return rows.backend.table.column("x")


SOME_DAY = datetime(2020, 1, 1, 13)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.array([50, 150]), [0.5, 1.5]),
        (pa.array([2, 4]), [1.0, 2.0]),
        (pa.array([1, 2]), [True, False]),
        (pa.array([1.0, 2.0], pa.float32()), [1e300, 0.1]),
        (pa.array([1, 2], pa.int8()), [1, 1000]),
        (pa.array([b"a", b"b"]), ["a", "b"]),
        (pa.array([0, 1], pa.timestamp("s")), [SOME_DAY, SOME_DAY + timedelta(microseconds=5)]),
        (pa.array([0, 1], pa.date32()), [SOME_DAY, SOME_DAY]),
        (pa.array([{"a": 1}, {"a": 2}]), [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        (pa.array([[1], [2]]), [[0.5], [1.5]]),
        (pa.array([{"a": [1]}, {"a": [2]}]), [{"a": [0.5]}, {"a": []}]),
    ],
    ids=[
        "fractions",
        "whole floats",
        "bools",
        "large floats",
        "large integers",
        "text",
        "moments",
        "days",
        "fields",
        "lists",
        "nested",
    ],
)
def test_map_keeps_values_rather_than_a_type(old: pa.Array, new: list[Any]) -> None:
    column = replaced(old, new)
    assert column.to_pylist() == new
    assert column.type == pa.array(new).type


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.array([1, 2], pa.int8()), [3, None]),
        (pa.array([1, 2], pa.float32()), [0.5, float("nan")]),
        (pa.array([["a"], []], pa.large_list(pa.string())), [[], []]),
        (pa.array([[1.5], []], pa.list_(pa.float32())), [[float("nan")], [2.5]]),
        (pa.array([{"a": 1, "b": "x"}] * 2), [{"a": 5, "b": None}] * 2),
        (pa.array(["a", "b"]).dictionary_encode(), ["b", "c"]),
        (pa.array([b"a", b"b"], pa.large_binary()), [b"c", b""]),
        (pa.array([0, 1], pa.timestamp("s", "UTC")), None),
        (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), [[("l", 2)], []]),
        (pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())), [[("l", "w")], []]),
        (pa.array(["a", "b"], pa.string_view()), ["c", "d"]),
        (pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float32(), 2)), [np.ones(2), np.zeros(2)]),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 1, 2))), [[1.0, 2.0], [3.0, 4.0]]),
        (pa.array([1, 1]), [None, None]),
    ],
    ids=[
        "integers",
        "nan",
        "no lists",
        "lists of nan",
        "structs",
        "codes",
        "bytes",
        "moments",
        "maps",
        "maps of text",
        "views",
        "arrays",
        "tensors",
        "nulls",
    ],
)
def test_map_keeps_a_type_that_holds_the_values(old: pa.Array, new: list[Any] | None) -> None:
    new = old.to_pylist() if new is None else new
    column = replaced(old, new)
    assert column.type == plain_type(old.type)
    assert repr(column.to_pylist()) == repr([v.tolist() if hasattr(v, "dtype") else v for v in new])


def test_a_map_of_fractions_is_no_map_of_integers() -> None:
    old = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(SchemaError, match="'x'"):
        replaced(old, [[("k", 0.5)]])


COPIES = {
    "flatten": lambda rows: rows.flatten(),
    "add": lambda rows: rows.add_column("more", range(len(rows))),
    "map": lambda rows: rows.map(lambda row: {"more": 1}),
}


@pytest.mark.parametrize("how", sorted(COPIES))
@pytest.mark.parametrize("mixed", [False, True])
def test_copies_are_in_memory(how: str, mixed: bool, tmp_path: Path) -> None:
    table = pa.table(
        {
            "x": np.arange(20_000),
            "code": pa.array(["some", "words"] * 10_000).dictionary_encode(),
            "text": pa.array([f"a text that is not short {i}" for i in range(20_000)]),
            "view": pa.array(["a text that is not short"] * 20_000, pa.string_view()),
        }
    )
    path = tmp_path / "mapped.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)
    rows = RowDataset(ArrowBackend(str(path)))[500:510]
    copied = COPIES[how](rows.shuffle(1) if mixed else rows)
    assert len(pickle.dumps(copied)) < 200_000
    path.write_bytes(b"\0" * path.stat().st_size)
    assert sorted(copied.batch(range(10))["text"]) == table["text"][500:510].to_pylist()
    assert set(copied.batch(range(10))["code"]) == {"some", "words"}
    assert set(copied.batch(range(10))["view"]) == {"a text that is not short"}


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_rows_of_no_column_are_rows(output_format: str) -> None:
    nothing = rows_of({"x": range(10)}).select_columns([])
    assert len(list(nothing.with_format(output_format))) == 10
    calls = []
    rows = nothing.with_format(output_format).map(lambda row: {"y": calls.append(row) or 1})
    assert calls == [{}] * 10
    assert len(rows) == 10
    assert rows.column_names == ["y"]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_no_rows_of_tensors(output_format: str) -> None:
    rows = rows_of({"x": range(4)}).add_column("v", torch.zeros(4, 2, 2))
    batch = rows.with_format(output_format)[[]]
    assert len(batch["v"]) == 0


def test_nulls_of_columns_that_were_replaced_are_forgotten() -> None:
    rows = rows_of({"a": pa.array([1, None]), "b": [1, 2]}, nulls={"a": 5})
    assert rows.map(lambda row: {"a": "text"}).batch([1])["a"] == ["text"]
    assert rows.map(lambda row: {"b": "text"}).batch([1])["a"].tolist() == [5]


def test_columns_without_a_type_in_arrow() -> None:
    rows = rows_of({"x": range(2)})
    with pytest.raises(TypeError, match="BFloat16"):
        rows.add_column("y", torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="BFloat16"):
        rows.map(lambda row: {"y": torch.zeros(2, dtype=torch.bfloat16)})


@pytest.mark.parametrize(
    "values", [[], np.zeros((0, 3)), np.zeros((0, 3, 2))], ids=["list", "matrix", "cube"]
)
def test_a_column_of_no_values(values: Any) -> None:
    rows = rows_of({"x": range(2)})[:0].add_column("y", values)
    assert rows.column_names == ["x", "y"]
    assert len(rows.batch([])["y"]) == 0
