"""Payloads of members: read from local tars by ``pread``, or fetched from remote ones by ranges.

The header of every member is read before its payload is returned for the first time: an index entry
that does not match its tar is a StaleIndexError, and never gives wrong bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FileChangedError, ReadError, StaleIndexError
from headrace.model import DataFileInfo, Int64Array
from headrace.sources.tar._headers import BLOCK
from headrace.sources.tar.checks import check_header, header_starts
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.index import TarIndex
from headrace.storage import Meter, Patience, changed, vanished, will_read

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Numbers of shards or members."""

Memory = memoryview | bytearray

_WORTH_A_REQUEST = 1 << 14
"""Bytes between members that are fetched rather than making another request."""
_NEAR_BYTES = 4096
"""Bytes that are read and copied rather than making another system call."""
_COPIED_BYTES = 128 << 10
"""Size of a payload up to which it is copied rather than read without its header."""
_MOST_AT_ONCE = 500
"""Members of one system call, which takes at most 1,024 buffers."""
_RUN_BYTES = 1 << 20
"""Largest size of members that are read by one call, so that they are copied within the cache."""
_MOST_ROWS = 4096
"""Largest number of rows of a run."""
_OPEN_AT_ONCE = 1024
_SHARE_OF_DESCRIPTORS = 4
"""Share of the file descriptors of the process that tars may use, as one divided by this."""
_TRIMMED_BYTES = 31 << 20
"""Size of a block whose release makes glibc keep twice as much freed memory."""


# --- open tars


class _Tar:
    """An open tar, whose members are read by its index.

    Attributes:
        path: The tar, as it is called in messages.
        checks_once: True if a header that was read once need not be read again.
    """

    path: str
    checks_once = False

    def read(self, size: int, offset: int) -> bytes:
        """Return a part of the tar; it is shorter only if the tar ends there."""
        raise NotImplementedError

    def read_into(self, memories: list[Memory], size: int, offset: int) -> int:
        """Fill memories of ``size`` bytes, one after the other; return how many bytes there are."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise a FileChangedError if the tar is no longer what was opened."""

    def payloads(self, index: TarIndex, members: Ints) -> list[bytes]:
        """Return the payloads of members, whose headers are compared with the index.

        Members that lie near each other are read by one call, with the headers between them.
        """
        offsets, sizes, unchecked = index.places
        found: list[bytes] = []
        at, count = 0, len(members)
        while at < count:
            first = members[at]
            begin, size = offsets[first], sizes[first]
            end = begin + size
            checks = unchecked[first] or not self.checks_once
            stop = at + 1
            if size <= _COPIED_BYTES:
                begin -= BLOCK * checks
                while stop < count:
                    member = members[stop]
                    start = offsets[member]
                    after = start + sizes[member]
                    if not BLOCK <= start - end <= _NEAR_BYTES or after - begin > _RUN_BYTES:
                        break
                    checks = checks or unchecked[member]
                    end = after
                    stop += 1
            run = members[at:stop]
            try:
                if checks and size > _COPIED_BYTES:
                    check_header(self.path, index, first, self.read)
                data = self.read(end - begin, begin)
                if checks or len(data) < end - begin:
                    self._check(index, run, data, begin)
            except OSError as error:
                for member in run if len(run) > 1 else ():  # which one it is
                    self.payloads(index, [member])
                self._fail(index, first, error)
            for member in run:
                start = offsets[member] - begin
                found.append(data[start : start + sizes[member]])
            at = stop
        self.check()
        return found

    def _check(self, index: TarIndex, run: Ints, data: bytes, begin: int) -> None:
        """Refuse a part of the tar if a payload is incomplete, or a header does not match."""
        offsets, sizes, unchecked = index.places
        for member in run:
            start = offsets[member] - begin
            if len(data) - start < sizes[member]:
                self._refuse(index, member, max(len(data) - start, 0))
            if start and (unchecked[member] or not self.checks_once):  # its header is there, too
                check_header(self.path, index, member, self.read, data, start - BLOCK)

    def fill(
        self, index: TarIndex, members: Ints, memory: memoryview, starts: Sequence[int]
    ) -> None:
        """Put each payload into memory, from its place in ``starts`` on.

        Members that lie near each other are read by one call, with the headers between them.
        """
        checks = bool(index.unchecked[members].any())
        offsets, sizes = index.offsets[members].tolist(), index.sizes[members].tolist()
        run: list[int] = []
        memories: list[Memory] = []
        begin = end = 0
        for member, offset, size, start in zip(members, offsets, sizes, starts, strict=True):
            gap = offset - end
            if not BLOCK <= gap <= _NEAR_BYTES or len(run) == _MOST_AT_ONCE or not run:
                if run:
                    self._fill_run(index, run, memories, begin, end, checks)
                run, memories, begin, gap = [], [], offset - BLOCK, BLOCK
            run.append(member)
            memories += (bytearray(gap), memory[start : start + size])
            end = offset + size
        if run:
            self._fill_run(index, run, memories, begin, end, checks)
        self.check()

    def _fill_run(
        self,
        index: TarIndex,
        run: list[int],
        memories: list[Memory],
        begin: int,
        end: int,
        checks: bool,
    ) -> None:
        """Read from ``begin`` to ``end``: each member of a run, behind its header."""
        try:
            if not self.checks_once:
                check_header(self.path, index, run[0], self.read)
            read = self.read_into(memories, end - begin, begin)
        except OSError as error:
            for member in run if len(run) > 1 else ():  # which one it is
                self.payloads(index, [member])
            self._fail(index, run[0], error)
        if read == end - begin and not checks:
            return
        for member, head in zip(run, memories[::2], strict=True):
            left = begin + read - index.offsets.item(member)
            if left < index.sizes.item(member):
                self._refuse(index, member, max(left, 0))
            if index.unchecked.item(member):
                check_header(self.path, index, member, self.read, bytes(head[-BLOCK:]))

    def _fail(self, index: TarIndex, member: int, error: OSError) -> NoReturn:
        """Raise an error that names the member; an error about the whole index passes unchanged."""
        if isinstance(error, StaleIndexError):
            raise error
        kind, why = ReadError, f"{self.path}: {error}"
        if isinstance(error, ReadError):
            kind, why = type(error), str(error)
        raise kind(f"member {index.name(member)!r} cannot be read: {why}") from None

    def _refuse(self, index: TarIndex, member: int, length: int) -> NoReturn:
        """Raise an error for a payload that is incomplete."""
        self.check()
        size, name = index.sizes.item(member), index.name(member)
        raise ReadError(
            f"{self.path}: member {name!r} has {size:,} bytes, but only {length:,} can be read; "
            "the tar is truncated or its index does not match"
        )


