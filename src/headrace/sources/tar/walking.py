"""The walk over a tar from header to header."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from headrace.errors import FileChangedError
from headrace.sources.tar.headers import (
    BLOCK,
    MEMBER_KINDS,
    WITHOUT_PAYLOAD,
    HeaderError,
    decimal_size,
    decoded,
    first_broken,
    header_name,
    header_rows,
    header_size,
    padded,
    pax_records,
)
from headrace.sources.tar.stretch import BrokenTar, Headers, Stretch, checked
from headrace.sources.tar.tar_bytes import TarBytes

__all__ = ["walked"]

logger = logging.getLogger(__name__)

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
"""what of an extended header can matter; times and owners, which are in most, do not"""


def walked(source: TarBytes, *, head: int | None = None, hashed: bool = False) -> Iterator[Stretch]:
    """The regular files of a tar in order. BrokenTar comes after all that are whole.

    With ``head`` there are heads, if they are no longer of at least so many bytes. Links are no
    members; of hard links, which stand for a payload, a warning says how many are left out.
    The last stretch says that the tar has no end mark, if it has none; it may be of no members.
    """
    return _Walk(source, head, hashed).stretches()


class _Walk:
    def __init__(self, source: TarBytes, head: int | None, hashed: bool) -> None:
        self._source = source
        self._wants_heads, self._hashed = head is not None, hashed
        self._near = BLOCK + (head or 0)
        self._least = self._near + _BETWEEN
        self._at = 0
        self._ended = self._marked = False
        self._first, self._window = 0, b""
        self._last = -1
        """the last place from which the window is wide enough"""
        self._long_name: bytes | None = None
        self._records: dict[bytes, bytes] = {}
        self._lasting: dict[bytes, bytes] = {}
        self._links: list[bytes] = []

    def stretches(self) -> Iterator[Stretch]:
        while not self._ended:
            stretch, headers = Stretch(), Headers()
            broken: BrokenTar | None = None
            try:
                self._fill(stretch, headers)
            except HeaderError as error:
                broken = BrokenTar(str(error), self._at)
            except BrokenTar as error:
                broken = error
            broken = checked(stretch, headers, self._source.size) or broken
            if stretch.offsets:
                yield stretch
            if broken is not None:
                raise broken
        self._tell_links()
        if not self._marked:
            logger.warning(
                "%s has no end mark behind its last member, and may have been cut off there",
                self._source.shown,
            )
            yield Stretch(has_end=False)

    def _tell_links(self) -> None:
        if self._links:
            logger.warning(
                "%s: %d hard links are left out, for they have no payload; the first is %r. Write "
                "the tar with --hard-dereference to have them as files",
                self._source.shown,
                len(self._links),
                decoded(self._links[0]),
            )

    # --- from header to header

    def _fill(self, stretch: Stretch, headers: Headers) -> None:
        """Plain headers are taken here, in as few steps as there can be."""
        blocks, offsets, sizes = headers.of_members, stretch.offsets, stretch.sizes
        heads, wants_heads, hashed = stretch.heads, self._wants_heads, self._hashed
        read, near, least, regular = self._source.window, self._near, self._least, _REGULAR
        at, first, last, window = self._at, self._first, self._last, self._window
        extended = self._extended
        for _ in range(_STEPS_OF_A_STRETCH):
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
                at = self._special(block, stretch, headers)
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
            if hashed:
                stretch.digests.append(self._source.digest(at, at + size) or "")
            at += size + 511 & -512
        self._at, self._first, self._last, self._window = at, first, last, window

    def _near_the_end(self) -> bool:
        """Whether there is a header in a window that is the rest of the tar."""
        at, window, total = self._at, self._window, self._source.size
        if len(window) < total - at:
            raise FileChangedError(f"{self._source.shown} became shorter while it was read")
        if len(window) < BLOCK:
            if window.strip(b"\0"):
                raise HeaderError("it breaks off in the middle of a header")
            self._end()
            return False
        return True

    def _end(self) -> None:
        if self._records or self._long_name is not None:
            raise HeaderError("it breaks off before the member that an extended header is of")
        self._ended = True

    @property
    def _said(self) -> dict[bytes, bytes]:
        """What extended headers say of the next member."""
        return {**self._lasting, **self._records}

    @property
    def _extended(self) -> bool:
        return bool(self._records or self._lasting) or self._long_name is not None

    # --- what is no plain header

    def _special(self, block: bytes, stretch: Stretch, headers: Headers) -> int:
        """Take in any header; where the next one is."""
        if block == _NO_BLOCK:
            return self._behind_zeros()
        kind = block[156]
        if kind in MEMBER_KINDS:
            return self._member(block, stretch, headers)
        headers.others.append(block)
        headers.places.append(self._at)
        size = header_size(block)
        payload = self._at + BLOCK
        if kind == _LONG_NAME:
            self._long_name = self._payload(size).partition(b"\0")[0]
        elif kind in (_EXTENDED, _EXTENDED_BY_SOLARIS):
            self._records = self._noted(size)
        elif kind == _GLOBAL:
            self._lasting.update(self._noted(size))
        elif kind == _SPARSE:
            raise self._sparse(header_name(block))
        elif kind != _LONG_LINK:
            if kind == _HARD_LINK:
                self._links.append(self._said.get(b"path") or self._long_name or header_name(block))
            self._long_name, self._records = None, {}
        if kind in WITHOUT_PAYLOAD:
            return payload
        if payload + size > self._source.size:
            raise HeaderError("it breaks off")
        return payload + padded(size)

    def _member(self, block: bytes, stretch: Stretch, headers: Headers) -> int:
        records = self._said
        name = records.get(b"path") or self._long_name
        if any(key.startswith(b"GNU.sparse.") for key in records):
            raise self._sparse(name or header_name(block))
        said = records.get(b"size")
        size = decimal_size(said) if said else header_size(block)
        self._long_name, self._records = None, {}
        payload = self._at + BLOCK
        if block[156] == 0 and (name or header_name(block)).endswith(b"/"):
            headers.others.append(block)
            headers.places.append(self._at)
            return payload
        if name is not None:
            headers.named[len(headers.of_members)] = name
        headers.of_members.append(block)
        stretch.offsets.append(payload)
        stretch.sizes.append(size)
        if self._wants_heads:
            start = payload - self._first
            stretch.heads.append(self._window[start : start + size])
        if self._hashed:
            stretch.digests.append(self._source.digest(payload, payload + size) or "")
        return payload + padded(size)

    def _noted(self, size: int) -> dict[bytes, bytes]:
        data = self._payload(size)
        if not any(word in data for word in _OF_INTEREST):
            return {}
        records = pax_records(data)
        return {key: value for key, value in records.items() if key + b"=" in _OF_INTEREST} | {
            key: value for key, value in records.items() if key.startswith(b"GNU.sparse.")
        }

    def _payload(self, size: int) -> bytes:
        start = self._at + BLOCK
        if size > _LONGEST_EXTENSION:
            raise HeaderError(f"an extended header has {size} bytes")
        if start + size > self._source.size:
            raise HeaderError("it breaks off in an extended header")
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
        """Where a second tar begins behind the end of one, if it does."""
        total, shown = self._source.size, self._source.shown
        at = self._at
        zeros = True
        while zeros and at < total:
            window = self._source.window(_ZEROS, at)
            kept = len(window.lstrip(b"\0"))
            zeros = kept == 0
            at += len(window) - kept
        at -= at % BLOCK
        self._marked = True
        self._last = -1
        if at + BLOCK <= total:
            following = self._source.read([(at, at + BLOCK)])[0]
            if first_broken(header_rows([following])) is None:
                return at
            if at - self._at < 2 * BLOCK:
                raise HeaderError("a block of zeros is followed by what is no header")
            logger.info("%s: what is behind its end, from byte %d on, is left out", shown, at)
        self._end()
        return at
