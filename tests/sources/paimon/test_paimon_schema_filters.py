"""Filters: what pypaimon is told of them never costs a row."""

from __future__ import annotations

import datetime as dt
import logging
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paimon_tables import Warehouse, in_order, numbered, write
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from headrace import OptionError, SchemaError

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("money", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us")),
        ("b", pa.bool_()),
    ]
)
NAN = math.nan
FILES: list[dict[str, list[Any]]] = [
    {"i": [1, 2, None], "x": [5.0, NAN, 5.0], "s": ["a", "b'c", None], "b": [True, None, True]},
    {"i": [2, 2, 2], "x": [0.5, -0.0, 6.0], "s": ["tab\t", "back\\slash", "z"], "b": [False] * 3},
    {"i": [None] * 3, "x": [None, NAN, 1.5], "s": ["", "abc", "abd"], "b": [None] * 3},
    {"i": [7, 8, 9], "x": [1e300, -1e300, 2.0], "s": [None] * 3, "b": [True, False, True]},
]


def rows_of(place: int) -> pa.Table:
    columns: dict[str, Any] = dict(FILES[place])
    columns["id"] = [3 * place + i for i in range(3)]
    columns["f"] = columns["x"] if place != 3 else [1.0, 2.0, 0.1]
    columns["d"] = [dt.date(2020, 1, 1 + place + i) for i in range(3)]
    columns["money"] = [Decimal(place).scaleb(-2), None, Decimal("5.25")]
    columns["at"] = [dt.datetime(2020, 1, 1 + place, i) for i in range(3)]
    return pa.table(
        {name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}
    )


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    made = Warehouse(str(tmp_path_factory.mktemp("filters")))
    table = made.make("rows", SCHEMA, **{"metadata.stats-mode": "full"})
    for place in range(len(FILES)):
        write(table, rows_of(place))
    return made


CONSTANTS: dict[str, list[Any]] = {
    "i": [1, 2, 1.5, 2.0, -1, 2**40],
    "x": [5.0, 6, 0.0, NAN, 1.5, 1e300],
    "f": [5.0, 0.1, 2],
    "s": ["a", "b'c", "tab\t", "back\\slash", "", "abc"],
    "d": [dt.date(2020, 1, 2), dt.date(2020, 1, 5), dt.datetime(2020, 1, 2, 12)],
    "money": [Decimal("5.25"), Decimal("0.01"), 5, 5.25],
    "at": [dt.datetime(2020, 1, 2, 1), dt.date(2020, 1, 3)],
    "b": [True, False],
}
OPERATORS = ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]


@st.composite
def conditions(draw: st.DrawFn) -> ds.Expression:
    name = draw(st.sampled_from(sorted(CONSTANTS)))
    column = ds.field(name)
    kind = draw(st.sampled_from(["compare", "in", "null", "nan", "starts", "between"]))
    some = st.sampled_from(CONSTANTS[name])
    if kind == "in":
        same = [value for value in CONSTANTS[name] if type(value) is type(CONSTANTS[name][0])]
        return column.isin(draw(st.lists(st.sampled_from([*same, None]), max_size=3)))
    if kind == "null":
        return column.is_null(nan_is_null=draw(st.booleans()) and name in "xf")
    if kind == "nan":
        return ds.field("x").is_nan()
    if kind == "starts":
        return pc.starts_with(ds.field("s"), draw(st.sampled_from(["a", "ab", "tab\t", ""])))
    compared = getattr(column, draw(st.sampled_from(OPERATORS)))(draw(some))
    return compared & (column >= draw(some)) if kind == "between" else compared


filters = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=5,
)


@given(keep=filters)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_filters_find_the_rows_that_pyarrow_finds(filtered: Warehouse, keep: ds.Expression) -> None:
    whole = pa.concat_tables(rows_of(place) for place in range(len(FILES)))
    try:
        expected = whole.filter(keep)["id"].to_pylist()
    except pa.ArrowException:
        return
    got = filtered.read("rows", filters=keep, columns=["id"])
    assert [row["id"] for row in in_order(got)] == expected


# A file of nulls only has no bounds, by which pypaimon could tell that nothing is in it.
@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (ds.field("i") > 5, 2),
        (ds.field("i").isin([1, 7]), 3),
        (ds.field("s").is_valid() & (ds.field("i") == 2), 3),
        (ds.field("x") != 5.0, 4),
        (~(ds.field("x") < 1e301), 4),
        (ds.field("i") < 1.5, 2),
        (ds.field("d") <= dt.date(2020, 1, 1), 1),
    ],
)
def test_files_without_such_rows_are_not_read(
    filtered: Warehouse, keep: ds.Expression, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "headrace"):
        dataset = filtered.load("rows", filters=keep)[1]
    assert len(dataset.files) == left
    assert "prune" in caplog.text
    assert f"{left} of 4" in caplog.text


def test_statistics_of_old_names_and_types_prune_nothing_wrongly(warehouse: Warehouse) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("a", pa.int32()), ("b", pa.int32()), ("t", pa.string())]
    )
    table = warehouse.make("renamed", schema, **{"metadata.stats-mode": "full"})
    write(
        table,
        pa.table({"id": [0, 1], "a": [1, 2], "b": [100, 200], "t": ["5", "6"]}, schema=schema),
    )
    warehouse.alter("renamed", SchemaChange.rename_column("a", "c"))
    warehouse.alter("renamed", SchemaChange.rename_column("b", "a"))
    table = warehouse.alter(
        "renamed",
        SchemaChange.rename_column("c", "b"),
        SchemaChange.update_column_type("t", AtomicType("INT")),
    )
    now = pa.schema([("id", pa.int64()), ("b", pa.int32()), ("a", pa.int32()), ("t", pa.int32())])
    write(table, pa.table({"id": [2], "b": [7], "a": [8], "t": [6]}, schema=now))
    for keep, expected in [
        (ds.field("a") == 100, [0]),
        (ds.field("b") < 5, [0, 1]),
        (ds.field("t") == 6, [1, 2]),
        (ds.field("a") == 8, [2]),
    ]:
        got = warehouse.read("renamed", filters=keep)
        assert [row["id"] for row in in_order(got)] == expected


