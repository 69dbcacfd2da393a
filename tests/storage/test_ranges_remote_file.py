"""A file elsewhere reads like bytes in memory, whatever was announced and whoever reads."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage import Requests, will_read
from headrace.storage import _ranges as ranges_module
from headrace.storage._ranges import RangeReader, RemoteFile
from headrace.storage._threads import GivenUp, Patience

MIB = 1 << 20


@dataclass(slots=True)
class Bytes:
    """Serves bytes, and remembers which were asked for."""

    data: bytes
    fetched: list[tuple[int, int]] = field(default_factory=list)
    fail: Callable[[int, int], Exception | None] = lambda start, stop: None

    def __call__(self, start: int, stop: int) -> memoryview:
        assert 0 <= start < stop <= len(self.data)
        self.fetched.append((start, stop))
        error = self.fail(start, stop)
        if error is not None:
            raise error
        return memoryview(self.data)[start:stop]

    def file(self, requests: Requests | None = None, **known: Any) -> RemoteFile:
        return RemoteFile(RangeReader(len(self.data), self, requests or Requests(), **known), "r")

    @property
    def bytes(self) -> int:
        return sum(stop - start for start, stop in self.fetched)


def pattern(size: int) -> bytes:
    """Bytes that tell where they are from."""
    return np.arange(-(-size // 4), dtype="<u4").tobytes()[:size]


SIZES = st.sampled_from([0, 1, 100, 70_000, 200_000, 300_001])
PLACES = st.floats(0, 1.05)
LENGTHS = st.sampled_from([0, 1, 7, 4096, 20_000, 150_000])
READ = st.tuples(st.just("read_at"), PLACES, LENGTHS)
SEEK = st.tuples(st.just("seek"), PLACES, st.just(0))
NEXT = st.tuples(st.just("read"), st.just(0.0), LENGTHS)
ANNOUNCE = st.tuples(st.just("announce"), st.lists(st.tuples(PLACES, LENGTHS)), st.just(0))


@given(
    SIZES,
    st.lists(READ | SEEK | NEXT | NEXT | ANNOUNCE, max_size=12),
    st.builds(
        Requests,
        max_gap_bytes=st.none() | st.sampled_from([0, 5000]),
        max_request_bytes=st.sampled_from([1000, 30_000, 8 << 20]),
    ),
    st.sampled_from([10_000, 100_000, 32 << 20]),
)
def test_reads_like_a_file_in_memory(
    size: int, steps: list[tuple[str, Any, int]], requests: Requests, held_bytes: int
) -> None:
    """Read at places, in a row, beyond the end, of what was announced and of what was not."""
    data = pattern(size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_HELD_BYTES", held_bytes)
        with Bytes(data).file(requests) as file, pa.BufferReader(data) as expected:
            assert file.size() == size
            for verb, where, length in steps:
                if verb == "announce":
                    will_read(file, [(int(p * size), int(p * size) + n) for p, n in where])
                elif verb == "read":
                    assert file.read(length) == expected.read(length)
                elif verb == "seek":
                    file.seek(min(int(where * size), size))
                    expected.seek(min(int(where * size), size))
                else:
                    place = min(int(where * size), size)
                    assert file.read_at(length, place) == data[place : place + length]
                    file.seek(expected.tell())  # pyarrow says nothing of where a read_at ends
                assert file.tell() == expected.tell()
            file.seek(0)
            assert file.read() == data


@given(st.integers(1, 300_000), st.lists(st.tuples(PLACES, LENGTHS), min_size=1, max_size=8))
def test_what_was_announced_is_fetched_once(size: int, places: list[tuple[float, int]]) -> None:
    server = Bytes(pattern(size))
    spans = [(min(int(p * size), size), min(int(p * size) + n, size)) for p, n in places]
    with server.file() as file:
        will_read(file, spans)
        for start, stop in spans:
            assert file.read_at(stop - start, start) == server.data[start:stop]
        assert sorted(server.fetched) == Requests().plan(spans)


def test_announcing_again_keeps_nothing_waiting_but_small_parts() -> None:
    """Footers of stripes are read once to see what lies where, and again by the decoder."""
    server = Bytes(pattern(4 * MIB))
    with server.file() as file:
        footer = (2 * MIB, 2 * MIB + 500)
        will_read(file, [footer])
        file.read_at(500, 2 * MIB)
        will_read(file, [(MIB, 2 * MIB), footer])
        assert file.read_at(MIB + 500, MIB) == server.data[MIB : 2 * MIB + 500]
    assert server.fetched == [footer, (MIB, 2 * MIB)]


def test_known_parts_are_not_fetched() -> None:
    server = Bytes(pattern(MIB))
    tail = memoryview(server.data)[-100_000:]
    with server.file(known=[(MIB - 100_000, tail)]) as file:
        assert file.read_at(8, MIB - 8) == server.data[-8:]
        assert file.read_at(90_000, MIB - 90_008) == server.data[-90_008:-8]
        assert server.fetched == []
        will_read(file, [(MIB - 5000, MIB), (100_000, 200_000)])
        assert file.read_at(5000, MIB - 5000) == server.data[-5000:]
        assert file.read_at(100_000, 100_000) == server.data[100_000:200_000]
    assert server.fetched == [(100_000, 200_000)]


def test_a_footer_takes_one_request_and_a_long_one_two() -> None:
    for footer_bytes, requests in ((1000, 1), ((64 << 10) - 8, 1), (150_000, 2)):
        server = Bytes(pattern(MIB))
        learned: dict[int, bytes] = {}
        keep = lambda start, data, to=learned: to.update({start: bytes(data)})  # noqa: E731
        with server.file(keep=keep) as file:
            file.read_at(8, MIB - 8)
            file.read_at(footer_bytes + 8, MIB - footer_bytes - 8)
        assert len(server.fetched) == requests
        assert server.bytes <= (64 << 10) + (footer_bytes + 8 if requests == 2 else 0)
        # The next one who opens it needs none, and what was not needed is not kept.
        assert learned == {MIB - footer_bytes - 8: server.data[-footer_bytes - 8 :]}


def test_small_reads_in_a_row_become_ever_larger_requests() -> None:
    server = Bytes(pattern(16 * MIB))
    with server.file() as file:
        file.seek(MIB)
        pieces = [file.read(1000) for _ in range(4000)]
    assert b"".join(pieces) == server.data[MIB : MIB + 4_000_000]
    assert len(server.fetched) <= 16
    assert server.bytes <= 2 * 4_000_000 + MIB


def test_threads_may_read_one_parquet_file(tmp_path: Any) -> None:
    rng = np.random.default_rng(5)
    table = pa.table({f"x{i}": rng.random(60_000) for i in range(24)})
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=10_000)
    server = Bytes(written.getvalue())
    requests = Requests(max_request_bytes=100_000)
    with server.file(requests) as source:
        footer = pq.read_metadata(source)
        file = pq.ParquetFile(source, metadata=footer, pre_buffer=False)
        will_read(source, [(4, len(server.data) - 8 - footer.serialized_size)])
        with ThreadPoolExecutor(4) as pool:
            groups = list(
                pool.map(
                    lambda group: file.read_row_group(group, use_threads=True),
                    [*range(6), *reversed(range(6))],
                )
            )
    expected = [table.slice(10_000 * group, 10_000) for group in range(6)]
    assert groups == [*expected, *reversed(expected)]
    assert server.bytes <= 1.1 * len(server.data)


def test_an_error_of_a_fetch_reaches_whoever_reads_it() -> None:
    server = Bytes(pattern(4 * MIB))
    server.fail = lambda start, stop: OSError("no luck") if start <= 3 * MIB < stop else None
    with server.file() as file:
        will_read(file, [(MIB, 2 * MIB), (3 * MIB, 3 * MIB + 10)])
        assert file.read_at(MIB, MIB) == server.data[MIB : 2 * MIB]
        with pytest.raises(OSError, match="no luck"):
            file.read_at(10, 3 * MIB)
        with pytest.raises(OSError, match="no luck"):
            file.read_at(10, 3 * MIB)  # what failed is not taken for what was read
        with pytest.raises(OSError, match="no luck"):
            file.read_at(MIB, 5 * MIB // 2)
        assert file.read_at(10, MIB) == server.data[MIB : MIB + 10]


def test_an_error_of_a_fetch_that_nobody_announced_reaches_the_reader() -> None:
    server = Bytes(pattern(MIB), fail=lambda start, stop: OSError("no luck"))
    with server.file() as file, pytest.raises(OSError, match="no luck"):
        file.read_at(8, MIB - 8)


def test_closing_gives_up_what_has_not_begun() -> None:
    """Far more requests than threads, none of which is answered before the file is closed."""
    answer = threading.Event()
    began = threading.Semaphore(0)

    def fetch(start: int, stop: int) -> memoryview:
        began.release()
        assert answer.wait(120)
        return memoryview(bytes(stop - start))

    reader = RangeReader(10_000, fetch, Requests(max_request_bytes=10))
    file = RemoteFile(reader, "r")
    will_read(file, [(0, 10_000)])
    assert began.acquire(timeout=60)
    waiting = list(reader._waiting.values())
    assert len(waiting) == 1000
    before = time.monotonic()
    file.close()
    assert time.monotonic() - before < 60
    answer.set()
    assert sum(future.cancelled() for future in waiting) >= 900
    for future in waiting:
        if not future.cancelled():
            future.result(timeout=60)


def test_a_reader_that_waits_is_told_when_its_file_is_closed() -> None:
    answer = threading.Event()

    def fetch(start: int, stop: int) -> memoryview:
        assert answer.wait(120)
        return memoryview(bytes(stop - start))

    class Noted(Patience):
        def wait_for(self, future: Any) -> Any:
            waits.set()
            return super().wait_for(future)

    waits = threading.Event()
    requests = Requests(max_request_bytes=100)
    reader = RangeReader(100_000, fetch, requests, patience=Noted())
    will_read(RemoteFile(reader, "r"), [(0, 100_000)])
    with ThreadPoolExecutor(1) as pool:
        reader.seek(90_000)
        reading = pool.submit(reader.read, 100)
        assert waits.wait(60)
        time.sleep(0.1)
        reader.close()
        try:
            with pytest.raises((CancelledError, GivenUp)):
                reading.result(timeout=60)
        finally:
            answer.set()


@dataclass
class Gauge:
    """Serves zeros, and counts how many of them are held at a time by the one who asked."""

    held: int = 0
    most: int = 0
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, start: int, stop: int) -> memoryview:
        with self.lock:
            self.held += stop - start
            self.most = max(self.most, self.held)
            self.requests += 1
        counted = _Counted((stop - start,), np.uint8)
        counted.gauge = self
        return memoryview(counted)


class _Counted(np.ndarray):
    gauge: Gauge

    def __del__(self) -> None:
        if hasattr(self, "gauge"):
            with self.gauge.lock:
                self.gauge.held -= self.size


@pytest.mark.parametrize("read_bytes", [1 << 18, MIB + 1, 20 * MIB])
def test_a_large_file_read_in_a_row_is_never_held_as_a_whole(read_bytes: int) -> None:
    size = 200 * 1000 * 1000
    gauge = Gauge()
    total = 0
    with RemoteFile(RangeReader(size, gauge.fetch, Requests()), "r") as file:
        will_read(file, [(0, size)])
        while piece := file.read_buffer(read_bytes):
            total += len(piece)
            del piece
    assert total == size
    assert gauge.requests == len(Requests().plan([(0, size)]))
    assert gauge.most <= 40 * MIB + read_bytes


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(2, 9))
def test_columns_read_side_by_side_are_fetched_once(columns: int, pages: int) -> None:
    """Column after column, a page of each in turn, of more than is held at a time."""
    width = 600_000
    data = pattern(columns * width)
    server = Bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_HELD_BYTES", 300_000)
        with server.file(Requests(max_request_bytes=100_000)) as file:
            will_read(file, [(i * width, (i + 1) * width) for i in range(columns)])
            step = -(-width // pages)
            for start in range(0, width, step):
                for column in range(columns):
                    length = min(step, width - start)
                    place = column * width + start
                    assert file.read_at(length, place) == data[place : place + length]
    assert server.bytes == len(data)


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_parts_read_in_any_order_are_fetched_once(shuffling: Any, parts: int) -> None:
    """As threads do that decode columns side by side, of more than is held at a time."""
    width = 40_000
    data = pattern(parts * width + 100_000)
    server = Bytes(data)
    spans = [(i * width, (i + 1) * width - 500) for i in range(parts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_HELD_BYTES", 100_000)
        with server.file(Requests(max_request_bytes=100_000)) as file:
            will_read(file, spans)
            for start, _ in shuffling.sample(spans, len(spans)):
                file.read_at(1000, start)  # a look at the beginning is not all of it
            for start, stop in shuffling.sample(spans, len(spans)):
                assert file.read_at(stop - start, start) == data[start:stop]
    assert sorted(server.fetched) == Requests(max_request_bytes=100_000).plan(spans)
