"""Rows and batches: their values, types and formats."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from row_tables import ROWS, make_table, rows_of, sharded
from torch.utils.data import DataLoader, Subset, default_collate

from headrace.access import ArrowBackend, RowDataset
from headrace.errors import ConversionError, OptionError, SchemaError

FORMATS = ["torch", "numpy", "arrow", "dict"]


@pytest.fixture(scope="module")
def rows() -> RowDataset:
    return RowDataset(ArrowBackend(table=make_table()))


def same(left: Any, right: Any) -> bool:
    """Return True if values and their types are the same."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray) and left.dtype == object:
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_a_row_as_tensors(rows: RowDataset) -> None:
    row = rows[7]
    assert type(row) is dict
    assert list(row) == ["id", "small", "vector", "text", "blob", "tags", "pair"]
    assert same(row["id"], torch.tensor(7))
    assert same(row["small"], torch.tensor(7, dtype=torch.int8))
    assert same(row["vector"], torch.tensor([28.0, 29, 30, 31]))
    assert row["text"] == "row 7"
    assert row["blob"] == b""
    assert same(row["tags"], torch.tensor([0, 1, 2], dtype=torch.int32))
    assert same(row["pair"], {"a": torch.tensor(7), "b": "b7"})


@pytest.mark.parametrize("name", [np.int64(7), np.uint8(7), torch.tensor(7), -493, np.int32(-493)])
def test_integers_of_every_kind(rows: RowDataset, name: Any) -> None:
    assert rows[name]["text"] == "row 7"


@pytest.mark.parametrize("name", [ROWS, -ROWS - 1, 10**12])
def test_rows_that_are_not_there(rows: RowDataset, name: int) -> None:
    with pytest.raises(IndexError, match=str(name)):
        rows[name]
    with pytest.raises(IndexError, match=str(name)):
        rows.__getitems__([0, name])


@pytest.mark.parametrize("name", [1.5, None, np.float64(3)])
def test_names_of_no_row(rows: RowDataset, name: object) -> None:
    with pytest.raises(TypeError, match="an integer, a slice, a list"):
        rows[name]


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_batch_is_what_its_rows_are(rows: RowDataset, output_format: str) -> None:
    chosen = [5, 499, -1, 5, 0]
    formatted = rows.with_format(output_format)
    batch = formatted.__getitems__(chosen)
    assert len(batch) == 5
    alone = [formatted[i] for i in chosen]
    if output_format == "arrow":
        assert list(batch) == alone
        assert batch[0] == alone[0]
        assert [row.num_rows for row in alone] == [1] * 5
        return
    assert all(same(dict(row), single) for row, single in zip(batch, alone, strict=True))
    assert same(dict(formatted.__getitems__([5])[0]), alone[0])
    assert same(dict(batch[3]), alone[3])
    assert [row["text"] for row in batch[1:3]] == ["row 499", "row 499"]


def test_a_plain_loader_gets_columns(rows: RowDataset) -> None:
    batch = next(iter(DataLoader(rows, batch_size=4)))
    assert type(batch) is dict
    assert same(batch["id"], torch.arange(4))
    assert same(batch["vector"], torch.arange(16.0).reshape(4, 4))
    assert batch["text"] == ["row 0", "row 1", "row 2", "row 3"]
    assert [len(tags) for tags in batch["tags"]] == [0, 1, 2, 3]
    assert same(batch["pair"]["a"], torch.arange(4))


def test_columns_are_what_collated_rows_are(rows: RowDataset) -> None:
    """Compare with rows that torch collates, in the columns that torch can collate."""
    plain = rows.select_columns(["id", "small", "vector", "text", "blob", "pair"])
    chosen = [3, 300, 299]
    assert same(
        default_collate(plain.__getitems__(chosen)), default_collate([plain[i] for i in chosen])
    )
    assert same(default_collate(list(plain.__getitems__(chosen))), plain[chosen])


def test_a_loader_reads_a_batch_once(rows: RowDataset) -> None:
    class Counting(ArrowBackend):
        takes = 0

        def take(self, *args: Any, **options: Any) -> pa.Table:
            Counting.takes += 1
            return super().take(*args, **options)

    counted = RowDataset(Counting(table=make_table()))
    Counting.takes = 0
    assert len(list(DataLoader(counted, batch_size=100))) == 5
    assert Counting.takes == 5


def test_formats_of_batches(rows: RowDataset) -> None:
    chosen = [2, 1]
    arrow = next(iter(DataLoader(rows.with_format("arrow"), sampler=chosen, batch_size=2)))
    assert arrow.to_pydict() == make_table().take(chosen).to_pydict()
    python = next(iter(DataLoader(rows.with_format("dict"), sampler=chosen, batch_size=2)))
    assert python == make_table().take(chosen).to_pydict()
    numpy = next(iter(DataLoader(rows.with_format("numpy"), sampler=chosen, batch_size=2)))
    assert same(numpy["small"], np.array([2, 1], np.int8))
    assert numpy["text"].tolist() == ["row 2", "row 1"]
    assert default_collate([arrow, arrow]).num_rows == 4


def test_a_collate_function_gets_rows(rows: RowDataset) -> None:
    def collate(batch: Any) -> Any:
        return [(row["id"].item(), row["text"]) for row in batch]

    loader = DataLoader(rows[:6], batch_size=3, collate_fn=collate)
    assert list(loader) == [
        [(0, "row 0"), (1, "row 1"), (2, "row 2")],
        [(3, "row 3"), (4, "row 4"), (5, "row 5")],
    ]


