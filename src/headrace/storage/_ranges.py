"""Byte ranges of remote files: how they become requests, and a file that reads by them.

A reader announces the ranges that it will need (``will_read``). Ranges are joined where that wastes
little, cut where they are long, and fetched side by side before the reader asks for them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage._threads import Patience, forget, in_background

ByteSpan = tuple[int, int]
"""First byte of a range, and the byte after the last."""

_WIDEST_GAP_BYTES = 1 << 20
"""Gaps up to this size are fetched: at usual speeds that takes less time than another request."""
_KEPT_BYTES = 256 << 20
"""Bytes of footers and other parts of files that a process keeps."""
_WASTE = 16
"""One in this many fetched bytes may be an unwanted one, unless the user chooses otherwise."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The rules by which wanted ranges become requests.

    Attributes:
        max_gap_bytes: Size of a gap between two ranges that is fetched to save a request; None for
            up to 1 MiB, as long as all gaps together are a sixteenth of the wanted bytes.
        max_request_bytes: The largest range to ask for in one request.
    """

    max_gap_bytes: int | None = None
    max_request_bytes: int = 8 << 20

    def plan(self, wanted: Iterable[ByteSpan]) -> list[ByteSpan]:
        """Return requests in the order of the file, with ranges joined where that saves time.

        A range goes into one request unless it is longer than ``max_request_bytes``.
        """
        spans = _joined_overlaps(wanted)
        joined: list[ByteSpan] = []
        gaps = self._worth_fetching(spans)
        for start, stop in spans:
            if joined and joined[-1][1] in gaps and stop - joined[-1][0] <= self.max_request_bytes:
                joined[-1] = joined[-1][0], stop
            else:
                joined.append((start, stop))
        return [part for span in joined for part in self._parts(span)]

    def _worth_fetching(self, spans: list[ByteSpan]) -> set[int]:
        """Return the starts of the gaps to fetch: the smallest ones, as many as are allowed."""
        sizes = sorted((after[0] - before[1], before[1]) for before, after in pairwise(spans))
        if self.max_gap_bytes is not None:
            return {start for size, start in sizes if size <= self.max_gap_bytes}
        left = sum(stop - start for start, stop in spans) // _WASTE
        chosen: set[int] = set()
        for size, start in sizes:
            left -= size
            if left < 0 or size > _WIDEST_GAP_BYTES:
                break
            chosen.add(start)
        return chosen

    def _parts(self, span: ByteSpan) -> list[ByteSpan]:
        """Return a range in requests of about the same size."""
        start, stop = span
        count = -(-(stop - start) // self.max_request_bytes)  # rounded up
        cuts = [start + (stop - start) * i // count for i in range(count + 1)]
        return list(pairwise(cuts))


def shares(wanted: Iterable[ByteSpan], requests: Sequence[ByteSpan]) -> list[list[ByteSpan]]:
    """Return the wanted ranges in each of some requests, which are sorted by place."""
    found: list[list[ByteSpan]] = [[] for _ in requests]
    for start, stop in wanted:
        # The last request that begins at or before the range; the range may go on in the next ones.
        index = max(bisect_right(requests, start, key=lambda span: span[0]) - 1, 0)
        while index < len(requests) and requests[index][0] < stop:
            share = max(start, requests[index][0]), min(stop, requests[index][1])
            if share[0] < share[1]:
                found[index].append(share)
            index += 1
    return found


def without(spans: Iterable[ByteSpan], start: int, stop: int) -> list[ByteSpan]:
    """Return the rest of some ranges without the bytes from ``start`` to ``stop``."""
    cut = [part for a, b in spans for part in ((a, min(b, start)), (max(a, stop), b))]
    return [(a, b) for a, b in cut if a < b]


def _joined_overlaps(wanted: Iterable[ByteSpan]) -> list[ByteSpan]:
    """Return the same bytes in ranges that do not overlap; ranges that only touch stay apart."""
    spans: list[ByteSpan] = []
    for start, stop in sorted(span for span in wanted if span[1] > span[0]):
        if spans and start < spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    return spans


@dataclass(slots=True)
class _KeptParts:
    # A garbage collection may ask for the lock again.
    lock: threading.RLock = field(default_factory=threading.RLock)
    parts: OrderedDict[tuple[Any, ...], dict[int, bytes]] = field(default_factory=OrderedDict)
    size: int = 0


class Parts:
    """Beginnings and ends of files, which every reader needs first.

    Worker processes get them with their store, so that a footer is fetched once.
    """

    def __init__(self) -> None:
        self._kept = PerProcess(_KeptParts)

    def of(self, file: DataFileInfo) -> list[tuple[int, memoryview]]:
        """Return the known parts of a file, as (first byte, bytes)."""
        kept = self._kept.get()
        with kept.lock:
            found = kept.parts.get(file.identity, {})
            return [(start, memoryview(data)) for start, data in found.items()]

    def add(self, file: DataFileInfo, start: int, data: bytes) -> None:
        """Keep a part of a file; the oldest parts are dropped when there are too many."""
        kept = self._kept.get()
        with kept.lock:
            known = kept.parts.setdefault(file.identity, {})
            before = known.get(start, b"")
            if len(before) >= len(data):
                return
            known[start] = data
            kept.size += len(data) - len(before)
            while kept.size > _KEPT_BYTES:
                _, dropped = kept.parts.popitem(last=False)
                kept.size -= sum(map(len, dropped.values()))

    def __getstate__(self) -> dict[str, Any]:
        kept = self._kept.get()
        with kept.lock:
            copies = OrderedDict((key, dict(parts)) for key, parts in kept.parts.items())
            return {"parts": copies, "size": kept.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kept = PerProcess(_KeptParts)
        kept = self._kept.get()
        kept.parts, kept.size = state["parts"], state["size"]


Fetch = Callable[[int, int], memoryview]

_HELD_BYTES = 32 << 20
"""Largest number of bytes of a file in memory; beyond, bytes that were read are dropped."""
_TAIL_BYTES = 64 << 10
_HEAD_BYTES = 16 << 10
_LONGEST_TAIL = 16 << 20
_SMALL_BYTES = 1 << 18
_MOST_IN_A_ROW = 4 << 20


def will_read(file: pa.NativeFile, ranges: Iterable[ByteSpan]) -> None:
    """Announce the ranges that are read next; those of a remote file are fetched at once."""
    if isinstance(file, RemoteFile):
        file.reader.announce(ranges)


class RemoteFile(pa.PythonFile):  # type: ignore[misc]
    """A remote file as pyarrow reads it; ``pa.PythonFile`` itself takes both arguments."""

    def __init__(self, reader: RangeReader, mode: str) -> None:
        self.reader = reader


class RangeReader:
    """Reads at any place, from announced ranges or else by a request of its own.

    Args:
        size: The size of the file.
        fetch: Returns the bytes between two places.
        requests: How wanted ranges become requests.
        known: Parts that need not be fetched, as (first byte, bytes).
        keep: Called when the file is closed, with the beginning and the end that were needed,
            because every reader begins with one of them.
        patience: Ends the waiting when the reader gives up.
    """

    closed = False

    def __init__(
        self,
        size: int,
        fetch: Fetch,
        requests: Requests,
        known: Iterable[tuple[int, memoryview]] = (),
        keep: Callable[[int, bytes], None] = lambda start, data: None,
        patience: Patience | None = None,
    ) -> None:
        self._size = size
        self._fetch = fetch
        self._requests = requests
        self._patience = patience or Patience()
        self._keep = keep
        self._lock = threading.Lock()
        self._position = 0
        self._known = list(known)
        # Bytes that were not announced: the head, the tail, and the last of others.
        self._head: tuple[int, memoryview] = 0, memoryview(b"")
        self._tail: tuple[int, memoryview] = size, memoryview(b"")
        self._last: tuple[int, memoryview] = 0, memoryview(b"")
        self._row_end, self._row_bytes = -1, 0
        self._needed_head, self._needed_tail = 0, size
        self._spans: list[ByteSpan] = []
        self._waiting: dict[int, Future[memoryview]] = {}
        self._drops_read = False
        self._unread: list[list[ByteSpan]] = []

    # --- the methods that pyarrow calls

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        base = (0, self._position, self._size)[whence]
        self._position = base + position
        return self._position

    def read(self, nbytes: int = -1) -> bytes:
        return bytes(self.read_buffer(nbytes))

    def read_buffer(self, nbytes: int = -1) -> memoryview:
        start = self._position
        stop = self._size if nbytes is None or nbytes < 0 else min(start + nbytes, self._size)
        if stop <= start:
            return memoryview(b"")
        data = self._between(start, stop)
        self._position = stop
        return data

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for future in self._waiting.values():
            forget(future)
        self._waiting.clear()
        if head := bytes(self._head[1][: min(self._needed_head, _HEAD_BYTES)]):
            self._keep(0, head)
        start = self._needed_tail
        if self._size - _LONGEST_TAIL <= start < self._size:
            self._keep(start, bytes(self._tail[1][start - self._size :]))
        self._known.clear()

    # --- announced ranges

    def announce(self, ranges: Iterable[ByteSpan]) -> None:
        """Begin to fetch ranges that will be read; if they are very large, only the first part."""
        within = [(max(a, 0), min(b, self._size)) for a, b in ranges]
        missing = [span for span in within if span[0] < span[1]]
        with self._lock:
            self._known.extend(self._small_parts())
            for future in self._waiting.values():
                forget(future)
            self._waiting.clear()
            missing = [span for span in missing if not self._held(*span)]
            self._spans = self._requests.plan(missing)
            total = sum(stop - start for start, stop in self._spans)
            self._drops_read = total > _HELD_BYTES
            self._unread = shares(missing, self._spans) if self._drops_read else []
            held = 0
            for index, (start, stop) in enumerate(self._spans):
                held += stop - start
                if held > _HELD_BYTES:
                    break
                self._begin(index)

    def _small_parts(self) -> Iterator[tuple[int, memoryview]]:
        """Yield announced parts that may be read again: footers of parts of the file."""
        for index, future in self._waiting.items():
            start, stop = self._spans[index]
            if stop - start <= _SMALL_BYTES and future.done() and future.exception() is None:
                yield start, future.result()

    def _begin(self, index: int) -> Future[memoryview]:
        if index not in self._waiting:
            start, stop = self._spans[index]
            self._waiting[index] = in_background(lambda: self._fetch(start, stop))
        return self._waiting[index]

    def _between(self, start: int, stop: int) -> memoryview:
        known = self._held(start, stop)
        if known is not None:
            return known
        pieces: list[memoryview] = []
        while start < stop:
            # The last announced range that begins at or before ``start``: pairs are compared by
            # their second number if the first ones are equal, and no range ends behind the file.
            index = bisect_right(self._spans, (start, self._size + 1)) - 1
            if index < 0 or self._spans[index][1] <= start:
                after = self._spans[index + 1][0] if index + 1 < len(self._spans) else stop
                pieces.append(self._unannounced(start, min(stop, after)))
            else:
                pieces.append(self._announced(index, start, stop))
            start += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _announced(self, index: int, start: int, stop: int) -> memoryview:
        first, last = self._spans[index]
        with self._lock:
            future = self._begin(index)
            if self._drops_read and self._follows(index + 1, last):
                self._begin(index + 1)  # the next bytes are read next, by one of many columns, too
        stop = min(stop, last)
        data = self._patience.wait_for(future)[start - first : stop - first]
        if self._drops_read:
            with self._lock:
                self._note_read(index, start, stop)
        return data

    def _follows(self, index: int, last: int) -> bool:
        """Return True if a request continues where another ends, and has not been read already."""
        known = index < len(self._spans) and self._spans[index][0] == last
        return known and bool(self._unread[index])

    def _note_read(self, index: int, start: int, stop: int) -> None:
        """Drop the bytes of a request when all wanted ones were read, in any order."""
        if index < len(self._unread):
            self._unread[index] = without(self._unread[index], start, stop)
            if not self._unread[index]:
                self._waiting.pop(index, None)

    # --- other ranges

    def _unannounced(self, start: int, stop: int) -> memoryview:
        """Make one request, larger than needed at both ends of a file and for reads in a row."""
        known = self._held(start, stop)
        if known is not None:
            return known
        first, last = start, stop
        if stop > self._size - _TAIL_BYTES:
            first, last = max(min(start, self._size - _TAIL_BYTES), 0), self._size
        elif start < _HEAD_BYTES:
            first, last = 0, min(max(stop, _HEAD_BYTES), self._size)
        elif start == self._row_end:
            last = min(max(stop, start + self._row_bytes), self._size)
        self._row_end, self._row_bytes = last, min(2 * (last - first), _MOST_IN_A_ROW)
        data = self._patience.wait_for(in_background(lambda: self._fetch(first, last)))
        if last == self._size:
            self._tail = first, data
        elif first == 0:
            self._head = first, data
        else:
            self._last = first, data
        self._note_need(start, stop)
        return data[start - first : stop - first]

    def _held(self, start: int, stop: int) -> memoryview | None:
        """Return bytes that were fetched before."""
        for first, data in (self._tail, self._head, self._last, *self._known):
            if first <= start and stop <= first + len(data):
                self._note_need(start, stop)
                return data[start - first : stop - first]
        return None

    def _note_need(self, start: int, stop: int) -> None:
        """Note how much of the head and of the tail is needed."""
        if stop <= len(self._head[1]):
            self._needed_head = max(self._needed_head, stop)
        if start >= self._tail[0]:
            self._needed_tail = min(self._needed_tail, start)