def test_filters_over_partitions_leave_rows_counted(warehouse: Warehouse) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("set", pa.string())])
    table = warehouse.make("parts", schema, partition_keys=["set", "day"])
    rows = [
        {"id": i, "day": dt.date(2020, 1, 1 + i % 3), "set": [None, "a", "b"][i % 2]}
        for i in range(60)
    ]
    data = pa.Table.from_pylist(rows, schema=schema)
    write(table, data)
    for keep in (
        ds.field("day") > dt.date(2020, 1, 1),
        (ds.field("set") != "a") | ds.field("set").is_null(),
        pc.ends_with(ds.field("set"), "a"),
        ds.field("set").is_null() & (ds.field("day") == dt.date(2020, 1, 2)),
        ds.field("set") == "nothing",
    ):
        loader, dataset = warehouse.load("parts", filters=keep, columns=["id"], chunk_size=7)
        got = sorted(row for batch in loader for row in batch["id"].to_pylist())
        assert got == sorted(data.filter(keep)["id"].to_pylist())
        assert dataset.num_rows == len(got)


BUCKETED = {
    "i": (pa.int32(), [1, 2, 3, -7], 2.0),
    "s": (pa.string(), ["a", "b", "ü"], "b"),
    "d": (pa.date32(), [dt.date(2020, 1, 1), dt.date(1969, 1, 1)], dt.date(1969, 1, 1)),
    "m": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-2.25")], Decimal("1.5")),
    "big": (pa.decimal128(30, 2), [Decimal("1.50"), Decimal("-2.25")], Decimal("1.5")),
    "at": (
        pa.timestamp("us"),
        [dt.datetime(2020, 1, 1), dt.datetime(1960, 1, 1, 1)],
        dt.datetime(2020, 1, 1),
    ),
    "ms": (
        pa.timestamp("ms"),
        [dt.datetime(2020, 1, 1), dt.datetime(1960, 1, 1, 1)],
        dt.datetime(2020, 1, 1),
    ),
    "f": (pa.float32(), [0.5, 1.5], 0.5),
}


@pytest.mark.parametrize("name", sorted(BUCKETED))
def test_buckets_are_pruned_by_the_value_that_was_hashed(warehouse: Warehouse, name: str) -> None:
    type_, values, wanted = BUCKETED[name]
    schema = pa.schema([("id", pa.int64()), ("k", type_)])
    table = warehouse.make("buckets", schema, bucket="16", **{"bucket-key": "k"})
    data = pa.table({"id": range(len(values)), "k": pa.array(values, type_)}, schema=schema)
    write(table, data)
    for keep in (ds.field("k") == wanted, ds.field("k").isin([wanted])):
        assert in_order(warehouse.read("buckets", filters=keep)) == data.filter(keep).to_pylist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"part": "x"}, "not partitioned"),
        ({}, "must be values by column"),
        ([], "must be values by column"),
        ("part=1", "must be values by column"),
    ],
)
def test_partition_filters_that_make_no_sense_are_refused(
    warehouse: Warehouse, wrong: Any, message: str
) -> None:
    warehouse.make("plain", numbered(0, 0).schema)
    with pytest.raises(OptionError, match=message):
        warehouse.load("plain", partition_filter=wrong)


def test_partition_filters_of_wrong_names_and_types_are_refused(warehouse: Warehouse) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    warehouse.make("parts", schema, partition_keys=["day"])
    with pytest.raises(OptionError, match=r"'id'.*partitioned by 'day'"):
        warehouse.load("parts", partition_filter={"id": 1})
    with pytest.raises(OptionError, match="not a value of the column 'day'"):
        warehouse.load("parts", partition_filter={"day": "yesterday"})
    write(
        warehouse.table("parts"),
        pa.table({"id": [1, 2], "day": [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]}, schema=schema),
    )
    assert warehouse.read("parts", partition_filter={"day": "2020-01-02"})[0]["id"] == 2
    assert warehouse.load("parts", partition_filter={"day": "2021-01-02"})[1].num_rows == 0


def test_filters_and_columns_that_do_not_fit_are_refused(filtered: Warehouse) -> None:
    with pytest.raises(SchemaError, match="no column 'idd'"):
        filtered.load("rows", columns=["idd"])
    with pytest.raises(SchemaError, match="nothing"):
        filtered.load("rows", filters=ds.field("nothing") == 1)


def test_filters_that_are_wrong_are_errors_in_any_mode(filtered: Warehouse) -> None:
    with pytest.raises(OptionError, match="and not bool"):
        filtered.load("rows", filters=ds.field("i") + 1, on_error="skip")
    with pytest.raises(OptionError, match=r"\.parquet.*cannot be applied"):
        filtered.read("rows", filters=ds.field("s").cast(pa.int64()) > 0, on_error="skip")


def test_a_filter_over_partitions_that_cannot_be_computed(warehouse: Warehouse) -> None:
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    table = warehouse.make("words", schema, partition_keys=["part"])
    write(table, pa.table({"id": [1], "part": ["one"]}, schema=schema))
    with pytest.raises(OptionError, match="cannot be applied"):
        warehouse.load("words", filters=ds.field("part").cast(pa.int64()) > 0, on_error="skip")