def test_a_transform_gets_rows(rows: RowDataset) -> None:
    small = RowDataset(rows.backend, columns=["id"], transform=lambda row: row["id"] * 2)
    assert same(small[4], torch.tensor(8))
    assert [batch.tolist() for batch in DataLoader(small[:4], batch_size=2)] == [[0, 2], [4, 6]]
    assert [int(value) for value in small[1:3]] == [2, 4]


def test_lists_of_indices_are_batches(rows: RowDataset) -> None:
    for chosen in ([4, 2], np.array([4, 2]), torch.tensor([4, 2]), range(4, 0, -2), (4, 2)):
        assert rows[chosen]["id"].tolist() == [4, 2]
    loader = DataLoader(rows, sampler=[[1, 2], [3]], batch_size=None)
    assert [batch["id"].tolist() for batch in loader] == [[1, 2], [3]]


@pytest.mark.parametrize("output_format", FORMATS)
def test_no_rows(rows: RowDataset, output_format: str) -> None:
    formatted = rows.with_format(output_format)
    assert len(formatted.__getitems__([])) == 0
    assert list(formatted.__getitems__([])) == []
    batch = formatted.batch([])
    names = batch.schema.names if output_format == "arrow" else list(batch)
    assert names == rows.column_names
    assert len(batch["id"]) == 0
    assert list(formatted[:0]) == []


def test_no_columns(rows: RowDataset) -> None:
    nothing = rows.select_columns([])
    assert nothing.column_names == []
    assert len(nothing) == ROWS
    assert nothing[3] == {}


def test_columns_that_are_chosen(rows: RowDataset) -> None:
    chosen = RowDataset(rows.backend, columns=["text", "id"])
    assert chosen.column_names == ["text", "id"]
    assert list(chosen[0]) == ["text", "id"]
    assert list(chosen.select_columns(["id"])[0]) == ["id"]
    assert chosen.schema.names == ["text", "id"]
    with pytest.raises(SchemaError, match="no column 'vector'; there are 'text', 'id'"):
        chosen.select_columns(["vector"])
    with pytest.raises(SchemaError, match="no column 'other'"):
        RowDataset(rows.backend, columns=["other"])


def test_nulls_as_in_loaders() -> None:
    table = pa.table({"x": pa.array([1, None, 3]), "f": pa.array([1.0, None, 2.0])})
    backend = ArrowBackend(table=table)
    with pytest.raises(ConversionError, match="column 'x'"):
        RowDataset(backend)[1]
    assert RowDataset(backend)[0]["x"] == 1
    filled = RowDataset(backend, nulls={"x": -1})
    assert filled[[0, 1, 2]]["x"].tolist() == [1, -1, 3]
    masked = RowDataset(backend, nulls="mask")
    assert masked[1]["x_mask"].item() is True
    assert masked[[0, 1]]["x_mask"].tolist() == [False, True]
    assert list(filled.select_columns(["f"])[0]) == ["f"]
    assert filled.with_format("dict")[1] == {"x": None, "f": None}


@pytest.mark.parametrize("ragged", ["list", "pad", "offsets", "nested"])
def test_ragged_columns(ragged: str) -> None:
    backend = ArrowBackend(table=make_table().select(["tags"]))
    rows = RowDataset(backend, ragged=ragged)
    assert same(rows[6]["tags"], torch.tensor([0, 1], dtype=torch.int32))
    batch = rows.__getitems__([6, 3])
    assert [row["tags"].tolist() for row in batch] == [[0, 1], [0, 1, 2]]
    together = default_collate(batch)["tags"]
    if ragged == "pad":
        assert together.tolist() == [[0, 1, 0], [0, 1, 2]]
    elif ragged == "offsets":
        assert together["offsets"].tolist() == [0, 2, 5]
    else:
        assert [part.tolist() for part in together] == [[0, 1], [0, 1, 2]]


def test_subsets_of_torch(rows: RowDataset) -> None:
    loader = DataLoader(Subset(rows, [9, 4, 2]), batch_size=3)
    assert next(iter(loader))["id"].tolist() == [9, 4, 2]


def test_pickles_are_small(tmp_path: Path) -> None:
    rows = RowDataset(sharded(tmp_path)).shuffle(1)[5:400]
    sent = pickle.dumps(rows)
    assert len(sent) < 20_000
    arrived = pickle.loads(sent)
    assert [row["text"] for row in arrived] == [row["text"] for row in rows]
    assert "395 rows of id, small" in repr(arrived)


def test_wrong_options(rows: RowDataset) -> None:
    with pytest.raises(OptionError, match="output_format"):
        rows.with_format("pandas")
    with pytest.raises(OptionError, match="on_error"):
        RowDataset(rows.backend, on_error="ignore")
    with pytest.raises(OptionError, match="transform must be callable"):
        RowDataset(rows.backend, transform=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a list of names"):
        RowDataset(rows.backend, columns="id")


def test_more_bytes_than_one_array_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check rows that are read in halves; here an array holds 10 rows, instead of 2 GiB of text."""
    rows, take = RowDataset(sharded(tmp_path)), ArrowBackend.take_columns
    expected = rows.batch(range(64))

    def limited(backend: ArrowBackend, indices: Any, *args: Any, **options: Any) -> Any:
        if len(indices) > 10:
            raise OverflowError
        return take(backend, indices, *args, **options)

    monkeypatch.setattr(ArrowBackend, "take_columns", limited)
    actual = rows.batch(range(64))
    assert actual.keys() == expected.keys()
    assert all(same(actual[name], expected[name]) for name in expected)


def test_a_transform_of_rows_of_no_column() -> None:
    rows = RowDataset(
        ArrowBackend(table=pa.table({"x": range(10)})),
        columns=[],
        transform=lambda row: {**row, "y": 1},
    )
    assert [len(batch["y"]) for batch in DataLoader(rows, batch_size=4)] == [4, 4, 2]


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
