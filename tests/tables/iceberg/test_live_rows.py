"""Rows that are left: by positions, by vectors, by values, against plain Python."""

import math
import pickle
import struct
import uuid
import zlib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from penstock.errors import ReadError
from penstock.model import DataFileInfo
from penstock.storage.local import LocalStore
from penstock.tables.iceberg import equality_keys, row_hashes
from penstock.tables.iceberg.deletes import (
    NO_DELETES,
    DeletesOf,
    DeletionVector,
    EqualityDeleteFile,
    PositionDeleteFile,
)
from penstock.tables.iceberg.live_rows import LiveRows
from penstock.tables.iceberg.row_hashes import hashes_of_rows

STORE = LocalStore()
LIVE = pickle.loads(pickle.dumps(LiveRows()))
DATA = "s3://b/data.parquet"
FILE = DataFileInfo(DATA, 1000, 100)


def position_file(path: Path, rows: list[int], data_path: str = DATA) -> PositionDeleteFile:
    table = pa.table(
        {"file_path": pa.array([data_path] * len(rows), pa.string()), "pos": pa.array(rows)}
    )
    pq.write_table(table.cast(pa.schema([("file_path", "string"), ("pos", "int64")])), path)
    return PositionDeleteFile(str(path), path.stat().st_size, "parquet")


def equality_file(
    path: Path, columns: dict[int, pa.Array], format: str = "parquet"
) -> EqualityDeleteFile:
    key = {"parquet": "PARQUET:field_id", "orc": "iceberg.id"}[format]
    fields = [pa.field(f"old{i}", a.type, metadata={key: str(i)}) for i, a in columns.items()]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    if format == "parquet":
        pq.write_table(table, path)
    else:
        orc.write_table(table, str(path))
    return EqualityDeleteFile(str(path), path.stat().st_size, format, tuple(sorted(columns)))


def vector_file(path: Path, rows: list[int]) -> DeletionVector:
    body = bytes.fromhex("d1d33964") + pyroaring.BitMap64(rows).serialize()
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    path.write_bytes(b"PFA1" + blob + b"PFA1")
    return DeletionVector(str(path), path.stat().st_size, 4, len(blob), len(set(rows)))


def rows_of(first: int, count: int) -> pa.Table:
    """A table that says which rows of a file it has."""
    return pa.table({"row": pa.array(range(first, first + count), pa.int64())})


def left(deletes: DeletesOf, first: int, count: int) -> list[int]:
    rows: list[int] = LIVE.live(STORE, deletes, FILE, first, rows_of(first, count))[
        "row"
    ].to_pylist()
    return rows


def test_a_table_of_which_nothing_is_deleted_is_itself(tmp_path: Path) -> None:
    table = rows_of(10, 5)
    for deletes in (
        NO_DELETES,
        DeletesOf((position_file(tmp_path / "1", [9, 15]),)),
        DeletesOf((position_file(tmp_path / "2", []),)),
        DeletesOf((position_file(tmp_path / "3", [12], "s3://b/other"),)),
        DeletesOf(vector=vector_file(tmp_path / "4", [9, 15])),
    ):
        assert LIVE.live(STORE, deletes, FILE, 10, table) is table


def test_positions_are_those_of_the_file_wherever_a_table_begins(tmp_path: Path) -> None:
    deletes = DeletesOf((position_file(tmp_path / "d", [0, 4, 5, 99, 4]),))
    assert left(deletes, 0, 6) == [1, 2, 3]
    assert left(deletes, 4, 3) == [6]
    assert left(deletes, 5, 1) == []
    assert left(deletes, 98, 2) == [98]
    assert left(deletes, 0, 100) == [n for n in range(100) if n not in (0, 4, 5, 99)]


def test_several_files_and_a_vector(tmp_path: Path) -> None:
    files = position_file(tmp_path / "1", [1, 2, 3]), position_file(tmp_path / "2", [3, 4])
    assert left(DeletesOf(files), 0, 6) == [0, 5]
    assert left(DeletesOf(vector=vector_file(tmp_path / "v", [0, 5, 99])), 0, 6) == [1, 2, 3, 4]


def test_all_and_no_rows(tmp_path: Path) -> None:
    deletes = DeletesOf((position_file(tmp_path / "d", list(range(100))),))
    assert left(deletes, 0, 100) == []
    assert left(deletes, 50, 0) == []
    schema = LIVE.live(STORE, deletes, FILE, 0, rows_of(0, 10)).schema
    assert schema == rows_of(0, 0).schema


