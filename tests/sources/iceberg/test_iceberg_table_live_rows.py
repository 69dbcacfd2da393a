"""Rows of a data file that its deletes leave, against plain Python; what is read for them."""

import math
import struct
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deletes_written import (
    DATA,
    ROWS,
    equality_file,
    position_file,
    rows_left,
    source_of,
    vector_file,
)
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ReadError
from headrace.model import FileSplit
from headrace.sources.iceberg import _deletes as iceberg_deletes
from headrace.sources.iceberg import table as iceberg_table
from headrace.sources.iceberg._deletes import DeleteFile
from headrace.sources.iceberg.table import IcebergSource
from headrace.sources.tables import _rows as table_rows
from headrace.sources.tables._vectors import DeletionVector


def test_positions_are_those_of_the_file_wherever_a_chunk_begins(tmp_path: Path) -> None:
    source = source_of(tmp_path, positions=[position_file(tmp_path / "d", [0, 4, 5, 99, 4])])
    assert rows_left(source, 0, 6) == [1, 2, 3]
    assert rows_left(source, 4, 3) == [6]
    assert rows_left(source, 5, 1) == []
    assert rows_left(source, 98, 2) == [98]
    assert rows_left(source) == [n for n in range(100) if n not in (0, 4, 5, 99)]


def test_several_files_and_a_vector(tmp_path: Path) -> None:
    files = [position_file(tmp_path / "1", [1, 2, 3]), position_file(tmp_path / "2", [3, 4])]
    assert rows_left(source_of(tmp_path, positions=files), 0, 6) == [0, 5]
    vector = vector_file(tmp_path / "v", [0, 5, 99])
    assert rows_left(source_of(tmp_path, vector=vector), 0, 6) == [1, 2, 3, 4]
    values = [equality_file(tmp_path / "e", {1: pa.array([2])})]
    both = source_of(tmp_path, vector=vector, equalities=values)
    assert rows_left(both, 0, 6) == [1, 3, 4]


def test_rows_without_columns_are_counted(tmp_path: Path) -> None:
    source = source_of(tmp_path, positions=[position_file(tmp_path / "d", [1, 2])])
    tables = source.read(FileSplit(source.files[0]), pa.schema([]), 1 << 20)
    assert sum(table.num_rows for table in tables) == 98


def test_the_path_is_the_one_of_the_manifest(tmp_path: Path) -> None:
    deletes = [position_file(tmp_path / "d", [1], "s3a://b/data")]
    source = source_of(tmp_path, positions=deletes, written_path="s3a://b/data")
    assert rows_left(source, 0, 3) == [0, 2]
    other = source_of(tmp_path, positions=deletes, written_path="s3://b/data")
    assert rows_left(other, 0, 3) == [0, 1, 2]


def test_rows_past_the_end_are_an_error(tmp_path: Path) -> None:
    source = source_of(tmp_path, positions=[position_file(tmp_path / "d", [100])])
    with pytest.raises(ReadError, match=r"d names row 100 of s3://b/data\.parquet, which has 100"):
        rows_left(source)
    source = source_of(tmp_path, vector=vector_file(tmp_path / "v", [5, 100]))
    with pytest.raises(ReadError, match=r"s3://b/data\.parquet: .*vector in .*v names row 100"):
        rows_left(source)


def test_nothing_is_read_without_the_deletes(tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"torn")
    where = str(tmp_path / "torn")
    for source in (
        source_of(tmp_path, positions=[DeleteFile(where, 4, "parquet")]),
        source_of(tmp_path, vector=DeletionVector(where, 0, 4, 1, 4)),
        source_of(tmp_path, equalities=[DeleteFile(where, 4, "parquet", (1,))]),
    ):
        with pytest.raises(ReadError, match=r"s3://b/data\.parquet: its deletes .*torn"):
            rows_left(source)


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
        source = source_of(path, vector=vector_file(path / "v", sorted(gone)))
    else:
        deletes = [position_file(path / str(n), rows) for n, rows in enumerate(files)]
        source = source_of(path, positions=deletes)
    count = min(count, 100 - first)
    assert rows_left(source, first, count) == [
        row for row in range(first, first + count) if row not in gone
    ]


