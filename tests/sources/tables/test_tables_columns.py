"""Columns by their ids: what a file has under other names, types and places."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ReadError
from headrace.sources.files.protocol import rows_only
from headrace.sources.tables._columns import TableColumn, match_columns

LONG, INT, TEXT = pa.int64(), pa.int32(), pa.string()
DAY, NOON = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12)


def column(id_: int, name: str, type_: Any, default: Any = None) -> TableColumn:
    """A column; ``type_`` is an Arrow type, or a list of columns, or ("list" | "map", columns)."""
    if isinstance(type_, list):
        struct = pa.struct([pa.field(child.name, child.type) for child in type_])
        return TableColumn(id_, name, struct, tuple(type_), default)
    if isinstance(type_, tuple):
        kind, children = type_
        if kind == "list":
            nested = pa.list_(pa.field("element", children[0].type))
        else:
            nested = pa.map_(children[0].type, children[1].type)
        return TableColumn(id_, name, nested, tuple(children), default)
    return TableColumn(id_, name, type_, (), default)


def as_field(one: TableColumn) -> pa.Field:
    """A column as a file has it, with its id."""
    children = [as_field(child) for child in one.children]
    type_ = one.type
    if pa.types.is_struct(type_):
        type_ = pa.struct(children)
    elif pa.types.is_map(type_):
        type_ = pa.map_(children[0].with_nullable(False), children[1])
    elif children:
        type_ = pa.list_(children[0].with_name("element"))
    return pa.field(one.name, type_, metadata={"PARQUET:field_id": str(one.id)})


def read_as(
    file: list[TableColumn], rows: list[dict[str, Any]], wanted: list[TableColumn], **options: Any
) -> list[dict[str, Any]]:
    schema = pa.schema([as_field(one) for one in file])
    table = pa.Table.from_pylist(rows, schema=schema)
    aligned = align(table, schema, wanted, **options)
    # What is cut out of the middle, and what comes in several parts, is no different.
    parts = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert align(parts, schema, wanted, **options).to_pylist() == aligned.to_pylist()
    cut = align(table.slice(1), schema, wanted, **options)
    assert cut.to_pylist() == aligned.slice(1).to_pylist()
    return aligned.to_pylist()  # type: ignore[no-any-return]


def align(
    table: pa.Table, schema: pa.Schema, wanted: list[TableColumn], **options: Any
) -> pa.Table:
    out = pa.schema([pa.field(one.name, one.type) for one in wanted])
    settings = {"constants": {}, "where": "a file", **options}
    found = match_columns(wanted, schema, wanted_schema=out, **settings)
    aligned = found.aligned(table.select(list(dict.fromkeys(found.stored.names))), "a file")
    assert aligned.schema == out
    aligned.validate(full=True)
    return aligned


def test_renamed_reordered_dropped_and_added() -> None:
    file = [column(1, "a", LONG), column(2, "b", TEXT), column(3, "gone", LONG)]
    wanted = [column(4, "a", TEXT), column(2, "c", TEXT), column(1, "b", LONG)]
    rows = [{"a": 1, "b": "x", "gone": 7}, {"a": None, "b": "y", "gone": 8}]
    assert read_as(file, rows, wanted) == [
        {"a": None, "c": "x", "b": 1},
        {"a": None, "c": "y", "b": None},
    ]


@pytest.mark.parametrize(
    ("stored", "value", "wanted", "expected"),
    [
        (INT, 2**31 - 1, LONG, 2**31 - 1),
        (pa.float32(), 0.5, pa.float64(), 0.5),
        (
            pa.decimal128(5, 2),
            decimal.Decimal("1.25"),
            pa.decimal128(12, 2),
            decimal.Decimal("1.25"),
        ),
        (pa.large_string(), "ü", TEXT, "ü"),
        (pa.date32(), DAY, pa.timestamp("us"), datetime.datetime(2024, 2, 29)),
        (pa.timestamp("ms"), NOON, pa.timestamp("us"), NOON),
    ],
)
def test_promoted(stored: Any, value: Any, wanted: Any, expected: Any) -> None:
    rows = [{"x": value}, {"x": None}]
    out = [{"x": expected}, {"x": None}]
    assert read_as([column(1, "x", stored)], rows, [column(1, "x", wanted)]) == out
    inside = [column(9, "s", [column(1, "x", stored)])]
    nested = [column(9, "s", [column(1, "x", wanted)])]
    assert read_as(inside, [{"s": row} for row in rows], nested) == [{"s": row} for row in out]


def test_what_does_not_fit_is_an_error_that_names_the_file() -> None:
    with pytest.raises(ReadError, match="a file: not readable in the types of the table"):
        read_as([column(1, "x", LONG)], [{"x": 2**40}], [column(1, "x", INT)])


def test_constants_come_before_defaults_and_never_before_what_is_stored() -> None:
    wanted = [column(1, "x", LONG, 5), column(2, "y", LONG, 6), column(3, "z", LONG)]
    rows = [{"x": 1}, {"x": None}]
    out = read_as([column(1, "x", LONG)], rows, wanted, constants={1: 100, 2: 200})
    assert out == [{"x": 1, "y": 200, "z": None}, {"x": None, "y": 200, "z": None}]
    out = read_as([column(1, "x", LONG)], rows, wanted, constants={2: None})
    assert out[0] == {"x": 1, "y": None, "z": None}
    assert read_as([column(1, "x", LONG)], rows, wanted)[0] == {"x": 1, "y": 6, "z": None}


def test_structs_in_lists_and_maps_change_as_columns_do() -> None:
    old = [column(5, "x", INT), column(6, "y", TEXT)]
    new = [column(7, "added", LONG, 3), column(5, "renamed", LONG)]
    file = [
        column(1, "l", ("list", [column(2, "element", old)])),
        column(3, "m", ("map", [column(8, "key", TEXT), column(4, "value", old)])),
    ]
    wanted = [
        column(3, "m", ("map", [column(8, "key", TEXT), column(4, "value", new)])),
        column(1, "l", ("list", [column(2, "element", new)])),
    ]
    rows = [
        {"l": [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}], "m": [("k", {"x": 2, "y": "c"})]},
        {"l": None, "m": None},
        {"l": [], "m": []},
        {"l": [{"x": 4, "y": None}], "m": [("k", None), ("l", {"x": 5, "y": "d"})]},
    ]
    assert read_as(file, rows, wanted) == [
        {
            "m": [("k", {"added": 3, "renamed": 2})],
            "l": [{"added": 3, "renamed": 1}, None, {"added": 3, "renamed": None}],
        },
        {"m": None, "l": None},
        {"m": [], "l": []},
        {
            "m": [("k", None), ("l", {"added": 3, "renamed": 5})],
            "l": [{"added": 3, "renamed": 4}],
        },
    ]


@pytest.mark.parametrize("wanted", [pa.float32(), pa.float64()])
def test_null_lists_with_values_beneath(wanted: pa.DataType) -> None:
    """Those of a fixed length have a place for values that are not there."""
    element = pa.field("element", pa.float32(), metadata={"PARQUET:field_id": "2"})
    column_ = column(1, "v", ("list", [column(2, "element", wanted)]))
    values = [[1.0, 2.0], None, [3.0, 4.0], None, None, [5.0, 6.0]]
    for stored in (pa.list_(element, 2), pa.list_(element)):
        schema = pa.schema([pa.field("v", stored, metadata={"PARQUET:field_id": "1"})])
        lists = pa.array(values, pa.list_(element, 2))
        if not pa.types.is_fixed_size_list(stored):
            places = pa.array(range(0, 14, 2), pa.int32())
            lists = pa.ListArray.from_arrays(
                places, lists.values, type=stored, mask=lists.is_null()
            )
        table = pa.Table.from_arrays([lists], schema=schema)
        for start in range(3):
            aligned = align(table.slice(start), schema, [column_])
            assert aligned["v"].to_pylist() == values[start:]


def test_a_field_inside_of_structs_can_be_a_column() -> None:
    file = [column(1, "s", [column(2, "t", [column(3, "x", INT)])])]
    rows = [{"s": {"t": {"x": 1}}}, {"s": {"t": None}}, {"s": None}]
    wanted = [column(3, "hidden", LONG), column(1, "s", [column(2, "u", [column(3, "x", INT)])])]
    assert read_as(file, rows, wanted) == [
        {"hidden": 1, "s": {"u": {"x": 1}}},
        {"hidden": None, "s": {"u": None}},
        {"hidden": None, "s": None},
    ]


def test_names_stand_for_ids_where_a_file_has_none() -> None:
    schema = pa.schema([("old", LONG), ("s", pa.struct([("in", LONG)])), ("other", TEXT)])
    table = pa.table({"old": [1], "s": [{"in": 2}], "other": ["x"]}, schema=schema)
    names = {("old",): 1, ("s",): 2, ("s", "in"): 3}
    wanted = [column(2, "s", [column(3, "new", LONG)]), column(1, "x", LONG), column(4, "o", TEXT)]
    aligned = align(table, schema, wanted, names=names)
    assert aligned.to_pylist() == [{"s": {"new": 2}, "x": 1, "o": None}]


def test_neither_ids_nor_names_is_an_error() -> None:
    with pytest.raises(ReadError, match=r"no field ids.*schema\.name-mapping\.default"):
        align(pa.table({"x": [1]}), pa.schema([("x", LONG)]), [column(1, "x", LONG)])


def test_what_is_as_it_should_be_is_not_copied(tmp_path: Path) -> None:
    file = [column(1, "a", LONG), column(2, "s", [column(3, "x", LONG)])]
    schema = pa.schema([as_field(one) for one in file])
    table = pa.Table.from_pylist([{"a": 1, "s": {"x": 2}}], schema=schema)
    pq.write_table(table, tmp_path / "file.parquet")
    stored = pq.read_table(tmp_path / "file.parquet")
    aligned = align(stored, pq.read_schema(tmp_path / "file.parquet"), file)
    for name in ("a", "s"):
        before, after = stored[name].chunk(0).buffers(), aligned[name].chunk(0).buffers()
        assert [b and b.address for b in before] == [b and b.address for b in after]


def test_no_columns_leave_the_rows() -> None:
    schema = pa.schema([as_field(column(1, "a", LONG))])
    found = match_columns([], schema, wanted_schema=pa.schema([]), constants={}, where="a file")
    assert found.aligned(rows_only(3), "a file").num_rows == 3


# --- random tables, changed at random


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[TableColumn], list[TableColumn]]:
    """Columns of a file, and of its table after some changes."""
    counter = iter(range(1, 1000))

    def fresh(depth: int) -> TableColumn:
        kinds = ["int", "text", "struct", "list", "map"] if depth < 3 else ["int", "text"]
        kind = draw(st.sampled_from(kinds))
        id_ = next(counter)
        if kind in ("int", "text"):
            return column(id_, f"c{id_}", INT if kind == "int" else TEXT)
        if kind == "struct":
            children = [fresh(depth + 1) for _ in range(draw(st.integers(1, 3)))]
            return column(id_, f"c{id_}", children)
        if kind == "list":
            return column(id_, f"c{id_}", ("list", [fresh(depth + 1)]))
        key = column(next(counter), "key", TEXT)
        return column(id_, f"c{id_}", ("map", [key, fresh(depth + 1)]))

    def changed(old: TableColumn) -> TableColumn:
        name = draw(st.sampled_from([old.name, f"r{old.id}"]))
        if pa.types.is_struct(old.type):
            return column(old.id, name, changed_all(old.children))
        if pa.types.is_map(old.type):
            return column(old.id, name, ("map", [old.children[0], changed(old.children[1])]))
        if old.children:
            return column(old.id, name, ("list", [changed(old.children[0])]))
        return column(old.id, name, LONG if old.type == INT and draw(st.booleans()) else old.type)

    def changed_all(columns: Any) -> list[TableColumn]:
        kept = [changed(one) for one in columns if draw(st.integers(0, 4))]
        for _ in range(draw(st.integers(0, 2))):
            id_ = next(counter)
            kept.append(column(id_, f"n{id_}", LONG, draw(st.sampled_from([None, 7]))))
        kept = draw(st.permutations(kept))
        return kept or [column(next(counter), "only", LONG)]

    file = [fresh(0) for _ in range(draw(st.integers(1, 4)))]
    return file, changed_all(file)


def values(draw: st.DrawFn, one: TableColumn) -> Any:
    if draw(st.integers(0, 5)) == 0:
        return None
    if pa.types.is_struct(one.type):
        return {child.name: values(draw, child) for child in one.children}
    if pa.types.is_map(one.type):
        size = draw(st.integers(0, 2))
        return [(f"k{i}", values(draw, one.children[1])) for i in range(size)]
    if one.children:
        return [values(draw, one.children[0]) for _ in range(draw(st.integers(0, 3)))]
    return draw(st.integers(-5, 5)) if one.type in (INT, LONG) else draw(st.text(max_size=2))


def expected(value: Any, old: TableColumn, new: TableColumn) -> Any:
    """What a value of the file is in the table, in plain Python."""
    if value is None or not old.children:
        return value
    if pa.types.is_struct(old.type):
        return expected_row(value, old.children, new.children)
    if pa.types.is_map(old.type):
        return [(k, expected(v, old.children[1], new.children[1])) for k, v in value]
    return [expected(one, old.children[0], new.children[0]) for one in value]


def expected_row(row: dict[str, Any], old: Any, new: Any) -> dict[str, Any]:
    by_id = {one.id: one for one in old}
    return {
        one.name: expected(row[by_id[one.id].name], by_id[one.id], one)
        if one.id in by_id
        else one.default
        for one in new
    }


@given(st.data())
def test_random_changes(data: st.DataObject) -> None:
    file, wanted = data.draw(tables())

    @st.composite
    def rows_of(draw: st.DrawFn) -> list[dict[str, Any]]:
        count = draw(st.integers(1, 6))
        return [{one.name: values(draw, one) for one in file} for _ in range(count)]

    rows = data.draw(rows_of())
    assert read_as(file, rows, wanted) == [expected_row(row, file, wanted) for row in rows]