def test_rows_without_columns_are_counted(tmp_path: Path) -> None:
    deletes = DeletesOf((position_file(tmp_path / "d", [1, 2]),))
    table = rows_of(0, 10).select([])
    assert LIVE.live(STORE, deletes, FILE, 0, table).num_rows == 8


def test_the_path_is_the_one_of_the_manifest(tmp_path: Path) -> None:
    deletes = DeletesOf((position_file(tmp_path / "d", [1], "s3a://b/data"),))
    live = LIVE.live(STORE, deletes, FILE, 0, rows_of(0, 3), data_path="s3a://b/data")
    assert live["row"].to_pylist() == [0, 2]


def test_rows_past_the_end_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"d names row 100 of s3://b/data\.parquet, which has 100"):
        left(DeletesOf((position_file(tmp_path / "d", [100]),)), 0, 1)
    with pytest.raises(ReadError, match=r"vector in .*v names row 100 of s3://b/data\.parquet"):
        left(DeletesOf(vector=vector_file(tmp_path / "v", [5, 100])), 0, 1)


def test_nothing_is_read_without_the_deletes(tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"torn")
    where = str(tmp_path / "torn")
    equality = EqualityDeleteFile(where, 4, "parquet", (1,))
    for deletes in (
        DeletesOf((PositionDeleteFile(where, 4, "parquet"),)),
        DeletesOf(vector=DeletionVector(where, 4, 0, 4, 1)),
        DeletesOf(equalities=(equality,)),
    ):
        with pytest.raises(ReadError, match=r"s3://b/data\.parquet.*torn"):
            LIVE.live(STORE, deletes, FILE, 0, rows_of(0, 1), {1: "row"})


def test_a_column_that_was_not_read_is_an_error(tmp_path: Path) -> None:
    deletes = DeletesOf(equalities=(equality_file(tmp_path / "e", {7: pa.array([1])}),))
    for columns in (None, {1: "row"}, {7: "gone"}):
        with pytest.raises(ReadError, match=r"field ids \[7\], which were not read"):
            LIVE.live(STORE, deletes, FILE, 0, rows_of(0, 1), columns)


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=3),
    st.booleans(),
    st.integers(0, 99),
    st.integers(0, 50),
)
def test_positions_agree_with_a_set(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[int]],
    as_vector: bool,
    first: int,
    count: int,
) -> None:
    path = tmp_path_factory.mktemp("live")
    gone = {row for rows in files for row in rows}
    if as_vector:
        deletes = DeletesOf(vector=vector_file(path / "v", sorted(gone)))
    else:
        deletes = DeletesOf(
            tuple(position_file(path / str(n), rows) for n, rows in enumerate(files))
        )
    count = min(count, 100 - first)
    assert left(deletes, first, count) == [
        row for row in range(first, first + count) if row not in gone
    ]


def test_chunks_of_a_file_have_each_live_row_once(tmp_path: Path) -> None:
    gone = set(np.random.default_rng(3).integers(0, 100, 40).tolist())
    deletes = DeletesOf((position_file(tmp_path / "d", sorted(gone)),))
    for size in (1, 3, 7, 100):
        rows = [r for at in range(0, 100, size) for r in left(deletes, at, min(size, 100 - at))]
        assert rows == [row for row in range(100) if row not in gone]


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
            live = LIVE.live(STORE, deletes, FILE, 0, table, {5: "\0eq 5"})
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
    live = LIVE.live(STORE, deletes, FILE, 7, table, {i: str(i) for i in ids})
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
        patch.setattr(equality_keys, "hashes_of_rows", coarse)
        table, named = (
            pa.table({"x": pa.array([r[0] for r in some], "string"), "y": [r[1] for r in some]})
            .cast(pa.schema([("x", "string"), ("y", "int64")]))
            .columns
            for some in (rows, keys)
        )
        found = equality_keys.EqualityKeys.of(named).matches(table)
    assert found.tolist() == [row in keys for row in rows]


def test_a_value_that_no_key_has_makes_no_pair_of_another_value(monkeypatch: Any) -> None:
    monkeypatch.setattr(
        equality_keys, "hashes_of_rows", lambda columns: np.zeros(len(columns[0]), np.uint64)
    )
    keys = pa.table({"x": ["a", "b", "a"], "y": [0, 1, 2]})
    rows = pa.table({"x": ["b", "c", "a"], "y": [9, 2, 2]})
    found = equality_keys.EqualityKeys.of(keys.columns).matches(rows.columns)
    assert found.tolist() == [False, False, True]


