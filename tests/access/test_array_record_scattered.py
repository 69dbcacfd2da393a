"""Records from anywhere in a file, read by two threads."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record_files import records_of, write_records

from headrace.access import ArrayRecordBackend
from headrace.access.array_record.reader import Readers, open_reader
from headrace.access.array_record.scattered import ScatteredReads
from headrace.access.crew import Crew
from headrace.errors import ReadError

RECORDS = records_of(300, size=3000)


class Pair(Crew):
    """Reads by two whenever it may, on any machine."""

    def size(self, pieces: int) -> int:
        return 2


def by_two() -> ScatteredReads:
    return ScatteredReads(Pair(cores=2, most=2))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("scattered") / "a.array_record", RECORDS)


@pytest.fixture
def reader(path: Path) -> Any:
    return open_reader(str(path), str(path), Readers().options)


class Watched:
    """A reader that knows which threads read of it, each of which waits for the other once."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._both = threading.Barrier(2, timeout=30)
        self.threads: set[int] = set()

    def read(self, start: int, stop: int) -> Any:
        if threading.get_ident() not in self.threads:
            self.threads.add(threading.get_ident())
            self._both.wait()
        return self._reader.read(start, stop)


@pytest.mark.parametrize("numbers", [[5], [0, 299], range(0, 300, 7), range(300)])
def test_records_by_two_are_those_that_one_reads(reader: Any, numbers: Any) -> None:
    found = by_two().read(reader, list(numbers), "a")
    assert found == [RECORDS[number] for number in numbers]


def test_both_threads_read(reader: Any) -> None:
    watched = Watched(reader)
    assert by_two().read(watched, range(100), "a") == RECORDS[:100]
    assert len(watched.threads) == 2
    assert threading.get_ident() in watched.threads


def test_a_second_thread_that_is_busy_is_not_waited_for(reader: Any) -> None:
    reads, release = by_two(), threading.Event()
    busy = reads._beside.submit(release.wait)
    try:
        assert reads.read(reader, range(100), "a") == RECORDS[:100]
        assert not busy.done()
    finally:
        release.set()


def test_where_no_thread_begins_any_more_one_reads(reader: Any) -> None:
    reads = by_two()
    reads._beside.shutdown()
    assert reads.read(reader, range(100), "a") == RECORDS[:100]


def test_the_first_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    records = [os.urandom(2000) for _ in range(200)]
    path = write_records(tmp_path / "a.array_record", records)
    data = bytearray(path.read_bytes())
    for number in (50, 120):
        place = data.index(records[number]) + 1000
        data[place] ^= 1
    path.write_bytes(bytes(data))
    reader = open_reader(str(path), str(path), Readers().options)
    for _ in range(5):
        with pytest.raises(ReadError, match="there: record 50 cannot be read: Corr"):
            by_two().read(reader, range(200), "there")
        reader = open_reader(str(path), str(path), Readers().options)
    with pytest.raises(ReadError, match="there: record 120 cannot be read: Corr"):
        by_two().read(reader, range(51, 200), "there")


@pytest.mark.parametrize("beyond", [300, (1 << 31) - 1, 1 << 31, 1 << 40])
def test_numbers_of_no_record(reader: Any, beyond: int) -> None:
    with pytest.raises(ReadError, match=f"a: record {beyond} cannot be read"):
        by_two().read(reader, [1, 2, beyond], "a")


def test_threads_that_read_at_once(path: Path) -> None:
    backend = ArrayRecordBackend(path)
    backend._scattered = by_two()

    def taken(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(-300, 300, 40)
        return backend.take(rows)["record"].to_pylist() == [RECORDS[row] for row in rows]

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(taken, range(60)))


def test_only_one_thread_reads_groups(tmp_path: Path) -> None:
    """Records of one group, read one after the other, are decoded together."""
    path = write_records(tmp_path / "a.array_record", RECORDS, group_size=50)
    backend = ArrayRecordBackend(path)
    for _ in range(8):  # so that each number of threads would have had its turn
        assert backend.take(range(0, 300, 5))["record"].to_pylist() == RECORDS[::5]
    assert not any(one.name.startswith("headrace-records") for one in threading.enumerate())


def test_the_thread_ends_with_the_backend_and_is_not_sent(path: Path) -> None:
    backend = ArrayRecordBackend(path)
    backend._scattered = by_two()
    before = threading.enumerate()
    backend.take(range(100))
    [thread] = [one for one in threading.enumerate() if one not in before]
    sent = pickle.dumps(backend)
    assert len(sent) < 3000
    del backend
    thread.join(30)
    assert not thread.is_alive()
    assert pickle.loads(sent).take([7, 3])["record"].to_pylist() == [RECORDS[7], RECORDS[3]]
