"""Rows that are left by positions and vectors, against plain Python; what is read for them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deletes_written import (
    DATA,
    FILE,
    STORE,
    equality_file,
    left,
    position_file,
    rows_of,
    vector_file,
)
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ReadError
from headrace.model import DataFileInfo
from headrace.sources.iceberg import delete_files
from headrace.sources.iceberg.deletes import (
    NO_DELETES,
    DeletesOf,
    EqualityDeleteFile,
    PositionDeleteFile,
)
from headrace.sources.tables.vectors import DeletionVector


def test_a_table_of_which_nothing_is_deleted_is_itself(tmp_path: Path) -> None:
    table = rows_of(10, 5)
    for deletes in (
        NO_DELETES,
        DeletesOf((position_file(tmp_path / "1", [9, 15]),)),
        DeletesOf((position_file(tmp_path / "2", []),)),
        DeletesOf((position_file(tmp_path / "3", [12], "s3://b/other"),)),
        DeletesOf(vector=vector_file(tmp_path / "4", [9, 15])),
    ):
        assert delete_files.live(STORE, deletes, FILE, 10, table) is table


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
    schema = delete_files.live(STORE, deletes, FILE, 0, rows_of(0, 10)).schema
    assert schema == rows_of(0, 0).schema


def test_rows_without_columns_are_counted(tmp_path: Path) -> None:
    deletes = DeletesOf((position_file(tmp_path / "d", [1, 2]),))
    table = rows_of(0, 10).select([])
    assert delete_files.live(STORE, deletes, FILE, 0, table).num_rows == 8


def test_the_path_is_the_one_of_the_manifest(tmp_path: Path) -> None:
    deletes = DeletesOf((position_file(tmp_path / "d", [1], "s3a://b/data"),))
    live = delete_files.live(STORE, deletes, FILE, 0, rows_of(0, 3), data_path="s3a://b/data")
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
        DeletesOf(vector=DeletionVector(where, 0, 4, 1, 4)),
        DeletesOf(equalities=(equality,)),
    ):
        with pytest.raises(ReadError, match=r"s3://b/data\.parquet.*torn"):
            delete_files.live(STORE, deletes, FILE, 0, rows_of(0, 1), {1: "row"})


def test_a_column_that_was_not_read_is_an_error(tmp_path: Path) -> None:
    deletes = DeletesOf(equalities=(equality_file(tmp_path / "e", {7: pa.array([1])}),))
    for columns in (None, {1: "row"}, {7: "gone"}):
        with pytest.raises(ReadError, match=r"field ids \[7\], which were not read"):
            delete_files.live(STORE, deletes, FILE, 0, rows_of(0, 1), columns)


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


def test_what_does_not_fit_in_the_cache_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_files, "CACHE_BYTES", 0)
    deletes = DeletesOf(
        (position_file(tmp_path / "d", [1]),),
        None,
        (equality_file(tmp_path / "e", {1: pa.array([0])}),),
    )
    for _ in range(2):
        live = delete_files.live(STORE, deletes, FILE, 0, rows_of(0, 3), {1: "row"})
        assert live["row"].to_pylist() == [2]


def test_a_delete_file_of_two_data_files(tmp_path: Path) -> None:
    table = pa.table({"file_path": [DATA, "s3://b/other"], "pos": [1, 2]})
    pq.write_table(table, tmp_path / "d")
    size = (tmp_path / "d").stat().st_size
    deletes = DeletesOf((PositionDeleteFile(str(tmp_path / "d"), size, "parquet"),))
    assert left(deletes, 0, 3) == [0, 2]
    other = delete_files.live(
        STORE, deletes, DataFileInfo("s3://b/other", 9, 100), 0, rows_of(0, 3)
    )
    assert other["row"].to_pylist() == [0, 1]


def test_two_snapshots_of_a_file_are_told_apart(tmp_path: Path) -> None:
    first, second = position_file(tmp_path / "1", [1]), position_file(tmp_path / "2", [2])
    assert left(DeletesOf((first,)), 0, 3) == [0, 2]
    assert left(DeletesOf((first, second)), 0, 3) == [0]