def test_chunks_of_a_file_have_each_live_row_once(tmp_path: Path) -> None:
    gone = set(np.random.default_rng(3).integers(0, 100, 40).tolist())
    source = source_of(tmp_path, positions=[position_file(tmp_path / "d", sorted(gone))])
    for size in (1, 3, 7, 100):
        starts = range(0, 100, size)
        rows = [row for at in starts for row in rows_left(source, at, min(size, 100 - at))]
        assert rows == [row for row in range(100) if row not in gone]


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0])
def test_values_are_compared_once_for_all_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    """If there is no room to keep what was found it is found again."""
    monkeypatch.setattr(table_rows, "_DELETED_BYTES", cache_bytes)
    monkeypatch.setattr(iceberg_deletes, "_CACHE_BYTES", cache_bytes)
    compared: list[int] = []
    original = iceberg_table.rows_with_keys

    def counted(rows: pa.Table, keys: pa.Table) -> Any:
        compared.append(rows.num_rows)
        return original(rows, keys)

    monkeypatch.setattr(iceberg_table, "rows_with_keys", counted)
    deletes = [equality_file(tmp_path / "e", {1: pa.array([3, 50, 200])})]
    source = source_of(tmp_path, equalities=deletes)
    rows = [row for at in range(0, 100, 10) for row in rows_left(source, at, 10)]
    assert rows == [row for row in range(100) if row not in (3, 50)]
    assert sum(compared) == (100 if cache_bytes else 1000)


def test_a_delete_file_of_two_data_files(tmp_path: Path) -> None:
    table = pa.table({"file_path": [DATA, "s3://b/other"], "pos": [1, 2]})
    pq.write_table(table, tmp_path / "d")
    delete = DeleteFile(str(tmp_path / "d"), (tmp_path / "d").stat().st_size, "parquet")
    assert rows_left(source_of(tmp_path, positions=[delete]), 0, 3) == [0, 2]
    other = source_of(tmp_path, positions=[delete], written_path="s3://b/other")
    assert rows_left(other, 0, 3) == [0, 1]


def test_two_snapshots_of_a_file_are_told_apart(tmp_path: Path) -> None:
    first, second = position_file(tmp_path / "1", [1]), position_file(tmp_path / "2", [2])
    assert rows_left(source_of(tmp_path, positions=[first]), 0, 3) == [0, 2]
    assert rows_left(source_of(tmp_path, positions=[first, second]), 0, 3) == [0]


def test_another_vector_beside_the_same_values_is_another_snapshot(tmp_path: Path) -> None:
    values = [equality_file(tmp_path / "e", {1: pa.array([2])})]
    for gone in (0, 1):
        vector = vector_file(tmp_path / f"v{gone}", [gone])
        source = source_of(tmp_path, vector=vector, equalities=values)
        assert rows_left(source, 0, 4) == [row for row in (0, 1, 3) if row != gone]


# --- by values

NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
"""another one than that of Python"""
VALUES: dict[str, tuple[pa.DataType, pa.DataType, list[Any]]] = {
    "int": (pa.int32(), pa.int64(), [0, 1, -(1 << 31), None]),
    "long": (pa.int64(), pa.int64(), [0, 1 << 62, None]),
    "float": (pa.float32(), pa.float64(), [0.0, -0.0, 1.5, math.nan, None]),
    "double": (pa.float64(), pa.float64(), [0.0, -0.0, math.inf, math.nan, NAN, None]),
    "bool": (pa.bool_(), pa.bool_(), [True, False, None]),
    "string": (pa.string(), pa.string(), ["", "a", "ä\0", None]),
    "binary": (pa.binary(), pa.binary(), [b"", b"\0", b"a", None]),
    "fixed": (pa.binary(2), pa.binary(2), [b"ab", b"\0\0", None]),
    "uuid": (pa.uuid(), pa.binary(16), [uuid.UUID(int=n).bytes for n in (0, 7)] + [None]),
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
"""types in delete files and in the table, and values"""


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    return pa.array(values, type_)


def same(value: Any) -> Any:
    """Return what two values have in common if they are equal for a delete."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return value


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_all_types_delete_their_equals(tmp_path: Path, kind: str) -> None:
    stored, type_, values = VALUES[kind]
    table = pa.table({"row": range(len(values)), "key": array_of(values, type_)})
    for number, value in enumerate(values):
        for extra in ([], [values[-1]]):
            keys = [value, value, *extra]
            delete = equality_file(tmp_path / f"{number}-{len(extra)}", {2: array_of(keys, stored)})
            gone = {same(key) for key in keys}
            assert rows_left(source_of(tmp_path, table, equalities=[delete])) == [
                n for n, value in enumerate(values) if same(value) not in gone
            ]


@given(st.data())
def test_values_agree_with_sets_of_tuples(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("live")
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    row = st.tuples(*(st.sampled_from(VALUES[kind][2]) for kind in kinds))
    rows = data.draw(st.lists(row, max_size=20))
    files, gone = [], set()
    for number in range(data.draw(st.integers(1, 3))):
        keys = data.draw(st.lists(row, max_size=5))
        chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(kinds))), min_size=1)))
        columns = {2 + i: array_of([key[i] for key in keys], VALUES[kinds[i]][0]) for i in chosen}
        files.append(equality_file(path / str(number), columns))
        gone |= {(tuple(chosen), tuple(same(key[i]) for i in chosen)) for key in keys}
    columns = [array_of([r[i] for r in rows], VALUES[kind][1]) for i, kind in enumerate(kinds)]
    numbers = pa.array(range(len(rows)), pa.int64())
    table = pa.table([numbers, *columns], ["row", *(f"c{i}" for i in range(len(kinds)))])
    positions = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    deletes = [position_file(path / "p", positions)]
    assert rows_left(source_of(path, table, positions=deletes, equalities=files)) == [
        n
        for n, r in enumerate(rows)
        if n not in positions
        and not any(tuple(same(r[i]) for i in chosen) == key for chosen, key in gone)
    ]


def pairs(source: IcebergSource) -> list[tuple[Any, Any]]:
    return list(zip(rows_left(source, column="x"), rows_left(source, column="y"), strict=True))


def test_a_pair_is_deleted_only_together(tmp_path: Path) -> None:
    delete = equality_file(tmp_path / "e", {1: pa.array([1, 2]), 2: pa.array(["a", None])})
    table = pa.table({"x": [1, 1, 2, 2, None], "y": ["a", None, "a", None, None]})
    source = source_of(tmp_path, table, equalities=[delete])
    assert pairs(source) == [(1, None), (2, "a"), (None, None)]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_an_empty_equality_file_deletes_nothing(tmp_path: Path, format: str) -> None:
    columns = {1: pa.array([], pa.int32()), 2: pa.array([], pa.string())}
    delete = equality_file(tmp_path / "e", columns, format)
    table = pa.table({"x": [1, None], "y": ["a", None]})
    assert pairs(source_of(tmp_path, table, equalities=[delete])) == [(1, "a"), (None, None)]


def test_a_column_that_became_wider_between_two_tables(tmp_path: Path) -> None:
    """The same delete file, compared in two types in one process."""
    deletes = [equality_file(tmp_path / "e", {1: pa.array([3], "int32")})]
    table = pa.table({"x": pa.array([2, 3], "int32")})
    for type_ in (pa.int32(), pa.int64()):
        folder = tmp_path / str(type_)
        folder.mkdir()
        source = source_of(folder, table, equalities=deletes, types={"x": type_})
        assert rows_left(source, column="x") == [2]


def test_files_that_delete_by_different_columns_are_kept_apart(tmp_path: Path) -> None:
    deletes = [
        equality_file(tmp_path / "1", {1: pa.array([10])}),
        equality_file(tmp_path / "2", {2: pa.array([20])}),
    ]
    table = pa.table({"x": [10, 20, 30], "y": [10, 30, 20]})
    assert pairs(source_of(tmp_path, table, equalities=deletes)) == [(20, 30)]


def test_all_rows_may_be_deleted(tmp_path: Path) -> None:
    source = source_of(tmp_path, ROWS, positions=[position_file(tmp_path / "d", range(100))])
    assert rows_left(source) == []


@pytest.mark.parametrize("stored_as_int96", [(True, True), (True, False), (False, True)])
def test_times_as_spark_stores_them_outside_of_nanoseconds(
    tmp_path: Path, stored_as_int96: tuple[bool, bool]
) -> None:
    """Timestamps of 96 bits tell no unit: as nanoseconds these are other times."""
    times = pa.array([datetime(1066, 10, 14), datetime(2020, 1, 1), datetime(3000, 1, 1)])
    data, delete = stored_as_int96
    keys = equality_file(tmp_path / "e", {1: times.take([0, 2])}, int96=delete)
    source = source_of(tmp_path, pa.table({"t": times}), equalities=[keys], int96=data)
    assert rows_left(source, column="t") == [datetime(2020, 1, 1)]
