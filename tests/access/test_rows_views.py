"""Views: slices, selections and shuffles that compose, and copies in memory."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_tables import ROWS, make_table, rows_of, sharded

from headrace.access import ArrowBackend, RowDataset
from headrace.access.rows._views import View
from headrace.errors import OptionError, SchemaError


@pytest.fixture(scope="module")
def rows() -> RowDataset:
    return RowDataset(ArrowBackend(table=make_table()))


def ids(rows: RowDataset) -> list[int]:
    return [int(row["id"]) for row in rows.select_columns(["id"])]


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("slice"),
            st.builds(
                slice,
                st.one_of(st.none(), st.integers(-60, 60)),
                st.one_of(st.none(), st.integers(-60, 60)),
                st.one_of(st.none(), st.integers(-3, 3).filter(bool)),
            ),
        ),
        st.tuples(st.just("select"), st.lists(st.integers(0, 1000), max_size=30)),
        st.tuples(st.just("shuffle"), st.integers(0, 5)),
    ),
    max_size=5,
)


@given(steps=steps)
def test_views_compose_like_lists(steps: list[tuple[str, Any]]) -> None:
    view, model = View(50), list(range(50))
    for kind, how in steps:
        if kind == "slice":
            view, model = view.sliced(how), model[how]
        elif kind == "select":
            chosen = [place % len(model) for place in how] if model else []
            view, model = view.selected(chosen), [model[place] for place in chosen]
        else:
            view = view.shuffled(how)
            order = view.steps[0].at(np.arange(len(model)))
            model = [model[place] for place in order.tolist()]
    assert view.count == len(model)
    assert view.at(np.arange(view.count)).tolist() == model
    if view.is_run and model:
        assert model == list(range(view.start, view.start + len(model)))


def test_slices(rows: RowDataset) -> None:
    assert ids(rows[10:13]) == [10, 11, 12]
    assert ids(rows[-2:]) == [498, 499]
    assert ids(rows[20:10:-4]) == [20, 16, 12]
    assert ids(rows[::-100][1:3]) == [399, 299]
    assert len(rows[600:]) == 0
    assert rows[10:20][-1]["id"] == 19
    with pytest.raises(IndexError, match="there is no row 10: there are 10"):
        rows[10:20][10]


def test_select(rows: RowDataset) -> None:
    assert ids(rows.select([5, 5, -1])) == [5, 5, 499]
    assert ids(rows.select(np.array([7, 3])).select([1])) == [3]
    assert ids(rows.select(range(4, 0, -2))) == [4, 2]
    chosen = np.array([1, 2])
    view = rows.select(chosen)
    chosen[:] = 0
    assert ids(view) == [1, 2]
    assert ids(rows.select(range(-2, 2))) == [498, 499, 0, 1]
    with pytest.raises(IndexError, match="500"):
        rows.select([0, 500])
    with pytest.raises(IndexError, match="500"):
        rows.select(range(490, 501))


def test_shuffle(rows: RowDataset) -> None:
    mixed = ids(rows.shuffle(3))
    assert sorted(mixed) == list(range(ROWS))
    assert mixed != list(range(ROWS))
    assert ids(rows.shuffle(3)) == mixed
    assert ids(rows.shuffle(4)) != mixed
    assert ids(rows.shuffle(3)[:5]) == mixed[:5]
    assert sorted(ids(rows[100:110].shuffle(1))) == list(range(100, 110))
    assert len(rows.shuffle(3)) == ROWS
    with pytest.raises(OptionError, match="seed must be an int"):
        rows.shuffle(None)  # type: ignore[arg-type]


def test_views_of_very_many_rows_take_no_memory() -> None:
    view = View(10**13).shuffled(1).sliced(slice(None, None, 3)).selected(range(10**12))
    places = view.shuffled(2).at(np.arange(10**12 - 100, 10**12))
    assert len(set(places.tolist())) == 100


def test_flatten(tmp_path: Path) -> None:
    rows = RowDataset(sharded(tmp_path))
    mixed = rows.shuffle(5)[:50]
    flat = mixed.flatten()
    assert isinstance(flat.backend, ArrowBackend)
    assert flat.backend.num_rows == 50
    assert flat.backend.table.equals(make_table().take(ids(mixed)))
    assert ids(flat) == ids(mixed)
    run = rows[100:200].select_columns(["text", "id"]).flatten()
    assert run.backend.table.equals(make_table().slice(100, 100).select(["text", "id"]))
    assert rows[:0].flatten().num_rows == 0


def test_rename_column() -> None:
    table = pa.table({"x": pa.array([1, None]), "y": ["a", "b"]})
    rows = RowDataset(ArrowBackend(table=table), nulls={"x": 0}).rename_column("x", "z")
    assert rows.column_names == ["z", "y"]
    assert [int(row["z"]) for row in rows] == [1, 0]
    with pytest.raises(SchemaError, match="no column 'x'"):
        rows.rename_column("x", "w")
    with pytest.raises(SchemaError, match="there is a column 'y' already"):
        rows.rename_column("z", "y")


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (list(range(10)), pa.int64()),
        (np.arange(10, dtype=np.float32), pa.float32()),
        (torch.zeros(10, 3), pa.list_(pa.float32(), 3)),
        (np.zeros((10, 2, 3), np.uint8), pa.fixed_shape_tensor(pa.uint8(), [2, 3])),
        ([np.arange(i) for i in range(10)], pa.list_(pa.int64())),
        ([torch.tensor(1.5)] * 10, pa.float32()),
        (pa.array(range(10), pa.int8()), pa.int8()),
        (["a"] * 9 + [None], pa.string()),
    ],
    ids=["list", "array", "tensor", "cubes", "ragged", "scalars", "arrow", "text"],
)
def test_add_column(rows: RowDataset, values: Any, type_: pa.DataType) -> None:
    wider = rows[10:20].select_columns(["id"]).add_column("new", values)
    assert wider.column_names == ["id", "new"]
    assert wider.schema.field("new").type == type_
    assert ids(wider) == list(range(10, 20))


def test_add_column_refuses(rows: RowDataset) -> None:
    with pytest.raises(OptionError, match="'new' has 3 values for 500 rows"):
        rows.add_column("new", [1, 2, 3])
    with pytest.raises(SchemaError, match="there is a column 'id' already"):
        rows.add_column("id", range(ROWS))
    with pytest.raises(SchemaError, match="'odd': Arrow has no type"):
        rows[:2].add_column("odd", [1, "a"])


def test_map_of_rows(rows: RowDataset) -> None:
    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {"small": row["small"] + 1, "length": len(row["text"]), "unit": torch.ones(2)}

    result = rows.shuffle(2)[:20].map(double)
    assert result.schema.field("small").type == pa.int8()
    assert result.schema.field("unit").type == pa.list_(pa.float32(), 2)
    row, origin = result[4], rows.shuffle(2)[4]
    assert row["small"] == origin["small"] + 1
    assert row["length"] == len(origin["text"])
    assert row["text"] == origin["text"]
    assert isinstance(result.backend, ArrowBackend)


def test_map_of_batches(rows: RowDataset) -> None:
    sizes = []

    def lengths(batch: dict[str, list[Any]]) -> dict[str, Any]:
        sizes.append(len(batch["id"]))
        return {"text": np.array([len(text) for text in batch["text"]])}

    result = rows.map(lengths, batched=True, batch_size=200)
    assert sizes == [200, 200, 100]
    assert result.schema.field("text").type == pa.int64()
    assert result[499]["text"] == 7


def test_map_refuses(rows: RowDataset) -> None:
    with pytest.raises(OptionError, match="row 0 became None"):
        rows.map(lambda row: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(SchemaError, match=r"row 1 has the columns \['b'\]"):
        rows.map(lambda row: {"b" if row["id"] else "a": 1})
    with pytest.raises(OptionError, match="'x' has 1 values for the 500 rows"):
        rows.map(lambda batch: {"x": [1]}, batched=True)
    with pytest.raises(SchemaError, match="from row 250 on"):
        rows.map(lambda batch: {f"x{batch['id'][0]}": batch["id"]}, batched=True, batch_size=250)
    with pytest.raises(OptionError, match="batch_size"):
        rows.map(lambda row: row, batch_size=0)


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
