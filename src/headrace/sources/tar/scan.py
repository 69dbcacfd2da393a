"""Scans of tars: a walk from header to header, and the index that it gives.

Payloads are skipped, except for the beginnings of images and the content of sidecars. The bytes
of a tar come in windows, each from a header on: of local tars by ``pread``, of remote ones by
ranges that grow and are fetched ahead. Hashes are computed in a second pass over all bytes.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.sources.tar._geometry import BEGINNINGS_OF_LARGE_HEADS, HEADS, image_size
from headrace.sources.tar._headers import (
    BLOCK,
    COMPRESSED,
    MEMBER_KINDS,
    WITHOUT_PAYLOAD,
    HeaderError,
    decimal_size,
    decoded,
    first_broken,
    header_name,
    header_names,
    header_rows,
    header_size,
    padded,
    pax_records,
    string_array,
)
from headrace.sources.tar.grouping import DotRule
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.sidecars import LONGEST_SIDECAR, is_sidecar, with_sidecars
from headrace.storage import Store, check_version, will_read

logger = logging.getLogger(__name__)

MemberSpan = tuple[int, int]
Pread = Callable[[int, int], bytes]
"""Returns a number of bytes from a place on; fewer at the end of a file."""


# --- the index of a tar


def scan_tar(
    store: Store,
    file: DataFileInfo,
    *,
    geometry: bool = False,
    sidecars: bool = True,
    hash: bool = False,
    keep_going: bool = False,
    sample_key: DotRule | None = None,
) -> TarIndex:
    """Return the index of the regular files of a tar.

    Hard links are left out, with a warning. A tar without an end mark is indexed, with a warning.

    Args:
        store: The store of the tar.
        file: The tar.
        geometry: Look for width and height of images.
        sidecars: Embed the content of JSON and text sidecars.
        hash: Hash the tar and its members; all bytes are read.
        keep_going: Index the readable members of a truncated tar; ``facts.last_good`` names the
            last.
        sample_key: The rule by which members are paired into samples; None for the first dot.

    Raises:
        ReadError: The file is damaged, truncated or not a tar. The last good member is named.
    """
    found = _PassedMembers(geometry, sidecars)
    broken: BrokenTar | None = None
    with opened_tar(store, file) as source:
        if not source.size:
            raise ReadError(
                f"{file.path} has no bytes (an empty tar has at least 1,024); copy it again"
            )
        walk = _Walk(source, 0, HEADS[0] if geometry else 0 if sidecars else None)
        try:
            for stretch in walk.stretches():
                found.add(stretch, source)
            walk.warn()
        except BrokenTar as error:
            broken = error
            if not keep_going or error.refused or not found.names:
                raise _unreadable(file.path, error, found, source) from None
        size = source.size
    facts = TarFacts(
        size=size,
        etag=file.etag,
        has_geometry=geometry,
        has_sidecars=sidecars,
        last_good=None if broken is None else decoded(found.names[-1]),
        has_end=broken is not None or walk.has_end,
        sample_key=sample_key or "first-dot",
    )
    index = found.index(facts, file.path)
    return _hashed(store, file, index) if hash else index


def _hashed(store: Store, file: DataFileInfo, index: TarIndex) -> TarIndex:
    """Return an index with the SHA-256 of the tar and of its members; this reads the whole tar."""
    tar, digests = sha256(), []
    ends = (index.offsets + index.sizes).tolist()
    with store.open(file) as opened:
        size, at = int(opened.size()), 0

        def take(stop: int, *hashes: Any) -> None:
            nonlocal at
            while at < stop:
                if at % _AHEAD_BYTES == 0:
                    will_read(opened, [(at, min(at + _AHEAD_BYTES, size))])
                end = min(stop, at + _PIECE_BYTES - at % _PIECE_BYTES)
                piece = _whole(opened.read(end - at), at, end, file.path)
                for one in hashes:
                    one.update(piece)
                at = end

        for start, stop in zip(index.offsets.tolist(), ends, strict=True):
            member = sha256()
            take(start, tar)
            take(stop, tar, member)
            digests.append(member.hexdigest())
        take(size, tar)
    facts = replace(index.facts, hash_lfs=tar.hexdigest())
    return replace(index, sha256=pa.array(digests, pa.string()), facts=facts)


class _PassedMembers:
    """Columns of the members that a walk has passed."""

    def __init__(self, geometry: bool, sidecars: bool) -> None:
        self.names: list[bytes] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._shapes: list[tuple[int, int]] | None = [] if geometry else None
        self._payloads: dict[int, bytes] | None = {} if sidecars else None

    def add(self, stretch: Stretch, source: TarBytes) -> None:
        if self._payloads is not None:
            self._add_payloads(stretch, source, self._payloads)
        if self._shapes is not None:
            self._shapes += _image_sizes(stretch, source)
        self.names += stretch.names
        self._offsets += stretch.offsets
        self._sizes += stretch.sizes

    def _add_payloads(self, stretch: Stretch, source: TarBytes, payloads: dict[int, bytes]) -> None:
        """Keep the content of sidecars; read it if it did not come with a header."""
        before = len(self.names)
        missing: list[int] = []
        for member, name in enumerate(stretch.names):
            if is_sidecar(name):
                size = stretch.sizes[member]
                if len(stretch.heads[member]) == size:
                    payloads[before + member] = stretch.heads[member]
                elif size <= LONGEST_SIDECAR:
                    missing.append(member)
        spans = [stretch.span(member, 0, LONGEST_SIDECAR) for member in missing]
        for member, payload in zip(missing, source.read(spans), strict=True):
            payloads[before + member] = payload

    def index(self, facts: TarFacts, shown: str) -> TarIndex:
        index = TarIndex(
            names=string_array(self.names),
            offsets=np.array(self._offsets, np.int64),
            sizes=np.array(self._sizes, np.int64),
            facts=facts,
        )
        if self._shapes is not None:
            shapes = np.array(self._shapes, np.int32).reshape(-1, 2)
            index = replace(index, widths=shapes[:, 0].copy(), heights=shapes[:, 1].copy())
        return index if self._payloads is None else with_sidecars(index, self._payloads, shown)


def _image_sizes(stretch: Stretch, source: TarBytes) -> list[tuple[int, int]]:
    """Return width and height of each member, 0 if it is not an image or does not tell them."""
    sizes = [image_size(head) for head in stretch.heads]
    open_ = [
        member
        for member, size in enumerate(sizes)
        if size is None and stretch.heads[member].startswith(BEGINNINGS_OF_LARGE_HEADS)
    ]
    for before, head_bytes in pairwise(HEADS):
        open_ = [m for m in open_ if sizes[m] is None and stretch.sizes[m] > before]
        spans = [stretch.span(member, 0, head_bytes) for member in open_]
        for member, head in zip(open_, source.read(spans), strict=True):
            sizes[member] = image_size(head)
    return [size or (0, 0) for size in sizes]


def _unreadable(path: str, broken: BrokenTar, found: _PassedMembers, source: TarBytes) -> ReadError:
    if found.names and broken.refused:
        return ReadError(f"{path}: {broken.reason}")
    if found.names:
        return ReadError(
            f"{path}: {broken.reason} (byte {broken.at:,}); the last good member is "
            f"{decoded(found.names[-1])!r}. Copy or write the tar again; --keep-going "
            "(keep_going=True) indexes what comes before"
        )
    beginning = source.read([(0, min(source.size, 16))])[0]
    for magic, command in COMPRESSED.items():
        if beginning.startswith(magic):
            return ReadError(
                f"{path} is compressed, so that no member can be read by itself; uncompress it, "
                f"for instance with: {command} {path}"
            )
    if broken.at or broken.refused:
        return ReadError(f"{path}: {broken.reason} (byte {broken.at:,}); no member comes before it")
    return ReadError(f"{path} is not a tar: {broken.reason}")


# --- members that follow each other


class BrokenTar(Exception):
    """The rest of a tar cannot be scanned; the members before it are good.

    Attributes:
        reason: What is wrong.
        at: The byte where it is.
        refused: The tar may be complete, but holds something that cannot be indexed.
    """

    def __init__(self, reason: str, at: int, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.at, self.refused = reason, at, refused


@dataclass(slots=True)
class Stretch:
    """Members that follow each other in a tar, as columns. Their headers are checked all at once.

    Attributes:
        names: Names as they stand in headers.
        offsets: Where payloads begin.
        sizes: Bytes of payloads.
        heads: First bytes of payloads that were fetched with the header; only where wanted.
        headers: Headers of the members.
        others: Headers of all else, by their places.
        long_names: Names of members that do not stand in their headers.
    """

    names: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    others: dict[int, bytes] = field(default_factory=dict)
    long_names: dict[int, bytes] = field(default_factory=dict)

    def span(self, member: int, start: int, stop: int) -> MemberSpan:
        """Return the range in the tar of some bytes of a payload, cut off at its end."""
        offset, size = self.offsets[member], self.sizes[member]
        return offset + min(start, size), offset + min(stop, size)

    def name_members(self, tar_size: int) -> BrokenTar | None:
        """Set the names of the members; drop all members from a wrong or incomplete header on."""
        rows = header_rows(self.headers)
        others = [*self.others]
        wrong = [self.offsets[row] - BLOCK for row in first_broken(rows)]
        wrong += [others[row] for row in first_broken(header_rows([*self.others.values()]))]
        broken: BrokenTar | None = None
        if wrong:
            broken = BrokenTar("the checksum of the header is wrong", min(wrong))
            self._cut(bisect_left(self.offsets, broken.at))
        self.names = header_names(rows[: len(self.offsets)])
        for member, name in self.long_names.items():
            self.names[member : member + 1] = [name] if member < len(self.names) else []
        if self.offsets and self.offsets[-1] + self.sizes[-1] > tar_size:
            last, at = decoded(self.names[-1]), self.offsets[-1]
            self._cut(len(self.offsets) - 1)
            broken = BrokenTar(f"it ends inside member {last!r}", at)
        return broken

    def _cut(self, count: int) -> None:
        for column in (self.names, self.offsets, self.sizes, self.heads):
            del column[count:]


# --- from header to header

_REGULAR, _HARD_LINK = b"01"
_LONG_NAME, _LONG_LINK, _SPARSE = b"LKS"
_EXTENDED, _EXTENDED_BY_SOLARIS, _GLOBAL = b"xXg"
_BETWEEN = 2 * BLOCK
"""a header and a small payload, which come with the next header"""
_ZEROS = 64 << 10
_NO_BLOCK = bytes(BLOCK)
_STEPS_OF_A_STRETCH = 1024
"""from header to header; then what was found is checked"""
_LONGEST_EXTENSION = 1 << 20
_OF_INTEREST = (b"path=", b"size=", b"GNU.sparse.")
"""Records of extended headers that are used; times and owners are ignored."""


def walked(source: TarBytes, *, start: int = 0) -> Iterator[Stretch]:
    """Yield the regular files of a tar in order, one by one, from a header on.

    Raises:
        BrokenTar: The tar is damaged. All members before have been yielded.
    """
    return _Walk(source, start, None, steps=1).stretches()


class _Walk:
    def __init__(
        self,
        source: TarBytes,
        start: int,
        head: int | None,
        steps: int = _STEPS_OF_A_STRETCH,
    ) -> None:
        self._steps = steps
        self._source = source
        self._wants_heads = head is not None
        self._near = BLOCK + (head or 0)
        self._least = self._near + _BETWEEN
        self._at = start
        self._ended = False
        self.has_end = False
        """an end mark is behind the last member"""
        self._first, self._window = 0, b""
        self._last = -1
        """the last place from which the window is wide enough"""
        self._long_name: bytes | None = None
        self._records: dict[bytes, bytes] = {}
        self._links: list[bytes] = []

    def stretches(self) -> Iterator[Stretch]:
        """Yield the members. Links are not members; they are counted."""
        while not self._ended:
            stretch = Stretch()
            broken: BrokenTar | None = None
            try:
                self._fill(stretch)
            except HeaderError as error:
                broken = BrokenTar(str(error), self._at)
            except BrokenTar as error:
                broken = error
            broken = stretch.name_members(self._source.size) or broken
            if stretch.offsets:
                yield stretch
            if broken is not None:
                raise broken

    def warn(self) -> None:
        """Log what was left out of a tar that was scanned to its end."""
        if self._links:
            logger.warning(
                "%s: %d hard links are left out, because they have no payload; the first is %r. "
                "Write the tar with --hard-dereference to store them as files",
                self._source.shown,
                len(self._links),
                decoded(self._links[0]),
            )
        if not self.has_end:
            logger.warning(
                "%s has no end mark after its last member, and may have been truncated there",
                self._source.shown,
            )

    def _fill(self, stretch: Stretch) -> None:
        """Add members with plain headers, many at a time."""
        blocks, offsets, sizes = stretch.headers, stretch.offsets, stretch.sizes
        heads, wants_heads = stretch.heads, self._wants_heads
        read, near, least, regular = self._source.window, self._near, self._least, _REGULAR
        at, first, last, window = self._at, self._first, self._last, self._window
        extended = self._extended
        for _ in range(self._steps):
            if at > last:
                window, first = read(least, at), at
                last = at + len(window) - near
                if len(window) < least:
                    self._at, self._first, self._window = at, first, window
                    if not self._near_the_end():
                        return
                    last = max(last, at)
            start = at - first
            block = window[start : start + BLOCK]
            size = -1
            if block[156] == regular and block[135] <= 32 and not extended:
                try:
                    size = int(block[124:135], 8)
                except ValueError:
                    size = -1  # which the careful way finds out again
            if size < 0:
                self._at, self._first, self._last, self._window = at, first, last, window
                at = self._special(block, stretch)
                extended, last = self._extended, self._last
                if self._ended:
                    return
                continue
            blocks.append(block)
            at += BLOCK
            offsets.append(at)
            sizes.append(size)
            if wants_heads:
                start += BLOCK
                heads.append(window[start : start + size])
            at += size + 511 & -512
        self._at, self._first, self._last, self._window = at, first, last, window

    def _near_the_end(self) -> bool:
        """Return True if there is a header in a window that is the rest of the tar."""
        at, window, total = self._at, self._window, self._source.size
        if len(window) < total - at:
            raise FileChangedError(f"{self._source.shown} became shorter while it was read")
        if len(window) < BLOCK:
            if window.strip(b"\0"):
                raise HeaderError("it ends inside a header")
            self._end()
            return False
        return True

    def _end(self) -> None:
        if self._records or self._long_name is not None:
            raise HeaderError("it ends before the member that an extended header describes")
        self._ended = True

    @property
    def _extended(self) -> bool:
        """True if an extended header is of the next member."""
        return bool(self._records) or self._long_name is not None

    def _special(self, block: bytes, stretch: Stretch) -> int:
        """Add the member of any header; return the place of the next header."""
        if block == _NO_BLOCK:
            return self._behind_zeros()
        kind = block[156]
        if kind in MEMBER_KINDS:
            return self._member(block, stretch)
        stretch.others[self._at] = block
        size = header_size(block)
        payload = self._at + BLOCK
        if kind == _LONG_NAME:
            self._long_name = self._payload(size).partition(b"\0")[0]
        elif kind in (_EXTENDED, _EXTENDED_BY_SOLARIS):
            self._records = self._noted(size)
        elif kind == _GLOBAL:
            self._check_global(size)
        elif kind == _SPARSE:
            raise self._sparse(header_name(block))
        elif kind != _LONG_LINK:
            if kind == _HARD_LINK:
                self._links.append(
                    self._records.get(b"path") or self._long_name or header_name(block)
                )
            self._long_name, self._records = None, {}
        if kind in WITHOUT_PAYLOAD:
            return payload
        if payload + size > self._source.size:
            raise HeaderError("it breaks off")
        return payload + padded(size)

    def _member(self, block: bytes, stretch: Stretch) -> int:
        records = self._records
        name = records.get(b"path") or self._long_name
        if any(key.startswith(b"GNU.sparse.") for key in records):
            raise self._sparse(records.get(b"GNU.sparse.name") or name or header_name(block))
        decimal = records.get(b"size")
        size = decimal_size(decimal) if decimal else header_size(block)
        self._long_name, self._records = None, {}
        payload = self._at + BLOCK
        if block[156] == 0 and (name or header_name(block)).endswith(b"/"):
            stretch.others[self._at] = block
            return payload
        if name is not None:
            stretch.long_names[len(stretch.headers)] = name
        stretch.headers.append(block)
        stretch.offsets.append(payload)
        stretch.sizes.append(size)
        if self._wants_heads:
            start = payload - self._first
            stretch.heads.append(self._window[start : start + size])
        return payload + padded(size)

    def _noted(self, size: int) -> dict[bytes, bytes]:
        data = self._payload(size)
        if not any(word in data for word in _OF_INTEREST):
            return {}
        records = pax_records(data).items()
        return {key: value for key, value in records if (key + b"=").startswith(_OF_INTEREST)}

    def _check_global(self, size: int) -> None:
        """Refuse a header that gives all members a name or size, which a read could not check."""
        if self._noted(size):
            raise BrokenTar(
                "a global header names a path or a size for all members; write the tar again "
                "without it",
                self._at,
                refused=True,
            )

    def _payload(self, size: int) -> bytes:
        start = self._at + BLOCK
        if size > _LONGEST_EXTENSION:
            raise HeaderError(f"an extended header has {size} bytes")
        if start + size > self._source.size:
            raise HeaderError("it ends inside an extended header")
        held = self._window[start - self._first : start - self._first + size]
        return held if len(held) == size else self._source.read([(start, start + size)])[0]

    def _sparse(self, name: bytes) -> BrokenTar:
        return BrokenTar(
            f"member {decoded(name)!r} is a sparse file, which has no payload that could be read "
            "as it is; extract it and write the tar again without --sparse",
            self._at,
            refused=True,
        )

    def _behind_zeros(self) -> int:
        """Return where a second tar begins behind the end of one, if there is one."""
        total, shown = self._source.size, self._source.shown
        at = self._at
        zeros = True
        while zeros and at < total:
            window = self._source.window(_ZEROS, at)
            kept = len(window.lstrip(b"\0"))
            zeros = kept == 0
            at += len(window) - kept
        at -= at % BLOCK
        self.has_end = True
        self._last = -1
        if at + BLOCK <= total:
            following = self._source.read([(at, at + BLOCK)])[0]
            if not first_broken(header_rows([following])):
                return at
            if at - self._at < 2 * BLOCK:
                raise HeaderError("a block of zeros is followed by bytes that are not a header")
            logger.info("%s: bytes after its end mark, from byte %d on, are left out", shown, at)
        self._end()
        return at


# --- the bytes of a tar

_FIRST_REMOTE_BYTES = 16 << 10
_PIECE_BYTES = 8 << 20
_AHEAD_BYTES = 32 << 20
_FEW = 4
_WORTH_A_REQUEST = 256 << 10
"""gap in bytes that is fetched rather than making another request"""


@contextmanager
def opened_tar(store: Store, file: DataFileInfo) -> Iterator[TarBytes]:
    """Open a tar as it was discovered; raise a FileChangedError if it has changed or changes."""
    with store.open(file) as opened:
        size = int(opened.size())
        if not store.local:
            yield RemoteBytes(opened, size, file.path)
            return
        with open(file.path, "rb", buffering=0) as local:
            yield TarBytes(partial(os.pread, local.fileno()), size, file.path)
    check_version(file, store.status(file.path))


class TarBytes:
    """The bytes of a tar, read exactly as requested by a function such as ``pread``.

    Attributes:
        window: Returns bytes from a place on: ``least`` or more, unless the tar ends before.
        size: Bytes of the tar.
        shown: The name of the tar in messages.
    """

    def __init__(self, window: Pread, size: int, shown: str) -> None:
        self.window, self.size, self.shown = window, size, shown

    def read(self, spans: Sequence[MemberSpan]) -> list[bytes]:
        """Return bytes from anywhere."""
        return [
            _whole(self.window(stop - start, start), start, stop, self.shown)
            for start, stop in spans
        ]


class RemoteBytes(TarBytes):
    """A remote file. Small members are fetched with others, large ones are skipped.

    As long as windows lie close to each other they grow; the parts of a large one are fetched side
    by side.
    """

    def __init__(self, opened: pa.NativeFile, size: int, shown: str) -> None:
        super().__init__(self._window, size, shown)
        self._opened = opened
        self._end = 0
        self._bytes = _FIRST_REMOTE_BYTES

    def _window(self, least: int, at: int) -> bytes:
        grows = self._end > 0 and at - self._end <= _WORTH_A_REQUEST
        self._bytes = min(2 * self._bytes, _AHEAD_BYTES) if grows else _FIRST_REMOTE_BYTES
        stop = min(at + max(self._bytes, least), self.size)
        if stop <= at:
            return b""
        will_read(self._opened, [(at, stop)])
        self._end = stop
        return self._at(at, stop)

    def read(self, spans: Sequence[MemberSpan]) -> list[bytes]:
        if len(spans) > _FEW:
            will_read(self._opened, spans)
        return [self._at(start, stop) for start, stop in spans]

    def _at(self, start: int, stop: int) -> bytes:
        self._opened.seek(start)
        return _whole(self._opened.read(stop - start), start, stop, self.shown)


def _whole(data: bytes, start: int, stop: int, shown: str) -> bytes:
    if len(data) != stop - start:
        raise ReadError(f"{shown}: of bytes {start}-{stop} only {len(data)} arrived; try again")
    return data
