"""Rows that were changed, copied, skipped or that have no columns: none of them is lost."""

from __future__ import annotations

import array
import pickle
import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from headrace.access import ArrowBackend, RowDataset
from headrace.errors import SchemaError
from headrace.sources.files._plain_types import plain_type


def rows_of(columns: dict[str, Any], **options: Any) -> RowDataset:
    return RowDataset(ArrowBackend(table=pa.table(columns)), **options)


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


def hundredfold(batch: Any) -> Any:
    for row in batch:
        row["x"] *= 100
        row["new"] = 1
        del row["text"]
    return default_collate(batch)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_changes_of_rows_are_collated(output_format: str, workers: int) -> None:
    rows = rows_of({"x": range(6), "text": ["a"] * 6}, output_format=output_format)
    loader = DataLoader(rows, batch_size=3, collate_fn=hundredfold, num_workers=workers)
    for number, batch in enumerate(loader):
        assert batch["x"].tolist() == [100 * (3 * number + place) for place in range(3)]
        assert list(batch) == ["x", "new"]
        assert batch["new"].tolist() == [1, 1, 1]


def test_a_row_is_the_same_each_time() -> None:
    rows = rows_of({"x": range(4), "pair": [{"a": i} for i in range(4)]})
    batch = rows.__getitems__([2, 3, 0])
    batch[0]["x"] = torch.tensor(-1)
    batch[0]["pair"]["a"] = torch.tensor(-2)
    assert batch[0] is batch[0] is next(iter(batch))
    collated = default_collate(batch)
    assert collated["x"].tolist() == [-1, 3, 0]
    assert collated["pair"]["a"].tolist() == [-2, 3, 0]


def test_columns_of_rows_that_were_only_read_stay_as_they_are() -> None:
    lists = [[float(i)] * i + [float("nan")] for i in range(4)]
    table = {"x": range(4), "m": [[1, 2], [3, 4]] * 2, "lists": lists}
    batch = rows_of(table, ragged="pad").__getitems__([1, 2])
    assert [len(row["lists"]) for row in batch] == [2, 3]
    assert default_collate(batch)["lists"].shape == (2, 3)
    batch[1]["x"] = torch.tensor(7)
    collated = default_collate(batch)
    assert collated["x"].tolist() == [1, 7]
    assert collated["lists"].shape == (2, 3)


def test_a_transposed_row_is_a_changed_one() -> None:
    cubes = torch.arange(8).reshape(2, 2, 2)
    rows = rows_of({"n": range(2)}).add_column("m", cubes)
    batch = rows.__getitems__([0, 1])
    for row in batch:
        row["m"] = row["m"].T
    assert torch.equal(default_collate(batch)["m"], cubes.transpose(1, 2))


@pytest.mark.parametrize("kind", ["tensor", "memmap", "array"])
def test_select_copies_indices(kind: str, tmp_path: Path) -> None:
    indices: Any = {
        "tensor": lambda: torch.tensor([1, 2]),
        "memmap": lambda: np.memmap(tmp_path / "indices", np.int64, "w+", shape=2),
        "array": lambda: array.array("q", [1, 2]),
    }[kind]()
    indices[0], indices[1] = 1, 2
    view = rows_of({"x": range(5)}).select(indices)
    indices[0] = 4
    assert [int(row["x"]) for row in view] == [1, 2]


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


def test_skips_beside_columns_of_any_type() -> None:
    def odd(value: int) -> int:
        if value % 2 == 0:
            raise ValueError("even")
        return value

    columns = {
        "x": range(6),
        "view": pa.array([f"text {i}" for i in range(6)], pa.string_view()),
        "runs": pa.array([1, 1, 1, 2, 2, 2], pa.run_end_encoded(pa.int32(), pa.int64())),
    }
    rows = rows_of(columns, decode={"x": odd}, on_error="skip", output_format="dict")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = rows.batch(range(6))
    assert batch == {"x": [1, 3, 5], "view": ["text 1", "text 3", "text 5"], "runs": [1, 2, 2]}
    assert rows.skipped == 3


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_rows_of_no_column_are_rows(output_format: str) -> None:
    nothing = rows_of({"x": range(10)}).select_columns([])
    assert len(list(nothing.with_format(output_format))) == 10
    calls = []
    rows = nothing.with_format(output_format).map(lambda row: {"y": calls.append(row) or 1})
    assert calls == [{}] * 10
    assert len(rows) == 10
    assert rows.column_names == ["y"]


def test_a_transform_of_rows_of_no_column() -> None:
    rows = RowDataset(
        ArrowBackend(table=pa.table({"x": range(10)})),
        columns=[],
        transform=lambda row: {**row, "y": 1},
    )
    assert [len(batch["y"]) for batch in DataLoader(rows, batch_size=4)] == [4, 4, 2]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_no_rows_of_tensors(output_format: str) -> None:
    rows = rows_of({"x": range(4)}).add_column("v", torch.zeros(4, 2, 2))
    batch = rows.with_format(output_format)[[]]
    assert len(batch["v"]) == 0


def test_nulls_of_columns_with_dots_in_their_names() -> None:
    columns = {
        "a.b": pa.array([1, None]),
        "a": pa.array([1, None]),
        "s": pa.array([{"f": 1}, {"f": None}]),
    }
    rows = rows_of(columns, nulls={"a.b": 5, "a": 6, "s.f": 7})
    assert rows.select_columns(["a.b"]).batch([1])["a.b"].tolist() == [5]
    assert rows.select_columns(["a"]).batch([1])["a"].tolist() == [6]
    assert rows.rename_column("a", "z").batch([1])["a.b"].tolist() == [5]
    assert rows.rename_column("a.b", "z").batch([1])["z"].tolist() == [5]
    assert rows.rename_column("s", "z").batch([1])["z"]["f"].tolist() == [7]


def test_nulls_of_columns_that_were_replaced_are_forgotten() -> None:
    rows = rows_of({"a": pa.array([1, None]), "b": [1, 2]}, nulls={"a": 5})
    assert rows.map(lambda row: {"a": "text"}).batch([1])["a"] == ["text"]
    assert rows.map(lambda row: {"b": "text"}).batch([1])["a"].tolist() == [5]


def test_options_come_back_with_their_format() -> None:
    rows = rows_of(
        {"x": [1, 2], "l": [[1], [2, 3]]}, ragged="nested", decode={"x": lambda x: x * 10}
    )
    assert [part.tolist() for part in rows.with_format("numpy").batch([0, 1])["l"]] == [[1], [2, 3]]
    arrow = rows.with_format("arrow")
    assert arrow.batch([1])["x"].to_pylist() == [2]
    back = arrow.with_format("torch").batch([0, 1])
    assert back["x"].tolist() == [10, 20]
    assert back["l"].is_nested


@pytest.mark.parametrize(
    ("decode", "dtype"),
    [(int, torch.int64), (float, torch.float64), (bool, torch.bool), (np.float32, torch.float32)],
)
def test_decoded_numbers_are_tensors(decode: Any, dtype: torch.dtype) -> None:
    rows = rows_of({"x": ["1", "2"]}, decode={"x": decode})
    values = next(iter(DataLoader(rows, batch_size=2)))["x"]
    assert values.dtype == dtype
    assert values.tolist() == [decode("1"), decode("2")]
    assert isinstance(rows.with_format("numpy").batch([0, 1])["x"], np.ndarray)


@pytest.mark.parametrize("what", ["x.arrow", pa.table({"x": [1]})], ids=["path", "table"])
def test_rows_need_a_backend(what: Any) -> None:
    with pytest.raises(TypeError, match="ArrowBackend"):
        RowDataset(what)


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
