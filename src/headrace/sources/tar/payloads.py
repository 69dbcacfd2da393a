"""Bytes of members: slices of mapped tars of this machine, or coalesced ranges of remote ones.

Every member is read with the header in front of it, or was before: an index entry that does not fit
its tar is a StaleIndexError, and never gives wrong bytes.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RUSAGE_SELF, getrlimit, getrusage
from time import perf_counter
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FileChangedError, ReadError, StaleIndexError
from headrace.model import DataFileInfo, Int64Array
from headrace.process import PerProcess
from headrace.sources.tar.checks import check_headers, header_starts, unchecked
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.headers import BLOCK
from headrace.sources.tar.index import TarIndex
from headrace.storage import Meter, Patience, will_read
from headrace.storage.store import changed, vanished

__all__ = ["Ints", "MappedTar", "MappedTars", "Payloads", "by_shard", "cut_by_bytes"]

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Numbers of shards or members."""

_BATCHES_AHEAD = 3
_NEAR_BYTES = 1 << 14
"""Bytes between members that are fetched rather than making another request."""
_MOST_ROWS = 4096
"""Rows of a run, however small they are."""
_OPEN_AT_ONCE = 1024
_SHARE_OF_DESCRIPTORS = 8
"""Tars may take one of this many descriptors of the process; each takes two, one by its map."""
_SLOW_S, _SLOW_BYTES_PER_S = 1e-3, 1e9
_READS_WHILE_SLOW = 256


# --- tars of this machine


