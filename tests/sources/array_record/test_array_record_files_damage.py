"""ArrayRecord files that are missing, cut, damaged or written again."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from array_record_files import records_of, write_records

from headrace.errors import FileChangedError, NothingFoundError, OptionError, ReadError
from headrace.sources.array_record.backend import ArrayRecordBackend


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError, match=r"gone\.array_record does not exist"):
        ArrayRecordBackend(tmp_path / "gone.array_record")
    with pytest.raises(NothingFoundError):
        ArrayRecordBackend(str(tmp_path / "gone.array_record[0:5]"))


def test_a_file_that_goes_before_it_is_read(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", records_of(10))
    backend = pickle.loads(pickle.dumps(ArrayRecordBackend(path)))
    path.unlink()
    with pytest.raises(FileChangedError, match="vanished"):
        backend.take([1])


def test_a_file_that_is_written_again(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", records_of(10))
    backend = pickle.loads(pickle.dumps(ArrayRecordBackend(path)))
    write_records(path, records_of(90, seed=5, size=5000))
    with pytest.raises(FileChangedError, match="changed"):
        backend.get_row(1)


@pytest.mark.parametrize("left", [0, 10, 65_536, 100_000, -100])
def test_a_truncated_file(tmp_path: Path, left: int) -> None:
    path = write_records(tmp_path / "a.array_record", records_of(100, size=4000))
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(
        ReadError,
        match=r"a\.array_record is not a complete ArrayRecord file( \(.+\))?; it may be truncated",
    ):
        ArrayRecordBackend(path)


def readable(backend: ArrayRecordBackend, number: int) -> bool:
    try:
        backend.get_row(number)
    except ReadError:
        return False
    return True


@pytest.mark.parametrize("group", [1, 10])
def test_a_damaged_record_spoils_no_other(tmp_path: Path, group: int) -> None:
    records = [os.urandom(2000) for _ in range(300)]
    path = write_records(tmp_path / "a.array_record", records, group)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20] = bytes(20)
    path.write_bytes(bytes(data))
    backend = ArrayRecordBackend(path)
    bad = [number for number in range(300) if not readable(backend, number)]
    assert 1 <= len(bad) <= 2 * group
    with pytest.raises(ReadError, match=f"a.array_record: record {bad[0]} cannot be read: Corr"):
        backend.get_row(bad[0])
    with pytest.raises(ReadError, match=f"record {bad[0]} cannot be read"):
        backend.take([bad[0], 0, 299])
    with pytest.raises(ReadError, match=f"record {bad[0]} cannot be read"):
        list(backend.stream(0, 300, backend.schema, 10**6))
    at_once = ArrayRecordBackend(path, high_memory=True)
    with pytest.raises(ReadError, match="records 0 to 300 cannot be read"):
        list(at_once.stream(0, 300, backend.schema, 10**6))
    assert backend.take([0, 299])["record"].to_pylist() == [records[0], records[299]]


@pytest.mark.parametrize("paths", [[], 5, b"x", [None]])
def test_paths_that_are_none(paths: object) -> None:
    with pytest.raises(OptionError):
        ArrayRecordBackend(paths)  # type: ignore[arg-type]
