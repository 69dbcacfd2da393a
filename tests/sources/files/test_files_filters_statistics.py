"""Filters keep the same rows whatever statistics say, and states know them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import StateMismatchError, StructuredDataset

NUMBERS = pc.field("n")


def ids(dataset: StructuredDataset) -> list[int]:
    return [value for batch in dataset for value in batch["id"].tolist()]


def write(path: Path, **columns: Any) -> Path:
    size = len(next(iter(columns.values())))
    table = pa.table({"id": pa.array(range(size)), **columns})
    pq.write_table(table, path, row_group_size=10)
    return path


def test_row_groups_without_wanted_rows_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", n=pa.array(range(100)))
    dataset = StructuredDataset(path, filters=(NUMBERS >= 20) & (NUMBERS < 55))
    groups = dataset.files[0].row_groups
    assert groups is not None
    assert groups.start.tolist() == [20, 30, 40, 50]
    assert dataset.num_rows is None
    assert ids(dataset) == list(range(20, 55))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None if n == 33 else n for n in range(100)], pa.int64()),
        pa.array([float("nan") if n == 33 else float(n) for n in range(100)]),
    ],
    ids=["null", "NaN"],
)
def test_values_that_statistics_do_not_tell_of(tmp_path: Path, column: pa.Array) -> None:
    path = write(tmp_path / "a.parquet", n=column)
    dataset = StructuredDataset(path, filters=(NUMBERS >= 20) & (NUMBERS < 50))
    assert ids(dataset) == [n for n in range(20, 50) if n != 33]


def test_a_state_knows_the_filter(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", n=pa.array(range(100)))
    filtered = StructuredDataset(path, filters=NUMBERS >= 20, batch_size=7)
    state = filtered.state_dict()
    StructuredDataset(path, filters=NUMBERS >= 20, batch_size=7).load_state_dict(state)
    with pytest.raises(StateMismatchError):
        StructuredDataset(path, batch_size=7).load_state_dict(state)


def test_a_given_schema_is_not_what_statistics_are_of(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", n=pa.array([str(n) for n in range(100)]))
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    dataset = StructuredDataset(path, schema=schema, filters=NUMBERS >= 20)
    assert ids(dataset) == list(range(20, 100))


@pytest.mark.parametrize("least", [0, 5], ids=["every row", "some rows"])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=["other type", "same type"])
def test_statistics_are_not_those_of_a_column_of_the_path(
    tmp_path: Path, least: int, kind: pa.DataType
) -> None:
    for key in (1, 2):
        (tmp_path / f"k={key}").mkdir()
        stored = pa.array([100] * 10, kind)
        write(tmp_path / f"k={key}" / "a.parquet", k=stored, n=pa.array(range(10)))
    keep = (pc.field("k") == 2) & (pc.field("n") >= least)
    dataset = StructuredDataset(tmp_path, partitioning="hive", filters=keep)
    assert ids(dataset) == list(range(least, 10))


def test_statistics_of_other_columns_hold_beside_a_column_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "k=1").mkdir()
    write(tmp_path / "k=1" / "a.parquet", k=pa.array([100] * 30), n=pa.array(range(30)))
    dataset = StructuredDataset(tmp_path, partitioning="hive", filters=NUMBERS >= 10)
    groups = dataset.files[0].row_groups
    assert groups is not None
    assert groups.start.tolist() == [10, 20]
    assert ids(dataset) == list(range(10, 30))


@pytest.mark.parametrize(
    ("stored", "keep"),
    [
        (([3, 3], [3.5]), pc.divide(NUMBERS, 2) > 1.2),
        (([3, 3], [3.5]), pc.divide(NUMBERS, 2) < 1.2),
        (([3, 3], [3.5]), NUMBERS > 3),
    ],
    ids=["of none", "of all", "compared"],
)
def test_files_in_other_types_than_the_data_set(
    tmp_path: Path, stored: tuple[list[Any], ...], keep: Any
) -> None:
    """An int divides otherwise than the float that it becomes beside others."""
    tables = []
    for number, values in enumerate(stored):
        table = pa.table({"id": [10 * number + i for i in range(len(values))], "n": values})
        pq.write_table(table, tmp_path / f"{number}.parquet")
        tables.append(table)
    whole = pa.concat_tables(tables, promote_options="permissive")
    expected = whole.filter(keep)["id"].to_pylist()
    assert ids(StructuredDataset(tmp_path, filters=keep)) == expected


def test_a_state_knows_every_value_of_a_long_list(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", n=pa.array(range(100)))
    values = list(range(1000))
    state = StructuredDataset(path, filters=NUMBERS.isin(values)).state_dict()
    StructuredDataset(path, filters=NUMBERS.isin(values)).load_state_dict(state)
    values[500] = -1
    with pytest.raises(StateMismatchError, match="filters"):
        StructuredDataset(path, filters=NUMBERS.isin(values)).load_state_dict(state)


VALUES = st.one_of(st.none(), st.integers(-3, 8))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ba", "z"]))
NAMES = {"n": NUMBERS, "f": pc.field("f"), "s": pc.field("s")}


@st.composite
def filters(draw: st.DrawFn, depth: int = 2) -> Any:
    if depth and draw(st.booleans()):
        left, right = draw(filters(depth - 1)), draw(filters(depth - 1))
        return draw(st.sampled_from([left & right, left | right, ~left]))
    name = draw(st.sampled_from(sorted(NAMES)))
    value: Any = draw(st.sampled_from(["a", "b"]) if name == "s" else st.integers(-2, 7))
    field = NAMES[name]
    return draw(
        st.sampled_from(
            [field >= value, field < value, field == value, field != value, field.is_valid()]
        )
    )


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.lists(st.tuples(VALUES, VALUES, TEXTS), min_size=1, max_size=40),
    ordered=st.booleans(),
    keep=filters(),
)
def test_rows_are_those_that_pyarrow_keeps(
    tmp_path: Path, data: list[tuple[Any, Any, Any]], ordered: bool, keep: Any
) -> None:
    if ordered:  # so that statistics have something to tell
        data.sort(key=lambda row: (row[0] is None, row[0] or 0))
    numbers, floats, texts = zip(*data, strict=True)
    real = [float("nan") if value == 8 else value for value in floats]
    table = pa.table(
        {
            "id": pa.array(range(len(data))),
            "n": pa.array(numbers, pa.int64()),
            "f": pa.array(real, pa.float64(), from_pandas=False),
            "s": pa.array(texts, pa.string()),
        }
    )
    path = tmp_path / f"{next(_numbers)}.parquet"
    pq.write_table(table, path, row_group_size=5)
    dataset = StructuredDataset(path, columns=["id"], filters=keep, batch_size=4)
    assert ids(dataset) == table.filter(keep)["id"].to_pylist()
    path.unlink()


_numbers = itertools.count()
