"""Payloads of members: read from local tars by ``pread``, or fetched from remote ones by ranges.

Every member is read with the header in front of it, or was before: an index entry that does not fit
its tar is a StaleIndexError, and never gives wrong bytes.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FileChangedError, ReadError, StaleIndexError
from headrace.model import DataFileInfo, Int64Array
from headrace.process import PerProcess
from headrace.sources.tar.checks import check_header, header_starts
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.index import TarIndex
from headrace.storage import Meter, Patience, changed, vanished, will_read

__all__ = ["Ints", "LocalTar", "LocalTars", "Payloads", "by_shard", "cut_by_bytes"]

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Numbers of shards or members."""

_BATCHES_AHEAD = 3
_NEAR_BYTES = 1 << 14
"""Bytes between members that are fetched rather than making another request."""
_MOST_ROWS = 4096
"""Rows of a run, however small they are."""
_OPEN_AT_ONCE = 1024
_SHARE_OF_DESCRIPTORS = 4
"""Tars may take one of this many descriptors of the process."""
_TRIMMED_BYTES = 31 << 20
"""Size of a block whose release makes glibc keep twice as much freed memory."""


# --- open tars


class LocalTar:
    """A tar that is open. A change of it is noticed before its bytes are handed out."""

    def __init__(self, file: DataFileInfo) -> None:
        self._path = file.path
        self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        self._size, self._modified = found.st_size, found.st_mtime_ns
        if file.file_size not in (None, self._size):
            raise FileChangedError(changed(file.path, file.file_size, self._size))
        if file.etag not in (None, f"{self._modified:x}"):
            raise FileChangedError(changed(file.path))

    def read(self, size: int, offset: int) -> bytes:
        """Return a part of the tar; it is shorter only if the tar ends there."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:  # one call reads 2 GiB at most
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill memory with a part of the tar; return the number of bytes that there are."""
        done = 0
        while done < len(memory):
            read = os.preadv(self._descriptor, [memory[done:]], offset + done)
            if not read:
                break
            done += read
        return done

    def check(self) -> None:
        """Raise a FileChangedError if the tar is no longer what was opened."""
        now = os.fstat(self._descriptor)
        if now.st_size != self._size or now.st_mtime_ns != self._modified:
            raise FileChangedError(changed(self._path, self._size, now.st_size))

    def close(self) -> None:
        """Do nothing: the tar stays open for as long as anything holds it."""

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class RemoteTar:
    """A remote tar that is open; its store notices a change of it."""

    def __init__(self, opened: pa.NativeFile) -> None:
        self._opened = opened

    def announce(self, spans: Sequence[tuple[int, int]]) -> None:
        """Fetch parts of the tar that are needed soon."""
        will_read(self._opened, spans)

    def read(self, size: int, offset: int) -> bytes:
        """Return a part of the tar; it is shorter only if the tar ends there."""
        self._opened.seek(offset)
        data: bytes = self._opened.read(size)
        return data

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill memory with a part of the tar; return the number of bytes that there are."""
        self._opened.seek(offset)
        data = self._opened.read_buffer(len(memory))
        memory[: data.size] = memoryview(data).cast("B")
        return int(data.size)

    def check(self) -> None:
        """Do nothing: reading has compared the version."""

    def close(self) -> None:
        """Give up what was announced and not read."""
        self._opened.close()


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
    limit = getrlimit(RLIMIT_NOFILE)[0]
    share = _OPEN_AT_ONCE if limit == RLIM_INFINITY else limit // _SHARE_OF_DESCRIPTORS
    return max(1, min(_OPEN_AT_ONCE, share))


# --- members


@dataclass(frozen=True, slots=True)
class _Part:
    """Members of one tar, in the order in which they lie there.

    Attributes:
        path: The tar.
        tar: The tar, opened.
        index: Its index.
        places: Places of the members among all that are wanted.
        members: Numbers of the members.
        offsets: Where their payloads begin.
        sizes: Bytes of their payloads.
    """

    path: str
    tar: LocalTar | RemoteTar
    index: TarIndex
    places: Int64Array
    members: list[int]
    offsets: list[int]
    sizes: list[int]

    def read(self, memories: Iterable[memoryview] | None = None) -> Iterator[bytes]:
        """Yield payloads whose headers were compared with the index.

        Args:
            memories: Memory for each payload, which is filled; nothing is yielded then.
        """
        tar, may_be_unchecked = self.tar, self.index.unchecked.item
        remote = isinstance(tar, RemoteTar)
        targets = iter(() if memories is None else memories)
        for member, offset, size in zip(self.members, self.offsets, self.sizes, strict=True):
            try:
                if remote or may_be_unchecked(member):
                    check_header(self.path, self.index, member, tar.read)
                if memories is None:
                    data = tar.read(size, offset)
                    self._check_length(member, len(data))
                    yield data
                else:
                    self._check_length(member, tar.read_into(next(targets), offset))
            except ReadError as error:
                if isinstance(error, StaleIndexError) or not remote:
                    raise
                name = self.index.name(member)
                raise type(error)(f"member {name!r} cannot be read: {error}") from None
        tar.check()

    def _check_length(self, member: int, length: int) -> None:
        size = self.index.sizes.item(member)
        if length != size:
            self.tar.check()
            raise ReadError(
                f"{self.path}: member {self.index.name(member)!r} has {size:,} bytes, of which "
                f"{length:,} can be read; the tar breaks off or its index is not its own"
            )


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
        numbers = wanted.tolist(), index.offsets[wanted].tolist(), index.sizes[wanted].tolist()
        path, tar = self.collection.files.paths[shard], self._tars.get(shard)
        return list(_Part(path, tar, index, wanted, *numbers).read())

    def read_many(self, shards: Ints, members: Ints) -> list[bytes]:
        """Return members of any tars, in the order asked for: ``members[i]`` of ``shards[i]``."""
        return next(self.ahead([(shards, members)]))

    def ahead(self, batches: Iterable[tuple[Ints, Ints]]) -> Iterator[list[bytes]]:
        """Yield the members of each batch (shards, members), while later ones are being fetched."""
        for parts in self._asked(batches):
            found = [b""] * sum(len(part.members) for part in parts)
            for part in parts:
                for place, payload in zip(part.places.tolist(), part.read(), strict=True):
                    found[place] = payload
            yield found

    def column(self, shards: Int64Array, members: Int64Array) -> pa.LargeBinaryArray:
        """Return members of any tars as a column, in the order asked for; null for the number -1.

        Payloads are read into the memory of the column.
        """
        there = np.flatnonzero(members >= 0)
        lengths = np.zeros(len(members), np.int64)
        buffer = pa.py_buffer(b"")
        for parts in self._asked([(shards[there], members[there])]):
            for part in parts:
                lengths[there[part.places]] = part.sizes
            starts = np.cumsum(lengths) - lengths
            buffer = pa.allocate_buffer(int(lengths.sum()))
            memory = memoryview(buffer).cast("B")
            for part in parts:
                begins = starts[there[part.places]].tolist()
                spans = zip(begins, part.sizes, strict=True)
                deque(part.read(memory[start : start + size] for start, size in spans), 0)
        valid = None if len(there) == len(members) else pa.array(members >= 0).buffers()[1]
        edges = np.concatenate([[0], np.cumsum(lengths)])
        buffers = [valid, pa.py_buffer(edges), buffer]
        return pa.Array.from_buffers(pa.large_binary(), len(members), buffers)

    def _asked(self, batches: Iterable[tuple[Ints, Ints]]) -> Iterator[list[_Part]]:
        """Yield batches as parts of tars; those of some remote batches ahead are being fetched."""
        asked: deque[list[_Part]] = deque()
        ahead = 0 if self._store.local else _BATCHES_AHEAD
        try:
            for shards, members in batches:
                asked.append(self._parts(np.asarray(shards), np.asarray(members)))
                if len(asked) > ahead:
                    yield asked[0]
                    _close(asked.popleft())
            while asked:
                yield asked[0]
                _close(asked.popleft())
        finally:
            for parts in asked:
                _close(parts)

    def _parts(self, shards: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> list[_Part]:
        """Open tars, and announce what is read of them."""
        if len(shards) != len(wanted):
            raise ValueError(f"{len(shards)} shards for {len(wanted)} members")
        parts = []
        for shard, places in by_shard(shards):
            index, file = self.collection.index(shard), self.collection.files[shard]
            order = np.argsort(index.offsets[wanted[places]], kind="stable")
            members = wanted[places][order]
            offsets, sizes = index.offsets[members], index.sizes[members]
            tar: LocalTar | RemoteTar
            if self._store.local:
                tar = self._tars.get(shard)
            else:
                tar = RemoteTar(self._store.open(file))
                tar.announce(_spans(index, members, offsets + sizes))
            numbers = members.tolist(), offsets.tolist(), sizes.tolist()
            parts.append(_Part(file.path, tar, index, places[order], *numbers))
        return parts

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


def _close(parts: Sequence[_Part]) -> None:
    for part in parts:
        part.tar.close()


def _spans(index: TarIndex, members: npt.NDArray[Any], stops: Int64Array) -> list[tuple[int, int]]:
    """Return the bytes of members with their headers, and of what lies between near ones."""
    starts = header_starts(index, members)
    reached = np.maximum.accumulate(stops)
    begins = np.flatnonzero(np.append(True, starts[1:] - reached[:-1] > _NEAR_BYTES))
    ends = reached[np.append(begins[1:], len(starts)) - 1]
    return list(zip(starts[begins].tolist(), ends.tolist(), strict=True))
