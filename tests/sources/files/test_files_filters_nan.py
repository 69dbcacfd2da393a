"""Rows with NaN are found by every filter that keeps them, whatever statistics say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import StructuredDataset
from headrace.sources.parquet._format import bounds_exclude_nan

X, ID, S = pc.field("x"), pc.field("id"), pc.field("s", "y")
NAN = float("nan")
KEEPS_NAN = {
    "not equal": X != 5.0,
    "not less": ~(X < 6),
    "not in": ~X.isin([5.0]),
    "is nan": pc.is_nan(X),
    "null or nan": X.is_null(nan_is_null=True),
    "in nan": X.isin([NAN]),
    "or": (ID < 0) | (X != 5.0),
    "twice not": ~(~(X != 5.0)),
    "compared with a column": X != X,
    "through a function": pc.abs(X) != 5.0,
    "within a struct": S != 5.0,
}
TABLE = pa.table({"x": [5.0, NAN, 5.0], "id": [1, 2, 3], "s": [{"y": 5.0}, {"y": NAN}, {"y": 5.0}]})


def found(path: Path, format_: str, keep: ds.Expression) -> list[int]:
    dataset = StructuredDataset(path, format_, filters=keep, columns=["id"], output_format="dict")
    return [number for batch in dataset for number in batch["id"]]


@pytest.mark.parametrize("format_", ["parquet", "orc"])
@pytest.mark.parametrize("keep", KEEPS_NAN.values(), ids=KEEPS_NAN)
def test_nan_is_found(tmp_path: Path, format_: str, keep: ds.Expression) -> None:
    path = tmp_path / f"file.{format_}"
    write(TABLE, path)
    assert found(path, format_, keep) == TABLE.filter(keep)["id"].to_pylist() == [2]


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".orc":
        orc.write_table(table, str(path))
    else:
        pq.write_table(table, path, row_group_size=3)


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (X > 5.0, 0),
        ((X > 5.0) & (ID > 0), 0),
        ((X > 5.0) | (ID > 100), 0),
        (~(X != 4.0), 1),
        (X == 7, 0),
        (ID > 100, 0),
        (~(X <= 5.0), 1),
        (X != 5.0, 1),
    ],
    ids=str,
)
def test_row_groups_are_still_ruled_out(tmp_path: Path, keep: ds.Expression, left: int) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"x": np.full(10, 5.0), "id": np.arange(10)}), path)
    assert bounds_exclude_nan(keep, pq.read_schema(path)) == (left == 0)
    groups = StructuredDataset(path, filters=keep).files[0].row_groups
    assert groups is not None
    assert len(groups) == left


LEAVES = st.sampled_from(
    [X < 2, X >= 2, X == 1, X != 1, X.isin([1.0, 3.0]), pc.is_nan(X), X.is_null(), X.is_valid(),
     ID < 3, ID >= 3, ID.isin([1, 2]), ID.is_null()]
)  # fmt: skip
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
    ),
    max_leaves=5,
)
ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0, NAN, None]), st.sampled_from([1, 2, 3, None])),
    min_size=1,
    max_size=6,
)


@given(rows=ROWS, keep=FILTERS)
def test_random_filters_find_what_a_table_holds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], keep: ds.Expression
) -> None:
    path = tmp_path_factory.mktemp("nan") / "file.parquet"
    numbers = [row[0] for row in rows]
    table = pa.table(
        {
            "x": pa.array(numbers, pa.float64(), from_pandas=False),
            "id": pa.array([row[1] for row in rows], pa.int64()),
            "place": np.arange(len(rows)),
        }
    )
    pq.write_table(table, path, row_group_size=2)
    dataset = StructuredDataset(path, filters=keep, columns=["place"], output_format="dict")
    places = [place for batch in dataset for place in batch["place"]]
    assert places == table.filter(keep)["place"].to_pylist()


def test_files_that_differ_are_told_apart() -> None:
    """Whatever was asked before: of another file, or of another filter."""
    safe, unsafe = ds.field("a") > 1, ds.field("a") != 1
    floats, integers = pa.schema([("a", pa.float64())]), pa.schema([("a", pa.int64())])
    asked = [(unsafe, floats), (unsafe, integers), (safe, floats), (unsafe, floats)] * 2
    assert [bounds_exclude_nan(*one) for one in asked] == [False, True, True, False] * 2
