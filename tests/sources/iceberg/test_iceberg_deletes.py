"""What delete files say: positions in Parquet and ORC, values by field ids."""

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.sources.iceberg._deletes import (
    DeleteFile,
    equality_keys,
    positions,
    rows_with_keys,
)
from headrace.sources.tables._columns import TableColumn
from headrace.storage import LocalStore

STORE = LocalStore()
PATH_ID, POSITION_ID = 2147483546, 2147483545
FORMATS = ["parquet", "orc"]


class CountingStore(LocalStore):
    """A store that remembers what was opened."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "opened", [])

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        self.opened.append(file.path)  # type: ignore[attr-defined]
        return super().open(file)


def field(name: str, type_: pa.DataType, field_id: int | None, format: str) -> pa.Field:
    key = {"parquet": "PARQUET:field_id", "orc": "iceberg.id"}[format]
    return pa.field(name, type_, metadata=None if field_id is None else {key: str(field_id)})


def write(table: pa.Table, path: Path, format: str, **options: Any) -> int:
    if format == "parquet":
        pq.write_table(table, path, **options)
    else:
        orc.write_table(table, str(path))
    return path.stat().st_size


def position_file(
    path: Path,
    rows: list[tuple[str | None, int | None]],
    format: str = "parquet",
    *,
    ids: bool = True,
    names: tuple[str, str] = ("file_path", "pos"),
    **options: Any,
) -> DeleteFile:
    schema = pa.schema(
        [
            field(names[0], pa.string(), PATH_ID if ids else None, format),
            field(names[1], pa.int64(), POSITION_ID if ids else None, format),
        ]
    )
    columns = [pa.array([r[i] for r in rows], t) for i, t in enumerate((pa.string(), pa.int64()))]
    size = write(pa.Table.from_arrays(columns, schema=schema), path, format, **options)
    return DeleteFile(str(path), size, format)


@pytest.mark.parametrize("format", FORMATS)
def test_positions_come_ascending_and_once(tmp_path: Path, format: str) -> None:
    rows = [("s3://b/y", 9), ("s3://b/x", 5), ("s3://b/y", 1), ("s3://b/x", 5), ("s3://b/x", 2)]
    delete = position_file(tmp_path / "d", rows, format)
    found = positions(STORE, delete, "s3://b/x")
    assert found.dtype == np.int64
    assert found.tolist() == [2, 5]
    assert positions(STORE, delete, "s3://b/y").tolist() == [1, 9]
    assert positions(STORE, delete, "s3://b/z").tolist() == []
    assert positions(STORE, delete, "s3a://b/x").tolist() == []


@pytest.mark.parametrize("format", FORMATS)
def test_columns_are_found_by_id_and_by_name_without_ids(tmp_path: Path, format: str) -> None:
    renamed = position_file(tmp_path / "1", [("x", 1)], format, names=("a", "b"))
    assert positions(STORE, renamed, "x").tolist() == [1]
    plain = position_file(tmp_path / "2", [("x", 1)], format, ids=False)
    assert positions(STORE, plain, "x").tolist() == [1]
    neither = position_file(tmp_path / "3", [("x", 1)], format, ids=False, names=("a", "b"))
    with pytest.raises(ReadError, match="without a column of the field id 2147483546"):
        positions(STORE, neither, "x")


def test_paths_may_be_in_dictionaries(tmp_path: Path) -> None:
    """As pyarrow reads them back that wrote them so; with words that no row of a block has."""
    paths = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2], "int32"), ["x", "y", "z"])
    pq.write_table(pa.table({"file_path": paths, "pos": [3, 4, 1]}), tmp_path / "d")
    size = (tmp_path / "d").stat().st_size
    delete = DeleteFile(str(tmp_path / "d"), size, "parquet")
    assert [positions(STORE, delete, path).tolist() for path in "xyz"] == [[4], [], [1, 3]]


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_without_rows_deletes_nothing(tmp_path: Path, format: str) -> None:
    assert positions(STORE, position_file(tmp_path / "d", [], format), "x").tolist() == []


def test_a_local_file_is_named_in_any_way(tmp_path: Path) -> None:
    rows = [("/w/x", 1), ("file:/w/x", 2), ("file:///w/x", 3), ("/w/y", 4)]
    delete = position_file(tmp_path / "d", rows)
    delete = DeleteFile(f"file://{delete.path}", delete.size, "parquet")
    for path in ("/w/x", "file:/w/x", "file:///w/x"):
        assert positions(STORE, delete, path).tolist() == [1, 2, 3]


def test_positions_beyond_32_bits(tmp_path: Path) -> None:
    delete = position_file(tmp_path / "d", [("x", 1 << 32), ("x", 7), ("y", (1 << 32) - 1)])
    assert positions(STORE, delete, "x").tolist() == [7, 1 << 32]
    assert positions(STORE, delete, "y").tolist() == [(1 << 32) - 1]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("row", [(None, 1), ("x", None)])
def test_nulls_are_an_error(tmp_path: Path, format: str, row: tuple[Any, Any]) -> None:
    delete = position_file(tmp_path / "broken", [("x", 1), row], format)
    with pytest.raises(ReadError, match=r"broken has nulls.*damaged"):
        positions(STORE, delete, "data-file")


def test_rows_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    below = position_file(tmp_path / "below", [("x", -1)])
    with pytest.raises(ReadError, match="below names row -1 of x: the table is damaged"):
        positions(STORE, below, "x")
    beyond = position_file(tmp_path / "beyond", [("x", 12), ("y", 99)])
    message = "beyond names row 12 of x, which has 10 rows: the table is damaged"
    with pytest.raises(ReadError, match=message):
        positions(STORE, beyond, "x", record_count=10)
    with pytest.raises(ReadError, match="which has 12 rows"):
        positions(STORE, beyond, "x", record_count=12)
    assert positions(STORE, beyond, "x", record_count=13).tolist() == [12]


def test_a_delete_file_that_is_gone_or_another(tmp_path: Path) -> None:
    gone = DeleteFile(str(tmp_path / "gone"), 5, "parquet")
    with pytest.raises(FileChangedError, match="gone vanished"):
        positions(STORE, gone, "data-file")
    delete = position_file(tmp_path / "d", [("x", 1)])
    with pytest.raises(FileChangedError, match="d "):
        positions(STORE, DeleteFile(delete.path, 1, "parquet"), "data-file")
    (tmp_path / "torn").write_bytes(b"PAR1")
    for format in FORMATS:
        with pytest.raises(ReadError, match="torn"):
            positions(STORE, DeleteFile(str(tmp_path / "torn"), 4, format), "data-file")


def test_a_file_is_read_once_for_all_threads_and_data_files(tmp_path: Path) -> None:
    delete = position_file(tmp_path / "d", [(f"x{n}", n) for n in range(50)])
    store = CountingStore()
    found: dict[int, list[int]] = {}

    def read(n: int) -> None:
        found[n] = positions(store, delete, f"x{n}").tolist()

    positions(store, delete, "x0")
    opened = len(store.opened)  # type: ignore[attr-defined]
    threads = [threading.Thread(target=read, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [n] for n in range(50)}
    assert len(store.opened) == opened  # type: ignore[attr-defined]


@given(
    st.lists(st.tuples(st.sampled_from(["s3://x", "s3://y", "/z", "file:///z"]), st.integers(0, 9)))
)
def test_positions_agree_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("positions") / "d"
    delete = position_file(path, rows, "orc" if len(rows) % 2 else "parquet")
    for data_path, spelled in (("s3://x", ["s3://x"]), ("/z", ["/z", "file:///z"])):
        expected = sorted({pos for name, pos in rows if name in spelled})
        assert positions(STORE, delete, data_path).tolist() == expected


def equality_file(
    path: Path, columns: list[tuple[pa.Field, list[Any]]], ids: tuple[int, ...], format: str
) -> DeleteFile:
    schema = pa.schema([column for column, _ in columns])
    arrays = [pa.array(values, column.type) for column, values in columns]
    size = write(pa.Table.from_arrays(arrays, schema=schema), path, format)
    return DeleteFile(str(path), size, format, ids)


def rows_deleted(delete: DeleteFile, rows: pa.Table) -> list[int]:
    """Return the places of rows of a table that a file deletes by their values."""
    columns = [
        TableColumn(number, str(number), column.type)
        for number, column in zip(delete.field_ids, rows.columns, strict=True)
    ]
    return rows_with_keys(rows, equality_keys(STORE, [delete], columns)).tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_values_are_found_by_id_and_widened(tmp_path: Path, format: str) -> None:
    delete = equality_file(
        tmp_path / "e",
        [
            (field("other", pa.string(), 9, format), ["a", None]),
            (field("old name", pa.int32(), 2, format), [7, None]),
            (field("x", pa.decimal128(4, 1), 1, format), [Decimal("1.5"), Decimal("2.5")]),
        ],
        (1, 2),
        format,
    )
    decimals = [Decimal(text) for text in ("1.5", "2.5", "2.5", "7.0")]
    rows = {"x": pa.array(decimals, pa.decimal128(10, 1)), "y": [7, None, 7, None]}
    assert rows_deleted(delete, pa.table(rows)) == [0, 1]


@pytest.mark.parametrize("format", FORMATS)
def test_values_inside_of_structs(tmp_path: Path, format: str) -> None:
    inner = pa.struct([field("a", pa.int32(), 3, format), field("b", pa.string(), 4, format)])
    column = field("s", inner, 2, format), [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]
    delete = equality_file(tmp_path / "e", [column], (3, 4), format)
    rows = {"a": [1, 1, None, None, None], "b": ["x", "y", "x", "y", None]}
    assert rows_deleted(delete, pa.table(rows)) == [0, 3, 4]


@pytest.mark.parametrize("format", FORMATS)
def test_values_that_cannot_be_had(tmp_path: Path, format: str) -> None:
    delete = equality_file(
        tmp_path / "e", [(field("a", pa.string(), 1, format), ["x"])], (1,), format
    )
    with pytest.raises(ReadError, match=r"e: not readable in the types of the table"):
        rows_deleted(delete, pa.table({"a": [1]}))
    without = DeleteFile(delete.path, delete.size, format, (7,))
    with pytest.raises(ReadError, match="without a column of the field id 7"):
        rows_deleted(without, pa.table({"a": ["x"]}))


@pytest.mark.parametrize("format", FORMATS)
def test_values_of_an_empty_file(tmp_path: Path, format: str) -> None:
    delete = equality_file(tmp_path / "e", [(field("a", pa.int32(), 1, format), [])], (1,), format)
    assert rows_deleted(delete, pa.table({"a": [0, None]})) == []