class LocalTar(_Tar):
    """A local tar, open as long as it is referenced.

    A change is detected before bytes are returned.
    """

    checks_once = True

    def __init__(self, file: DataFileInfo) -> None:
        self.path = file.path
        try:
            self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileChangedError(vanished(file.path)) from None
        except OSError as error:
            raise ReadError(f"{file.path} cannot be opened: {error.strerror}") from error
        found = os.fstat(self._descriptor)
        self._size, self._modified = found.st_size, found.st_mtime_ns
        if file.file_size not in (None, self._size):
            raise FileChangedError(changed(file.path, file.file_size, self._size))
        if file.etag not in (None, f"{self._modified:x}"):
            raise FileChangedError(changed(file.path))

    def read(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:  # one call reads 2 GiB at most
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, memories: list[Memory], size: int, offset: int) -> int:
        done = os.preadv(self._descriptor, memories, offset)
        while done < size:  # it is a short one: only then it pays to look at what it has filled
            left = [memoryview(one) for one in memories]
            skipped = done
            while skipped >= len(left[0]):
                skipped -= len(left.pop(0))
            left[0] = left[0][skipped:]
            more = os.preadv(self._descriptor, left, offset + done)
            if not more:
                break
            done += more
        return done

    def check(self) -> None:
        now = os.fstat(self._descriptor)
        if now.st_mtime_ns != self._modified or now.st_size != self._size:
            raise FileChangedError(changed(self.path, self._size, now.st_size))

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class RemoteTar(_Tar):
    """A remote tar; its store detects changes, and may discard bytes that were read."""

    def __init__(self, path: str, opened: pa.NativeFile, spans: Sequence[tuple[int, int]]) -> None:
        self.path, self._opened = path, opened
        will_read(opened, spans)

    def read(self, size: int, offset: int) -> bytes:
        self._opened.seek(offset)
        data: bytes = self._opened.read(size)
        return data

    def read_into(self, memories: list[Memory], size: int, offset: int) -> int:
        self._opened.seek(offset)
        data = memoryview(self._opened.read_buffer(size)).cast("B")
        done = 0
        for memory in memories:
            part = data[done : done + len(memory)]
            memory[: len(part)] = part
            done += len(part)
        return done


def _opening(files: Sequence[DataFileInfo]) -> Callable[[int], LocalTar]:
    """Return a function that opens a tar by its number, and keeps those that were used last."""
    limit = getrlimit(RLIMIT_NOFILE)[0]
    share = _OPEN_AT_ONCE if limit == RLIM_INFINITY else limit // _SHARE_OF_DESCRIPTORS
    # glibc returns freed memory at once until a large block was freed, and payloads would be
    # copied to fresh pages every time, which takes three times as long.
    bytes(_TRIMMED_BYTES)
    return lru_cache(max(1, min(_OPEN_AT_ONCE, share)))(lambda shard: LocalTar(files[shard]))


