"""Rows that are left by values, and the hashes that find those, against plain Python."""

import math
import struct
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from deletes_written import FILE, STORE, equality_file, position_file
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.iceberg import delete_files
from headrace.sources.iceberg.delete_files import hashes_of_rows
from headrace.sources.iceberg.deletes import DeletesOf

NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
"""another one than that of Python"""
VALUES: dict[str, tuple[pa.DataType, pa.DataType, list[Any]]] = {
    "int": (pa.int32(), pa.int64(), [0, 1, -(1 << 31), None]),
    "long": (pa.int64(), pa.int64(), [0, 1 << 62, None]),
    "float": (pa.float32(), pa.float64(), [0.0, -0.0, 1.5, math.nan, None]),
    "double": (pa.float64(), pa.float64(), [0.0, -0.0, math.inf, math.nan, NAN, None]),
    "bool": (pa.bool_(), pa.bool_(), [True, False, None]),
    "string": (pa.string(), pa.string(), ["", "a", "ä\0", None]),
    "large": (pa.string(), pa.large_string(), ["", "a", None]),
    "words": (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["", "a", None]),
    "binary": (pa.binary(), pa.binary(), [b"", b"\0", b"a", None]),
    "fixed": (pa.binary(2), pa.binary(2), [b"ab", b"\0\0", None]),
    "uuid": (pa.uuid(), pa.uuid(), [uuid.UUID(int=n).bytes for n in (0, 7)] + [None]),
    "uuid in bytes": (pa.binary(16), pa.uuid(), [uuid.UUID(int=n).bytes for n in (1, 2)]),
    "decimal": (
        pa.decimal128(5, 2),
        pa.decimal128(20, 2),
        [Decimal("0.00"), Decimal("1.10"), None],
    ),
    "date": (pa.date32(), pa.date32(), [date(1969, 12, 31), date(2024, 2, 29), None]),
    "time": (pa.time64("us"), pa.time64("us"), [time(0), time(1, 2, 3, 4), None]),
    "timestamp": (pa.timestamp("us"), pa.timestamp("us"), [datetime(1969, 1, 1), None]),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        pa.timestamp("us", "UTC"),
        [datetime(2024, 1, 1, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC), None],
    ),
}


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    return pa.array(values, type_)


