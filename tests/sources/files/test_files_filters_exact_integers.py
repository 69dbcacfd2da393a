"""Integer columns compared with floats: exact, on any values, in every format."""

from __future__ import annotations

import functools
import math
import operator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from headrace import StructuredDataset
from headrace.sources.files.filters import put_together, take_apart, with_exact_integers

OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
VALUES: list[int | None] = sorted(
    sign * (power + step)
    for power in (0, 2**24, 2**53, 2**63 - 1)
    for step in (-1, 0, 1)
    for sign in (-1, 1)
    if sign * (power + step) < 2**63
)
VALUES.insert(3, None)
FLOATS = [
    *(0.5, 1.5, -0.0, 1.0, 2.0**24, 2.0**24 + 0.5, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63)),
    *(-(2.0**63) - 2048, 1e300, -1e300, math.inf, -math.inf, math.nan),
]


def kept(expression: ds.Expression, values: list[int | None], type_: pa.DataType) -> list[Any]:
    table = pa.table({"x": pa.array(values, type_)})
    found: list[Any] = table.filter(with_exact_integers(expression, table.schema))["x"].to_pylist()
    return found


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("number", FLOATS)
def test_comparisons_are_those_of_python(name: str, number: float) -> None:
    compare = OPERATORS[name]
    x, constant = pc.field("x"), pa.scalar(number)
    expected = [v for v in VALUES if v is not None and compare(v, number)]
    assert kept(compare(x, constant), VALUES, pa.int64()) == expected
    assert kept(compare(pc.scalar(number), x), VALUES, pa.int64()) == [
        v for v in VALUES if v is not None and compare(number, v)
    ]
    opposite = [v for v in VALUES if v is not None and not compare(v, number)]
    assert kept(~compare(x, constant), VALUES, pa.int64()) == opposite


@given(
    st.sampled_from(["int8", "uint8", "int32", "uint32", "uint64"]),
    st.sampled_from(sorted(OPERATORS)),
    st.floats() | st.integers(-300, 300).map(lambda n: n / 2),
    st.sampled_from(["float", "double"]),
)
def test_other_widths(width: str, name: str, number: float, floating: str) -> None:
    type_ = pa.type_for_alias(width)
    low = 0 if width[0] == "u" else -(1 << (type_.bit_width - 1))
    high = low + (1 << type_.bit_width) - 1
    values: list[int | None] = [low, low + 1, 0, 1, 100, high - 1, high, None]
    constant = pa.scalar(number, pa.type_for_alias(floating))
    exact = constant.as_py()
    expected = [v for v in values if v is not None and OPERATORS[name](v, exact)]
    assert kept(OPERATORS[name](pc.field("x"), constant), values, type_) == expected


def test_null_constants_keep_nothing() -> None:
    null = pa.scalar(None, pa.float64())
    assert kept(pc.field("x") == null, VALUES, pa.int64()) == []
    assert kept(~(pc.field("x") == null), VALUES, pa.int64()) == []


@pytest.mark.parametrize("null", [True, False])
def test_lists_of_floats(null: bool) -> None:
    members = [1.5, 1.0, 2.0**53, 2.0**63, math.nan, math.inf, *([None] if null else [])]
    listed = pc.field("x").isin(pa.array(members, pa.float64()))
    wanted: set[Any] = {1, 2**53, *([None] if null else [])}
    assert kept(listed, VALUES, pa.int64()) == [v for v in VALUES if v in wanted]
    assert kept(~listed, VALUES, pa.int64()) == [v for v in VALUES if v not in wanted]
    assert kept(pc.field("x").isin([1.5]), VALUES, pa.int64()) == []


def test_fields_of_structs_and_other_parts() -> None:
    rows = [{"s": {"a": 2**53 + 1}, "t": "xy"}, {"s": {"a": 0}, "t": "xz"}, {"s": None, "t": "x"}]
    table = pa.Table.from_pylist(rows)
    parts = [pc.field("s", "a") > 0.5, pc.starts_with(pc.field("t"), "x"), pc.field("t") != "q"]
    whole = functools.reduce(operator.and_, parts)
    settled = with_exact_integers(whole, table.schema)
    assert table.filter(settled).to_pylist() == rows[:1]


