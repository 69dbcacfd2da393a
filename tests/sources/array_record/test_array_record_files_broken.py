"""ArrayRecord files that change, break or are cleared away while others read them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from array_record_files import records_of, write_records

from headrace import ArrayRecordDataset
from headrace.access import RowDataset
from headrace.errors import FileChangedError, ReadError
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.write import write_array_record


def test_more_files_than_readers_that_stay_open(tmp_path: Path) -> None:
    for number in range(70):
        write_records(tmp_path / f"{number:03d}.array_record", records_of(10, number))
    backend = ArrayRecordBackend(tmp_path)
    first = backend.get_row(3)
    for number in range(1, 70):
        backend.get_row(10 * number + 3)
    assert backend.get_row(3) == first


@pytest.mark.parametrize("rewrite", [shutil.copyfile, os.replace])
def test_a_file_that_is_rewritten_under_its_reader(
    tmp_path: Path, rewrite: Callable[[Path, Path], object]
) -> None:
    """With other records in the same places, which the reader would return."""
    path, other = tmp_path / "a.array_record", tmp_path / "other"
    for one in (path, other):
        write_array_record((os.urandom(5000) for _ in range(100)), one, codec="raw")
    assert path.stat().st_size == other.stat().st_size
    rows = RowDataset(ArrayRecordBackend(path))
    rows[0]
    rewrite(other, path)
    for read in (
        lambda: rows[50],
        lambda: rows.backend.get_row(60),
        lambda: rows.batch([70, 80]),
        lambda: list(rows.backend.iter_batches()),
    ):
        with pytest.raises(FileChangedError):
            read()


def test_a_file_that_is_rewritten_while_it_is_streamed(tmp_path: Path) -> None:
    path, other = tmp_path / "a.array_record", tmp_path / "other"
    for one in (path, other):
        write_array_record((os.urandom(5000) for _ in range(100)), one, codec="raw")
    backend = ArrayRecordBackend(path)
    blocks = backend.stream(0, 100, backend.schema, 50_000)
    assert 0 < next(blocks).num_rows < 50
    shutil.copyfile(other, path)
    with pytest.raises(FileChangedError):
        next(blocks)


# --- what is left out


def damaged(path: Path, rows: int, group: int = 1) -> Path:
    """A file of incompressible rows, of which one cannot be read, or a group or two."""
    table = pa.table({"id": range(rows), "data": [os.urandom(2000) for _ in range(rows)]})
    write_array_record(table, path, group_size=group)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 9] = bytes(9)
    path.write_bytes(bytes(data))
    return path


def ids_of(path: Any, **options: Any) -> list[int]:
    options = {"on_error": "skip", "output_format": "arrow", "batch_size": 50, **options}
    loader, _ = ArrayRecordDataset.create_dataloader(path, **options)
    return [number for batch in loader for number in batch["id"].to_pylist()]


@pytest.mark.parametrize("high_memory", [False, True], ids=["blocks", "at once"])
@pytest.mark.parametrize("group", [1, 10])
def test_only_records_that_cannot_be_read_are_left_out(
    tmp_path: Path, group: int, high_memory: bool
) -> None:
    path = damaged(tmp_path / "a.array_record", 600, group)
    with pytest.warns(UserWarning, match=r"skipped: .*record \d+ cannot be read.*left out"):
        ids = ids_of(path, high_memory=high_memory, columns=["id"])
    assert 600 - 2 * group <= len(ids) < 600
    assert ids == sorted(set(ids))


def odd_one(record: bytes) -> dict[str, object]:
    return {"id": int(record)}


def test_only_records_that_cannot_be_decoded_are_left_out(tmp_path: Path) -> None:
    records = [b"x" if number % 100 == 5 else b"%d" % number for number in range(300)]
    path = write_records(tmp_path / "a.array_record", records)
    with pytest.warns(UserWarning, match=r"record 5 cannot be decoded.*and so are 2 more records"):
        ids = ids_of(path, decode=odd_one)
    assert ids == [number for number in range(300) if number % 100 != 5]


def test_a_file_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    whole, broken = tmp_path / "b.array_record", tmp_path / "a.array_record"
    for path in (whole, broken):
        write_array_record(pa.table({"id": range(100)}), path)
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(ReadError, match=r"a\.array_record is not a complete ArrayRecord file"):
        ArrayRecordDataset([broken, whole])
    backend = ArrayRecordBackend([broken, whole], on_error="skip")
    assert backend.shard_names == [str(whole)]
    assert [str(broken) in said for said in backend.broken] == [True]
    with pytest.warns(UserWarning, match=r"a\.array_record is not a complete ArrayRecord file"):
        assert ids_of([broken, whole]) == list(range(100))
    with pytest.raises(ReadError, match="no file can be read; the first: "):
        ArrayRecordBackend(broken, on_error="skip")


def test_a_first_record_that_is_broken_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.array_record"
    table = pa.table({"id": range(300), "data": [os.urandom(2000) for _ in range(300)]})
    write_array_record(table, path)
    data = bytearray(path.read_bytes())
    data[300:320] = bytes(20)
    path.write_bytes(bytes(data))
    with pytest.raises(ReadError, match="record 0 cannot be read"):
        ArrayRecordBackend(path)
    assert ArrayRecordBackend(path, on_error="skip").schema == table.schema


# --- names and messages


def test_a_file_that_is_called_like_a_part_of_one(tmp_path: Path) -> None:
    path = write_records(tmp_path / "y[0:10]", records_of(12))
    assert ArrayRecordBackend(str(path)).num_rows == 12


def test_files_of_different_types(tmp_path: Path) -> None:
    write_array_record(pa.table({"a": [1], "b": [1]}), tmp_path / "0.array_record")
    write_array_record(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.array_record")
    with pytest.raises(
        ReadError, match=r"1\.array_record: record 0 .*: b is string instead of int64"
    ):
        _ = ArrayRecordBackend(tmp_path).table