def same(value: Any) -> Any:
    """What two values have in common if they are equal for a delete."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return value


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_all_types_delete_their_equals(tmp_path: Path, kind: str) -> None:
    stored, type_, values = VALUES[kind]
    for number, value in enumerate(values):
        for extra in ([], [values[-1]]):
            keys = [value, value, *extra]
            path = tmp_path / f"{number}-{len(extra)}"
            delete = equality_file(path, {5: array_of(keys, stored)})
            table = pa.table({"row": range(len(values)), "\0eq 5": array_of(values, type_)})
            deletes = DeletesOf(equalities=(delete,))
            live = delete_files.live(STORE, deletes, FILE, 0, table, {5: "\0eq 5"})
            gone = {same(key) for key in keys}
            assert live["row"].to_pylist() == [
                n for n, value in enumerate(values) if same(value) not in gone
            ]


@given(st.data())
def test_values_agree_with_sets_of_tuples(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("live")
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    ids = list(range(10, 10 + len(kinds)))
    row = st.tuples(*(st.sampled_from(VALUES[kind][2]) for kind in kinds))
    rows = data.draw(st.lists(row, max_size=20))
    files, gone = [], set()
    for number in range(data.draw(st.integers(1, 3))):
        keys = data.draw(st.lists(row, max_size=5))
        chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(kinds))), min_size=1)))
        columns = {ids[i]: array_of([key[i] for key in keys], VALUES[kinds[i]][0]) for i in chosen}
        files.append(equality_file(path / str(number), columns))
        gone |= {(tuple(chosen), tuple(same(key[i]) for i in chosen)) for key in keys}
    columns = [array_of([r[i] for r in rows], VALUES[kind][1]) for i, kind in enumerate(kinds)]
    cut = data.draw(st.integers(0, len(rows)))
    table = pa.Table.from_arrays(
        [
            pa.chunked_array([column[:cut], column[cut:]])
            for column in [pa.array(range(len(rows)), pa.int64()), *columns]
        ],
        names=["row", *map(str, ids)],
    )
    positions = data.draw(st.lists(st.integers(0, 99), max_size=5))
    deletes = DeletesOf((position_file(path / "p", positions),), None, tuple(files))
    live = delete_files.live(STORE, deletes, FILE, 7, table, {i: str(i) for i in ids})
    assert live["row"].to_pylist() == [
        n
        for n, r in enumerate(rows)
        if n + 7 not in positions
        and not any(tuple(same(r[i]) for i in chosen) == key for chosen, key in gone)
    ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3))), st.data())
def test_rows_with_the_same_hash_are_still_compared(
    rows: list[tuple[str, int]], data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3))))
    different = data.draw(st.integers(1, 3))

    def coarse(columns: list[pa.ChunkedArray]) -> npt.NDArray[np.uint64]:
        return hashes_of_rows(columns) % np.uint64(different) << np.uint64(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delete_files, "hashes_of_rows", coarse)
        table, named = (
            pa.table({"x": pa.array([r[0] for r in some], "string"), "y": [r[1] for r in some]})
            .cast(pa.schema([("x", "string"), ("y", "int64")]))
            .columns
            for some in (rows, keys)
        )
        found = delete_files.EqualityKeys.of(named).matches(table)
    assert found.tolist() == [row in keys for row in rows]


def test_a_value_that_no_key_has_makes_no_pair_of_another_value(monkeypatch: Any) -> None:
    monkeypatch.setattr(
        delete_files, "hashes_of_rows", lambda columns: np.zeros(len(columns[0]), np.uint64)
    )
    keys = pa.table({"x": ["a", "b", "a"], "y": [0, 1, 2]})
    rows = pa.table({"x": ["b", "c", "a"], "y": [9, 2, 2]})
    found = delete_files.EqualityKeys.of(keys.columns).matches(rows.columns)
    assert found.tolist() == [False, False, True]


@pytest.mark.parametrize("kind", sorted({*VALUES} - {"float", "double", "words", "uuid"}))
def test_hashes_are_of_values_wherever_they_lie(kind: str, monkeypatch: Any) -> None:
    values = VALUES[kind][2] * 50
    array = array_of(values, VALUES[kind][0])
    whole = hashes_of_rows([pa.chunked_array([array])])
    assert len(set(whole.tolist())) == len(set(values))
    monkeypatch.setattr(delete_files, "_BYTES_AT_ONCE", 7)
    pieces = pa.chunked_array([array[:1], array[1:1], array[1:90], array[90:]])
    assert hashes_of_rows([pieces]).tolist() == whole.tolist()


def test_hashes_of_several_columns_depend_on_their_order() -> None:
    one, other = (pa.chunked_array([[0, 1, 2, None]]), pa.chunked_array([[1, 0, 2, 3]]))
    assert len({*hashes_of_rows([one, other]).tolist()}) == 4
    assert hashes_of_rows([one, other]).tolist() != hashes_of_rows([other, one]).tolist()


def test_strings_of_zero_bytes_have_different_hashes() -> None:
    column = pa.chunked_array([["", "\0", "\0\0", None]])
    assert len({*hashes_of_rows([column]).tolist()}) == 4


def test_a_million_keys_are_looked_up_in_no_time(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).permutation(1_000_000)
    keys = {1: pa.array(numbers), 2: pa.array(numbers).cast(pa.string())}
    deletes = DeletesOf(equalities=(equality_file(tmp_path / "e", keys),))
    table = pa.table({"x": range(999_000, 1_049_000)})
    table = table.append_column("y", table["x"].cast(pa.string()))
    delete_files.live(STORE, deletes, FILE, 0, table[:1], {1: "x", 2: "y"})
    began = process_time()
    live = delete_files.live(STORE, deletes, FILE, 0, table, {1: "x", 2: "y"})
    assert process_time() - began < 0.3  # hashing a million keys takes longer
    assert live["x"].to_pylist() == list(range(1_000_000, 1_049_000))


def test_a_pair_is_deleted_only_together(tmp_path: Path) -> None:
    delete = equality_file(tmp_path / "e", {1: pa.array([1, 2]), 2: pa.array(["a", None])})
    table = pa.table({"x": [1, 1, 2, 2, None], "y": ["a", None, "a", None, None]})
    live = delete_files.live(
        STORE, DeletesOf(equalities=(delete,)), FILE, 0, table, {1: "x", 2: "y"}
    ).to_pydict()
    assert live == {"x": [1, 2, None], "y": [None, "a", None]}


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_an_empty_equality_file_deletes_nothing(tmp_path: Path, format: str) -> None:
    columns = {1: pa.array([], pa.int32()), 2: pa.array([], pa.string())}
    delete = equality_file(tmp_path / "e", columns, format)
    table = pa.table({"x": [1, None], "y": ["a", None]})
    deletes = DeletesOf(equalities=(delete,))
    assert delete_files.live(STORE, deletes, FILE, 0, table, {1: "x", 2: "y"}) is table


def test_a_column_that_became_wider_between_two_tables(tmp_path: Path) -> None:
    """The same delete file, compared in two types in one process."""
    deletes = DeletesOf(equalities=(equality_file(tmp_path / "e", {1: pa.array([3], "int32")}),))
    for type_ in ("int32", "int64"):
        table = pa.table({"x": pa.array([2, 3], type_)})
        assert delete_files.live(STORE, deletes, FILE, 0, table, {1: "x"})["x"].to_pylist() == [2]


def test_files_that_delete_by_different_columns_are_kept_apart(tmp_path: Path) -> None:
    deletes = DeletesOf(
        equalities=(
            equality_file(tmp_path / "1", {1: pa.array([10])}),
            equality_file(tmp_path / "2", {2: pa.array([20])}),
        )
    )
    table = pa.table({"x": [10, 20, 30], "y": [10, 30, 20]})
    live = delete_files.live(STORE, deletes, FILE, 0, table, {1: "x", 2: "y"})
    assert live.to_pydict() == {"x": [20], "y": [30]}