@pytest.mark.parametrize("kind", sorted({*VALUES} - {"float", "double", "words", "uuid"}))
def test_hashes_are_of_values_wherever_they_lie(kind: str, monkeypatch: Any) -> None:
    values = VALUES[kind][2] * 50
    array = array_of(values, VALUES[kind][0])
    whole = hashes_of_rows([pa.chunked_array([array])])
    assert len(set(whole.tolist())) == len(set(values))
    monkeypatch.setattr(row_hashes, "_BYTES_AT_ONCE", 7)
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
    LIVE.live(STORE, deletes, FILE, 0, table[:1], {1: "x", 2: "y"})
    began = process_time()
    live = LIVE.live(STORE, deletes, FILE, 0, table, {1: "x", 2: "y"})
    assert process_time() - began < 0.3  # hashing a million keys takes longer
    assert live["x"].to_pylist() == list(range(1_000_000, 1_049_000))


def test_a_pair_is_deleted_only_together(tmp_path: Path) -> None:
    delete = equality_file(tmp_path / "e", {1: pa.array([1, 2]), 2: pa.array(["a", None])})
    table = pa.table({"x": [1, 1, 2, 2, None], "y": ["a", None, "a", None, None]})
    live = LIVE.live(
        STORE, DeletesOf(equalities=(delete,)), FILE, 0, table, {1: "x", 2: "y"}
    ).to_pydict()
    assert live == {"x": [1, 2, None], "y": [None, "a", None]}


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_an_empty_equality_file_deletes_nothing(tmp_path: Path, format: str) -> None:
    columns = {1: pa.array([], pa.int32()), 2: pa.array([], pa.string())}
    delete = equality_file(tmp_path / "e", columns, format)
    table = pa.table({"x": [1, None], "y": ["a", None]})
    deletes = DeletesOf(equalities=(delete,))
    assert LIVE.live(STORE, deletes, FILE, 0, table, {1: "x", 2: "y"}) is table


def test_a_column_that_became_wider_between_two_tables(tmp_path: Path) -> None:
    """The same delete file, compared in two types in one process."""
    deletes = DeletesOf(equalities=(equality_file(tmp_path / "e", {1: pa.array([3], "int32")}),))
    for type_ in ("int32", "int64"):
        table = pa.table({"x": pa.array([2, 3], type_)})
        assert LIVE.live(STORE, deletes, FILE, 0, table, {1: "x"})["x"].to_pylist() == [2]


def test_what_does_not_fit_in_the_cache_is_read_again(tmp_path: Path) -> None:
    deletes = DeletesOf(
        (position_file(tmp_path / "d", [1]),),
        None,
        (equality_file(tmp_path / "e", {1: pa.array([0])}),),
    )
    for _ in range(2):
        live = LiveRows(cache_bytes=0).live(STORE, deletes, FILE, 0, rows_of(0, 3), {1: "row"})
        assert live["row"].to_pylist() == [2]


def test_files_that_delete_by_different_columns_are_kept_apart(tmp_path: Path) -> None:
    deletes = DeletesOf(
        equalities=(
            equality_file(tmp_path / "1", {1: pa.array([10])}),
            equality_file(tmp_path / "2", {2: pa.array([20])}),
        )
    )
    table = pa.table({"x": [10, 20, 30], "y": [10, 30, 20]})
    live = LIVE.live(STORE, deletes, FILE, 0, table, {1: "x", 2: "y"})
    assert live.to_pydict() == {"x": [20], "y": [30]}


def test_a_delete_file_of_two_data_files(tmp_path: Path) -> None:
    table = pa.table({"file_path": [DATA, "s3://b/other"], "pos": [1, 2]})
    pq.write_table(table, tmp_path / "d")
    size = (tmp_path / "d").stat().st_size
    deletes = DeletesOf((PositionDeleteFile(str(tmp_path / "d"), size, "parquet"),))
    assert left(deletes, 0, 3) == [0, 2]
    other = LIVE.live(STORE, deletes, DataFileInfo("s3://b/other", 9, 100), 0, rows_of(0, 3))
    assert other["row"].to_pylist() == [0, 1]


def test_two_snapshots_of_a_file_are_told_apart(tmp_path: Path) -> None:
    first, second = position_file(tmp_path / "1", [1]), position_file(tmp_path / "2", [2])
    assert left(DeletesOf((first,)), 0, 3) == [0, 2]
    assert left(DeletesOf((first, second)), 0, 3) == [0]