class MappedTar:
    """A tar that is open and mapped.

    A change of the tar is noticed before its bytes are handed out: its size is compared before they
    are copied, since touching the map of what was cut off kills the process, and size and time
    after that.

    Copying from a map is twice as fast as reading, but holds the GIL while the disk is waited for.
    Once a copy takes long, the next ones are read for a while, without the GIL.
    """

    def __init__(self, file: DataFileInfo) -> None:
        self._path = file.path
        self._descriptor = -1
        self._reads = 0
        self._faults = getrusage(RUSAGE_SELF).ru_majflt
        try:
            self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self._descriptor)
            self._size, self._modified = found.st_size, found.st_mtime_ns
            self._map: mmap.mmap | bytes = b""
            if self._size:
                self._map = mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        except FileNotFoundError:
            raise FileChangedError(vanished(file.path)) from None
        except OSError as error:
            raise _NotOpenedError(file.path, error) from error
        if file.file_size is not None and self._size != file.file_size:
            raise FileChangedError(changed(file.path, file.file_size, self._size))
        if file.etag is not None and f"{self._modified:x}" != file.etag:
            raise FileChangedError(changed(file.path))

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return copies of parts of the tar; a part beyond its end is shorter."""
        if self._reads:
            found = self._read(offsets, sizes)
        else:
            if isinstance(self._map, mmap.mmap) and self._map.size() < self._size:
                self.check()
            found = self._copied(offsets, sizes)
        self.check()
        return found

    def views(self, offsets: Iterable[int], sizes: Iterable[int]) -> list[memoryview]:
        """Return parts of the map itself, to be copied at once and followed by ``check``."""
        self.check()
        whole = memoryview(self._map)
        return [whole[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]

    def will_read(self, offset: int, size: int) -> None:
        """Have the system fetch a part from the disk, without waiting for it."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def check(self) -> None:
        """Raise a FileChangedError if the tar is no longer what was opened."""
        now = os.fstat(self._descriptor)
        if now.st_size != self._size or now.st_mtime_ns != self._modified:
            raise FileChangedError(changed(self._path, self._size, now.st_size))

    def _copied(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        mapped, found, then = self._map, list[bytes](), perf_counter()
        for offset, size in zip(offsets, sizes, strict=True):
            found.append(mapped[offset : offset + size])
            now = perf_counter()
            if now - then > _SLOW_S + size / _SLOW_BYTES_PER_S and self._waited_for_disk():
                self._reads = _READS_WHILE_SLOW
                done = len(found)
                return found + self._read(offsets[done:], sizes[done:])
            then = now
        return found

    def _waited_for_disk(self) -> bool:
        """Return True if the disk took long, and not another process that had the processor."""
        before, self._faults = self._faults, getrusage(RUSAGE_SELF).ru_majflt
        return self._faults > before

    def _read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Read parts by system calls, all of them announced before the first is read."""
        parts = list(zip(offsets, sizes, strict=True))
        self._reads = max(0, self._reads - len(parts))
        if len(parts) > 1:
            for offset, size in parts:
                self.will_read(offset, size)
        return [_read_all(self._descriptor, offset, size) for offset, size in parts]

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _read_all(descriptor: int, offset: int, size: int) -> bytes:
    """Read a part by as many system calls as it takes: each reads 2 GiB at most."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class _NotOpenedError(ReadError):
    """The system does not open or map a tar."""

    def __init__(self, path: str, error: OSError) -> None:
        self.too_many = error.errno in (errno.EMFILE, errno.ENFILE)
        cure = "; raise the limit of open files (ulimit -n)" if self.too_many else ""
        super().__init__(f"{path} cannot be opened: {error.strerror}{cure}")


_open: OrderedDict[tuple[int, int], MappedTar] = OrderedDict()
"""All tars that are open in this process, for descriptors are counted by process: by the identity
of their list of files, and their place there."""
_lock = PerProcess(threading.Lock)


class MappedTars:
    """The tars of a list of files, opened when they are needed.

    Users of the same list share them. Those not used for longest are closed when too many are
    open, whichever list they are of.
    """

    def __init__(self, files: Sequence[DataFileInfo]) -> None:
        self._files = files
        self._list = id(files)
        finalize(self, _close, self._list).atexit = False

    def get(self, shard: int) -> MappedTar:
        """Return a tar, which any thread may use for as long as it holds it."""
        key = self._list, shard
        try:
            _open.move_to_end(key)
            return _open[key]
        except KeyError:  # it is not open, or another thread has just closed it
            pass
        with _lock.get():
            tar = _open.get(key) or _opened(self._files[shard])
            _open[key] = tar
            _close_oldest(_most_open())
        return tar


def _opened(file: DataFileInfo) -> MappedTar:
    """Open a tar; close others if there is no descriptor left."""
    while True:
        try:
            return MappedTar(file)
        except _NotOpenedError as error:
            if not (error.too_many and _open):
                raise ReadError(str(error)) from error.__cause__
        _close_oldest(len(_open) // 2)


def _most_open() -> int:
    descriptors = getrlimit(RLIMIT_NOFILE)[0]
    if descriptors == RLIM_INFINITY:
        return _OPEN_AT_ONCE
    return max(1, min(_OPEN_AT_ONCE, descriptors // _SHARE_OF_DESCRIPTORS))


def _close_oldest(left: int) -> None:
    """Close tars until at most ``left`` are open."""
    with suppress(KeyError):  # the collector may close others meanwhile
        while len(_open) > left:
            _open.popitem(last=False)


def _close(files: int) -> None:
    """Close all tars of a list; other users of the list open them again."""
    for key in [key for key in list(_open) if key[0] == files]:
        _open.pop(key, None)


# --- members


@dataclass(frozen=True, slots=True)
class _Part:
    """Members of one tar, in the order in which they lie there."""

    shard: int
    index: TarIndex
    places: list[int]
    """Their places among all members that are wanted."""
    members: list[int]
    offsets: list[int]
    sizes: list[int]


class _Files(list[Any]):
    """Files that are open until they have been read from."""

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self:
            file.close()


@dataclass(frozen=True, slots=True)
class _Begun:
    """Members that were asked for."""

    parts: Sequence[_Part]
    files: _Files
    count: int
    """Number of the members of all parts."""


class Payloads:
    """Reads members of a collection, from any number of threads.

    A read that fails, or gives too few bytes, is an error that names the tar and the member.
    """

    def __init__(self, collection: TarCollection) -> None:
        self.collection = collection
        self._store = collection.store
        self._tars = MappedTars(collection.files)

    def during(self, meter: Meter, patience: Patience) -> Payloads:
        """Return the same for another caller, with its own count of requests and its patience."""
        other = Payloads(self.collection)
        other._store, other._tars = self._store.during(meter, patience), self._tars
        return other

    def read(self, shard: int, members: Ints) -> list[bytes]:
        """Return members of one tar, in the order asked for."""
        if not self._store.local:
            return self.read_many(np.full(len(members), shard), members)
        index = self.collection.index(shard)
        wanted = np.asarray(members, np.int64)
        offsets, sizes = index.offsets[wanted].tolist(), index.sizes[wanted].tolist()
        return self._read(shard, index, wanted.tolist(), offsets, sizes)

    def read_many(self, shards: Ints, members: Ints) -> list[bytes]:
        """Return members of any tars, in the order asked for: ``members[i]`` of ``shards[i]``."""
        parts = self._parts(shards, members)
        if not self._store.local:
            return self._received(_Begun(parts, self._asked_for(parts), len(members)))
        found = [b""] * len(members)
        for part in parts:
            payloads = self._read(part.shard, part.index, part.members, part.offsets, part.sizes)
            _put(part, payloads, found)
        return found

    def ahead(self, batches: Iterable[tuple[Ints, Ints]]) -> Iterator[list[bytes]]:
        """Yield what ``read_many`` returns for each batch, while later ones are being fetched."""
        if self._store.local:
            yield from (self.read_many(*batch) for batch in batches)
            return
        begun: deque[_Begun] = deque()
        try:
            for shards, members in batches:
                parts = self._parts(shards, members)
                begun.append(_Begun(parts, self._asked_for(parts), len(members)))
                if len(begun) > _BATCHES_AHEAD:
                    yield self._received(begun.popleft())
            while begun:
                yield self._received(begun.popleft())
        finally:
            for later in begun:
                later.files.close()

    @contextmanager
    def views(self, shards: Ints, members: Ints) -> Iterator[list[memoryview]]:
        """Give members without a copy, to be copied inside the context and not to be decoded.

        A tar of this machine that is changed meanwhile is an error at the end.
        """
        parts = self._parts(shards, members)
        found: list[memoryview] = [memoryview(b"")] * len(members)
        if not self._store.local:
            with self._asked_for(parts) as files:
                for part, file in zip(parts, files, strict=True):
                    _put(part, [memoryview(data) for data in self._fetched(part, file)], found)
            yield found
            return
        tars = [self._tars.get(part.shard) for part in parts]
        for part, tar in zip(parts, tars, strict=True):
            views = tar.views(part.offsets, part.sizes)
            self._check_sizes(part.shard, part.index, part.members, part.sizes, views)
            _put(part, views, found)
            self._check_places(part.shard, tar, part.index, part.members)
        yield found
        for tar in tars:
            tar.check()

    # --- of this machine

    def _read(
        self, shard: int, index: TarIndex, members: list[int], offsets: list[int], sizes: list[int]
    ) -> list[bytes]:
        """Read members together with those of their headers that were not compared before."""
        tar = self._tars.get(shard)
        left = unchecked(index, members)
        if left:
            found = tar.read(offsets + _header_places(index, left), sizes + [BLOCK] * len(left))
            headers, found = found[len(sizes) :], found[: len(sizes)]
            self._check_headers(shard, tar, index, left, headers)
        else:
            found = tar.read(offsets, sizes)
        self._check_sizes(shard, index, members, sizes, found)
        return found

    def _check_places(
        self, shard: int, tar: MappedTar, index: TarIndex, members: list[int]
    ) -> None:
        """Compare members that are read later with their headers."""
        left = unchecked(index, members)
        if left:
            headers = tar.read(_header_places(index, left), [BLOCK] * len(left))
            self._check_headers(shard, tar, index, left, headers)

    def _check_headers(
        self, shard: int, tar: MappedTar, index: TarIndex, members: list[int], headers: list[bytes]
    ) -> None:
        def read(start: int, stop: int) -> bytes:
            return tar.read([start], [stop - start])[0]

        check_headers(self.collection.files.paths[shard], index, members, headers, read)

    def _check_sizes(
        self,
        shard: int,
        index: TarIndex,
        members: Sequence[int],
        sizes: list[int],
        found: Sequence[Sized],
    ) -> None:
        if [len(data) for data in found] == sizes:
            return
        for member, size, data in zip(members, sizes, found, strict=True):
            if len(data) != size:
                raise ReadError(
                    f"{self.collection.files[shard].path}: member {index.name(member)!r} has "
                    f"{size:,} bytes, of which {len(data):,} can be read; the tar breaks off or "
                    "its index is not its own"
                )

    # --- of stores

    def _asked_for(self, parts: Sequence[_Part]) -> _Files:
        """Ask for the members of all tars, with their headers, side by side."""
        files = _Files()
        for part in parts:
            file = self._store.open(self.collection.files[part.shard])
            files.append(file)
            will_read(file, _spans(part))
        return files

    def _received(self, begun: _Begun) -> list[bytes]:
        found = [b""] * begun.count
        with begun.files as files:
            for part, file in zip(begun.parts, files, strict=True):
                _put(part, [data.to_pybytes() for data in self._fetched(part, file)], found)
        return found

    def _fetched(self, part: _Part, file: pa.NativeFile) -> Iterator[pa.Buffer]:
        """Yield payloads whose headers were compared with the index."""
        path, index = self.collection.files.paths[part.shard], part.index

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            data: bytes = file.read(stop - start)
            return data

        for member, offset, size in zip(part.members, part.offsets, part.sizes, strict=True):
            try:
                file.seek(offset - BLOCK)
                data = file.read_buffer(BLOCK + size)
                check_headers(path, index, [member], [data[:BLOCK].to_pybytes()], read)
                payload = data[BLOCK:]
                self._check_sizes(part.shard, index, [member], [size], [payload])
                yield payload
            except StaleIndexError:
                raise
            except ReadError as error:
                name = part.index.name(member)
                raise type(error)(f"member {name!r} cannot be read: {error}") from None

    # --- of both

    def _parts(self, shards: Ints, members: Ints) -> list[_Part]:
        which, wanted = np.asarray(shards), np.asarray(members)
        if len(which) != len(wanted):
            raise ValueError(f"{len(which)} shards for {len(wanted)} members")
        return [self._part(shard, rows, wanted[rows]) for shard, rows in by_shard(which)]

    def _part(self, shard: int, places: Int64Array, members: npt.NDArray[Any]) -> _Part:
        index = self.collection.index(shard)
        offsets = index.offsets[members]
        order = np.argsort(offsets, kind="stable")
        members = members[order]
        columns = places[order], members, offsets[order], index.sizes[members]
        return _Part(shard, index, *(column.tolist() for column in columns))

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


def _put(part: _Part, found: Sequence[Any], into: list[Any]) -> None:
    for place, data in zip(part.places, found, strict=True):
        into[place] = data


def _header_places(index: TarIndex, members: list[int]) -> list[int]:
    """Return where the headers of members lie."""
    return [index.offsets.item(member) - BLOCK for member in members]


def _spans(part: _Part) -> list[tuple[int, int]]:
    """Return the bytes of members with their headers, and of what lies between near ones."""
    starts = header_starts(part.index, np.array(part.members))
    stops = np.array(part.offsets, np.int64) + np.array(part.sizes, np.int64)
    reached = np.maximum.accumulate(stops)
    begins = np.flatnonzero(np.append(True, starts[1:] - reached[:-1] > _NEAR_BYTES))
    ends = reached[np.append(begins[1:], len(starts)) - 1]
    return list(zip(starts[begins].tolist(), ends.tolist(), strict=True))
