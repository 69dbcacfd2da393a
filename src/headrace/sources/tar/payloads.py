"""Payloads of members: copied from mapped local tars, or fetched from remote ones by ranges.

Every member is read with the header in front of it, or was before: an index entry that does not fit
its tar is a StaleIndexError, and never gives wrong bytes.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import add
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RUSAGE_SELF, getrlimit, getrusage
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FileChangedError, ReadError, StaleIndexError
from headrace.model import DataFileInfo, Int64Array
from headrace.process import PerProcess
from headrace.sources.tar._headers import BLOCK
from headrace.sources.tar.checks import check_headers, header_starts
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.scan import PlainBytes
from headrace.storage import Meter, Patience, will_read
from headrace.storage.store import changed, vanished

__all__ = ["Ints", "LocalTar", "LocalTars", "Payloads", "by_shard", "cut_by_bytes"]

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Numbers of shards or members."""
PayloadBytes = npt.NDArray[np.uint8]

_BATCHES_AHEAD = 3
_NEAR_BYTES = 1 << 14
"""Bytes between members that are fetched rather than making another request."""
_MOST_ROWS = 4096
"""Rows of a run, however small they are."""
_OPEN_AT_ONCE = 1024
_SHARE_OF_DESCRIPTORS = 8
"""Tars may take one of this many descriptors of the process; each takes two, one by its map."""
_SLOW_S = 1e-3
_READS_AFTER_A_FAULT = 256
"""Members that are read without the map after the disk was waited for."""
_TRIMMED_BYTES = 31 << 20
"""Size of a block whose release makes glibc keep twice as much freed memory."""


# --- local tars