def test_nothing_is_changed_without_need() -> None:
    schema = pa.schema([("x", pa.int64()), ("f", pa.float64())])
    for same in (pc.field("x") > 1, pc.field("f") > 0.5, pc.field("f").isin([0.5])):
        assert with_exact_integers(same, schema) is same


@pytest.mark.parametrize("count", [2, 3, 10, 3_000])
def test_chains_are_put_together(count: int) -> None:
    chain = functools.reduce(operator.or_, [pc.field("x") == n for n in range(count)])
    mixed = chain & ~(pc.field("s", "a") == "b")
    for expression in (chain, mixed):
        again = put_together(take_apart(expression))
        assert again.equals(expression)


def write(path: Path, format_: str) -> Path:
    """Write the values with the number of each row."""
    table = pa.table({"x": pa.array(VALUES, pa.int64()), "row": pa.array(range(len(VALUES)))})
    path.mkdir()
    match format_:
        case "parquet":
            pq.write_table(table, path / "a.parquet", row_group_size=2)
        case "orc":
            orc.write_table(table, path / "a.orc", stripe_size=1)
        case "csv":
            pa_csv.write_csv(table, path / "a.csv")
    return path


@pytest.mark.parametrize("format_", ["parquet", "orc", "csv"])
def test_files(tmp_path: Path, format_: str) -> None:
    path = write(tmp_path / format_, format_)
    for name, number in [(">", 0.5), ("==", 1.5), ("!=", 1.5), ("<=", 2.0**53), (">", 2.0**53)]:
        rows = [row for row, v in enumerate(VALUES) if v is not None and OPERATORS[name](v, number)]
        dataset = StructuredDataset(path, filters=[("x", name, number)], columns=["row"])
        assert [row for batch in dataset for row in batch["row"].tolist()] == rows
    dataset = StructuredDataset(path, filters=[("x", "in", [1.5, 2.0**24])], columns=["row"])
    found = [row for batch in dataset for row in batch["row"].tolist()]
    assert found == [row for row, v in enumerate(VALUES) if v == 2**24]


def test_values_in_paths(tmp_path: Path) -> None:
    for part in (2**24 + 1, 2**53 + 1, 5):
        folder = tmp_path / "t" / f"part={part}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [2**53 + 1, 0]}), folder / "a.parquet")
    for filters, rows in (
        ([("part", ">", 5.5)], 4),
        ([("part", ">", 5.5), ("x", ">", 0.5)], 2),
        ([("part", "==", 2.0**53)], 0),
    ):
        dataset = StructuredDataset(tmp_path / "t", filters=filters, partitioning="hive")
        assert sum(len(batch["x"]) for batch in dataset) == rows


def test_files_and_row_groups_are_ruled_out(tmp_path: Path) -> None:
    for part, content in ((2**53 + 1, None), (95, b"not read, and not the first path")):
        folder = tmp_path / f"part={part}"
        folder.mkdir()
        if content is not None:
            (folder / "a.parquet").write_bytes(content)
        else:
            table = pa.table({"x": range(2**53, 2**53 + 100)})
            pq.write_table(table, folder / "a.parquet", row_group_size=10)
    dataset = StructuredDataset(
        tmp_path,
        filters=[("part", ">", 2.0**30), ("x", ">=", 2.0**53 + 60)],
        partitioning="hive",
    )
    found = [x for batch in dataset for x in batch["x"].tolist()]
    assert found == list(range(2**53 + 60, 2**53 + 100))
    only_x = StructuredDataset(tmp_path / f"part={2**53 + 1}", filters=[("x", ">=", 2.0**53 + 60)])
    groups = only_x.files[0].row_groups
    assert groups is not None
    assert groups.rows.sum() == 40