# --- members


@dataclass(frozen=True, slots=True)
class _TarPart:
    """Members of one tar, in the order of the tar.

    Attributes:
        tar: The tar, opened.
        index: Its index.
        places: The place of each member among all wanted members.
        members: The members.
    """

    tar: _Tar
    index: TarIndex
    places: Int64Array
    members: list[int]


class Payloads:
    """Reads members of a collection, from any number of threads.

    A read that fails or is too short raises an error that names the tar and the member.
    """

    def __init__(self, collection: TarCollection) -> None:
        self.collection = collection
        self._store = collection.store
        self._tar = _opening(collection.files)

    def during(self, meter: Meter, patience: Patience) -> Payloads:
        """Return the same reader with the request count and time limits of another caller."""
        other = copy(self)
        other._store = self._store.during(meter, patience)
        return other

    def read(self, shard: int, members: Ints, index: TarIndex | None = None) -> list[bytes]:
        """Return members of one tar, in the order asked for; the index of the tar is optional."""
        if not self._store.local:
            return self.read_many(np.full(len(members), shard), members)
        index = self.collection.index(shard) if index is None else index
        return self._tar(shard).payloads(index, members)

    def read_many(self, shards: Ints, members: Ints) -> list[bytes]:
        """Return members of any tars, in the order asked for: ``members[i]`` of ``shards[i]``."""
        found = [b""] * len(members)
        with ExitStack() as opened:
            for part in self._parts(np.asarray(shards), np.asarray(members), opened):
                payloads = part.tar.payloads(part.index, part.members)
                for place, payload in zip(part.places.tolist(), payloads, strict=True):
                    found[place] = payload
        return found

    def column(self, shards: Int64Array, members: Int64Array) -> pa.LargeBinaryArray:
        """Return members of any tars as a column, in the order asked for; null for the number -1.

        Payloads are read into the memory of the column.
        """
        there = np.flatnonzero(members >= 0)
        edges = np.zeros(len(members) + 1, np.int64)
        with ExitStack() as opened:
            parts = self._parts(shards[there], members[there], opened)
            for part in parts:
                edges[1 + there[part.places]] = part.index.sizes[part.members]
            np.cumsum(edges, out=edges)
            buffer = pa.allocate_buffer(int(edges[-1]))
            memory = memoryview(buffer).cast("B")
            for part in parts:
                starts = edges[there[part.places]].tolist()
                part.tar.fill(part.index, part.members, memory, starts)
        valid = None if len(there) == len(members) else pa.array(members >= 0).buffers()[1]
        buffers = [valid, pa.py_buffer(edges), buffer]
        return pa.Array.from_buffers(pa.large_binary(), len(members), buffers)

    def _parts(
        self, shards: npt.NDArray[Any], wanted: npt.NDArray[Any], opened: ExitStack
    ) -> list[_TarPart]:
        """Open tars, and announce what is read of them; ``opened`` closes remote ones."""
        if len(shards) != len(wanted):
            raise ValueError(f"{len(shards)} shards for {len(wanted)} members")
        parts: list[_TarPart] = []
        for shard, places in places_by_number(shards):
            index = self.collection.index(shard)
            order = np.argsort(index.offsets[wanted[places]], kind="stable")
            members = wanted[places][order]
            tar: _Tar
            if self._store.local:
                tar = self._tar(shard)
            else:
                file = self.collection.files[shard]
                remote = opened.enter_context(self._store.open(file))
                tar = RemoteTar(file.path, remote, _spans(index, members))
            parts.append(_TarPart(tar, index, places[order], members.tolist()))
        return parts

    def __reduce__(self) -> tuple[type[Payloads], tuple[TarCollection]]:
        return Payloads, (self.collection,)


def places_by_number(numbers: npt.NDArray[Any]) -> list[tuple[int, Int64Array]]:
    """Return the numbers in an array, such as the shards of rows, each with its places there."""
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    held, begins = np.unique(numbers[order], return_index=True)
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


def _spans(index: TarIndex, members: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Return the ranges of members with their headers, joined if they are close together."""
    starts = header_starts(index, members)
    reached = np.maximum.accumulate(index.offsets[members] + index.sizes[members])
    begins = np.flatnonzero(np.append(True, starts[1:] - reached[:-1] > _WORTH_A_REQUEST))
    ends = reached[np.append(begins[1:], len(starts)) - 1]
    return list(zip(starts[begins].tolist(), ends.tolist(), strict=True))