class LocalTar:
    """A tar that is open and mapped.

    A change of the tar is noticed before its bytes are handed out: its size is compared before they
    are copied, since touching the map of what was cut off kills the process, and size and time
    after that.

    Making bytes from a map is three times as fast as ``pread``, but holds the GIL while the disk is
    waited for. Once that has happened the next members are read without the GIL.
    """

    def __init__(self, file: DataFileInfo) -> None:
        self._path = file.path
        self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        self.size, self._modified = found.st_size, found.st_mtime_ns
        if file.file_size not in (None, self.size):
            raise FileChangedError(changed(file.path, file.file_size, self.size))
        if file.etag not in (None, f"{self._modified:x}"):
            raise FileChangedError(changed(file.path))
        self._map: mmap.mmap | bytes = b""
        if self.size:
            self._map = mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        self._array = np.frombuffer(self._map, np.uint8)
        pread = partial(os.pread, self._descriptor)
        self.bytes = PlainBytes(pread, self.size, self._path)
        self._reads_left, self._faults = 0, _major_faults()

    def read(self, offsets: Iterable[int], sizes: Iterable[int]) -> list[bytes]:
        """Return parts of the tar; a part beyond its end is shorter."""
        mapped = self._map
        if self._reads_left or isinstance(mapped, bytes):
            found = self._read(list(zip(offsets, sizes, strict=True)))
        else:
            if mapped.size() < self.size:
                self.check()
            then = perf_counter()
            found = [
                mapped[start : start + size] for start, size in zip(offsets, sizes, strict=True)
            ]
            if perf_counter() - then > _SLOW_S:
                before, self._faults = self._faults, _major_faults()
                self._reads_left = _READS_AFTER_A_FAULT if self._faults > before else 0
        self.check()
        return found

    def _read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read parts by system calls, all of them announced before the first is read."""
        self._reads_left = max(0, self._reads_left - len(spans))
        if len(spans) > 1 and hasattr(os, "posix_fadvise"):
            for offset, size in spans:
                os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        return [_pread(self._descriptor, offset, size) for offset, size in spans]

    def copy_to(
        self,
        memory: PayloadBytes,
        offsets: Sequence[int],
        sizes: Sequence[int],
        places: Sequence[int],
    ) -> None:
        """Copy parts of the tar to places in memory, without the GIL."""
        self.check()
        mapped = self._array
        for offset, size, place in zip(offsets, sizes, places, strict=True):
            memory[place : place + size] = mapped[offset : offset + size]
        self.check()

    def check(self) -> None:
        """Raise a FileChangedError if the tar is no longer what was opened."""
        now = os.fstat(self._descriptor)
        if now.st_size != self.size or now.st_mtime_ns != self._modified:
            raise FileChangedError(changed(self._path, self.size, now.st_size))

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _major_faults() -> int:
    return getrusage(RUSAGE_SELF).ru_majflt


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    """Read a part by as many system calls as it takes: each reads 2 GiB at most."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class LocalTars:
    """The tars of a list of files, opened when they are needed.

    Those not used for longest are closed when too many are open, or no descriptor is left.
    """

    def __init__(self, files: Sequence[DataFileInfo]) -> None:
        self._files = files
        self._open: OrderedDict[int, LocalTar] = OrderedDict()
        self._lock = PerProcess(threading.Lock)
        # glibc returns freed memory at once until a large block was freed, and payloads would be
        # copied to fresh pages every time, which takes three times as long.
        bytes(_TRIMMED_BYTES)

    def get(self, shard: int) -> LocalTar:
        """Return a tar, which any thread may use for as long as it holds it."""
        try:
            self._open.move_to_end(shard)
            return self._open[shard]
        except KeyError:  # it is not open, or another thread has just closed it
            pass
        with self._lock.get():
            if shard not in self._open:
                self._open[shard] = self._opened(self._files[shard])
                self._close_oldest(_most_open())
            return self._open[shard]

    def _opened(self, file: DataFileInfo) -> LocalTar:
        """Open a tar; close others if there is no descriptor left."""
        while True:
            try:
                return LocalTar(file)
            except FileNotFoundError:
                raise FileChangedError(vanished(file.path)) from None
            except ReadError:
                raise
            except OSError as error:
                too_many = error.errno in (errno.EMFILE, errno.ENFILE)
                if not (too_many and self._open):
                    cure = "; raise the limit of open files (ulimit -n)" if too_many else ""
                    message = f"{file.path} cannot be opened: {error.strerror}{cure}"
                    raise ReadError(message) from error
            self._close_oldest(len(self._open) // 2)

    def _close_oldest(self, left: int) -> None:
        while len(self._open) > left:
            self._open.popitem(last=False)


def _most_open() -> int:
    descriptors = getrlimit(RLIMIT_NOFILE)[0]
    if descriptors == RLIM_INFINITY:
        return _OPEN_AT_ONCE
    return max(1, min(_OPEN_AT_ONCE, descriptors // _SHARE_OF_DESCRIPTORS))


# --- members


@dataclass(frozen=True, slots=True)
class _Part:
    """Members of one tar, in the order in which they lie there.

    Attributes:
        shard: The number of the tar.
        index: Its index.
        places: Places of the members among all that are wanted.
        members: Numbers of the members.
        offsets: Where their payloads begin.
        sizes: Bytes of their payloads.
    """

    shard: int
    index: TarIndex
    places: Int64Array
    members: list[int]
    offsets: list[int]
    sizes: list[int]


class Payloads:
    """Reads members of a collection, from any number of threads.

    A read that fails, or gives too few bytes, is an error that names the tar and the member.
    """

    def __init__(self, collection: TarCollection) -> None:
        self.collection = collection
        self._store = collection.store
        self._tars = LocalTars(collection.files)

    def during(self, meter: Meter, patience: Patience) -> Payloads:
        """Return the same for another caller, with its own count of requests and its patience."""
        other = Payloads(self.collection)
        other._store, other._tars = self._store.during(meter, patience), self._tars
        return other

    def read(self, shard: int, members: Ints) -> list[bytes]:
        """Return members of one tar, in the order asked for."""
        if not self._store.local:
            return self.read_many(np.full(len(members), shard), members)
        index, wanted = self.collection.index(shard), np.asarray(members, np.int64)
        offsets, sizes = index.offsets[wanted].tolist(), index.sizes[wanted].tolist()
        return self._checked_tar(shard, index, wanted.tolist(), offsets, sizes).read(offsets, sizes)

    def read_many(self, shards: Ints, members: Ints) -> list[bytes]:
        """Return members of any tars, in the order asked for: ``members[i]`` of ``shards[i]``."""
        return next(self.ahead([(shards, members)]))

    def ahead(self, batches: Iterable[tuple[Ints, Ints]]) -> Iterator[list[bytes]]:
        """Yield the members of each batch (shards, members), while later ones are being fetched."""
        for parts, files in self._asked(batches):
            found = [b""] * sum(len(part.members) for part in parts)
            for part, file in zip(parts, files, strict=True):
                for place, payload in zip(
                    part.places.tolist(), self._bytes(part, file), strict=True
                ):
                    found[place] = payload
            yield found

    def _bytes(self, part: _Part, file: pa.NativeFile | None) -> Iterable[bytes]:
        if file is not None:
            return (data.to_pybytes() for data in self._fetched(part, file))
        tar = self._checked_tar(part.shard, part.index, part.members, part.offsets, part.sizes)
        return tar.read(part.offsets, part.sizes)

    def column(self, shards: Int64Array, members: Int64Array) -> pa.LargeBinaryArray:
        """Return members of any tars as a column, in the order asked for; null for the number -1.

        Each payload is copied once, into the memory of the column.
        """
        there = np.flatnonzero(members >= 0)
        lengths = np.zeros(len(members), np.int64)
        buffer = pa.py_buffer(b"")
        for parts, files in self._asked([(shards[there], members[there])]):
            for part in parts:
                lengths[there[part.places]] = part.sizes
            starts = np.cumsum(lengths) - lengths
            buffer = pa.allocate_buffer(int(lengths.sum()))
            memory = np.frombuffer(buffer, np.uint8)
            for part, file in zip(parts, files, strict=True):
                self._copy(part, file, memory, starts[there[part.places]].tolist())
        valid = None if len(there) == len(members) else pa.array(members >= 0).buffers()[1]
        edges = np.concatenate([[0], np.cumsum(lengths)])
        buffers = [valid, pa.py_buffer(edges), buffer]
        return pa.Array.from_buffers(pa.large_binary(), len(members), buffers)

    def _copy(
        self, part: _Part, file: pa.NativeFile | None, memory: PayloadBytes, places: list[int]
    ) -> None:
        if file is None:
            tar = self._checked_tar(part.shard, part.index, part.members, part.offsets, part.sizes)
            tar.copy_to(memory, part.offsets, part.sizes, places)
            return
        for place, data in zip(places, self._fetched(part, file), strict=True):
            memory[place : place + data.size] = np.frombuffer(data, np.uint8)

    # --- from local tars

    def _checked_tar(
        self, shard: int, index: TarIndex, members: list[int], offsets: list[int], sizes: list[int]
    ) -> LocalTar:
        """Return a tar that holds these members: headers not seen before are compared."""
        tar = self._tars.get(shard)
        is_unchecked = index.unchecked.item
        left = [member for member in members if is_unchecked(member)]
        if left:
            starts = [index.offsets.item(member) - BLOCK for member in left]
            headers = tar.read(starts, [BLOCK] * len(left))
            check_headers(tar.bytes.shown, index, left, headers, tar.bytes)
        if max(map(add, offsets, sizes), default=0) > tar.size:
            for member, offset, size in zip(members, offsets, sizes, strict=True):
                self._check_length(shard, index, member, min(size, tar.size - offset))
        return tar

    def _check_length(self, shard: int, index: TarIndex, member: int, length: int) -> None:
        size = int(index.sizes[member])
        if length != size:
            raise ReadError(
                f"{self.collection.files.paths[shard]}: member {index.name(member)!r} has "
                f"{size:,} bytes, of which {length:,} can be read; the tar breaks off or its index "
                "is not its own"
            )

    # --- from remote tars

    def _asked(
        self, batches: Iterable[tuple[Ints, Ints]]
    ) -> Iterator[tuple[list[_Part], list[pa.NativeFile | None]]]:
        """Yield batches as parts of tars, each with its file if it is remote.

        The files of some batches ahead have been asked for their members.
        """
        asked: deque[tuple[list[_Part], list[pa.NativeFile | None]]] = deque()
        try:
            for shards, members in batches:
                parts = self._parts(shards, members)
                asked.append((parts, [self._ask(part) for part in parts]))
                if self._store.local or len(asked) > _BATCHES_AHEAD:
                    yield asked[0]
                    _close(asked.popleft()[1])
            while asked:
                yield asked[0]
                _close(asked.popleft()[1])
        finally:
            for _, files in asked:
                _close(files)

    def _ask(self, part: _Part) -> pa.NativeFile | None:
        """Ask for the members of a remote tar, with their headers."""
        if self._store.local:
            return None
        file = self._store.open(self.collection.files[part.shard])
        will_read(file, _spans(part))
        return file

    def _fetched(self, part: _Part, file: pa.NativeFile) -> Iterator[pa.Buffer]:
        """Yield payloads whose headers were compared with the index."""
        path, index = self.collection.files.paths[part.shard], part.index
        for member, offset, size in zip(part.members, part.offsets, part.sizes, strict=True):
            try:
                file.seek(offset - BLOCK)
                data = file.read_buffer(BLOCK + size)
                source = _bytes_until(offset + size, file, path)
                check_headers(path, index, [member], [data[:BLOCK].to_pybytes()], source)
                self._check_length(part.shard, index, member, data.size - BLOCK)
                yield data[BLOCK:]
            except StaleIndexError:
                raise
            except ReadError as error:
                name = part.index.name(member)
                raise type(error)(f"member {name!r} cannot be read: {error}") from None

    # --- parts of tars

    def _parts(self, shards: Ints, members: Ints) -> list[_Part]:
        which, wanted = np.asarray(shards), np.asarray(members)
        if len(which) != len(wanted):
            raise ValueError(f"{len(which)} shards for {len(wanted)} members")
        return [self._part(shard, places, wanted[places]) for shard, places in by_shard(which)]

    def _part(self, shard: int, places: Int64Array, members: npt.NDArray[Any]) -> _Part:
        index = self.collection.index(shard)
        offsets = index.offsets[members]
        order = np.argsort(offsets, kind="stable")
        members, offsets = members[order], offsets[order]
        sizes = index.sizes[members]
        return _Part(
            shard, index, places[order], members.tolist(), offsets.tolist(), sizes.tolist()
        )

    def __reduce__(self) -> tuple[type[Payloads], tuple[TarCollection]]:
        return Payloads, (self.collection,)


def by_shard(shards: npt.NDArray[Any]) -> list[tuple[int, Int64Array]]:
    """Return the shards of some rows, each with the places of its rows."""
    if not len(shards):
        return []
    order = np.argsort(shards, kind="stable")
    held, begins = np.unique(shards[order], return_index=True)
    return list(zip(held.tolist(), np.split(order, begins[1:]), strict=True))


def cut_by_bytes(numbers: Int64Array, sizes: Int64Array, most_bytes: int) -> Iterator[Int64Array]:
    """Yield runs of samples or members of at most ``most_bytes``, and of at least one."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(numbers):
        above = most_bytes + (int(ends[begin - 1]) if begin else 0)
        stop = int(np.searchsorted(ends, above, side="right"))
        stop = min(max(stop, begin + 1), begin + _MOST_ROWS)
        yield numbers[begin:stop]
        begin = stop


def _bytes_until(end: int, file: pa.NativeFile, path: str) -> PlainBytes:
    """Return the bytes of a remote tar as if it ended somewhere: what is behind is not fetched."""

    def pread(size: int, start: int) -> bytes:
        file.seek(start)
        data: bytes = file.read(max(min(size, end - start), 0))
        return data

    return PlainBytes(pread, end, path)


def _close(files: Sequence[pa.NativeFile | None]) -> None:
    for file in files:
        if file is not None:
            file.close()


def _spans(part: _Part) -> list[tuple[int, int]]:
    """Return the bytes of members with their headers, and of what lies between near ones."""
    starts = header_starts(part.index, np.array(part.members))
    stops = np.array(part.offsets, np.int64) + np.array(part.sizes, np.int64)
    reached = np.maximum.accumulate(stops)
    begins = np.flatnonzero(np.append(True, starts[1:] - reached[:-1] > _NEAR_BYTES))
    ends = reached[np.append(begins[1:], len(starts)) - 1]
    return list(zip(starts[begins].tolist(), ends.tolist(), strict=True))
