"""The index of a tar, from its headers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.errors import ReadError
from headrace.model import DataFileInfo
from headrace.sources.tar.geometry import image_size, jpeg_size
from headrace.sources.tar.headers import compression_of, decoded, string_array
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.sidecars import LONGEST_SIDECAR, is_sidecar, with_sidecars
from headrace.sources.tar.stretch import BrokenTar, Stretch
from headrace.sources.tar.tar_bytes import TarBytes, opened_tar
from headrace.sources.tar.walking import walked
from headrace.storage import Store

__all__ = ["Progress", "scan_tar"]

Progress = Callable[[int], None]
"""is told how many bytes of a tar are behind the walk"""

_HEAD_OF_IMAGE = 512
"""where a JPEG without a profile or a thumbnail says its size"""
_FURTHER_BYTES = 2048
_MOST_SEGMENTS = 512
"""of a JPEG that are looked for one by one: color profiles and thumbnails come before its size"""


def scan_tar(
    store: Store,
    file: DataFileInfo,
    *,
    geometry: bool = False,
    sidecars: bool = True,
    hash: bool = False,
    keep_going: bool = False,
    progress: Progress | None = None,
) -> TarIndex:
    """The regular files of a tar. Payloads are seeked over, unless they have to be hashed.

    ``geometry`` looks at the beginning of images, ``sidecars`` embeds what JSON and text files
    say of them. A tar that is damaged or breaks off is a ReadError that names the last member
    before that; with ``keep_going`` the index ends there and says so. Hard links are left out,
    with a warning; a tar without an end mark is indexed, with a warning and ``facts.has_end``.
    """
    found = _Found(geometry, sidecars)
    broken: BrokenTar | None = None
    with opened_tar(store, file, hashed=hash) as source:
        if not source.size:
            raise ReadError(f"{file.path} is empty, and not even an empty tar; copy it again")
        try:
            for stretch in walked(source, head=_head(geometry, sidecars), hashed=hash):
                found.add(stretch, source)
                if progress is not None and stretch.offsets:
                    progress(stretch.offsets[-1] + stretch.sizes[-1])
        except BrokenTar as error:
            broken = error
            if not keep_going or error.refused or not found.names:
                raise _unreadable(file.path, error, found, source) from None
        digest = source.tar_digest()
        size = source.size
    facts = TarFacts(
        size=size,
        hash_lfs=digest,
        has_geometry=geometry,
        last_good=None if broken is None else decoded(found.names[-1]),
        has_end=found.has_end,
    )
    return found.index(facts, file.path)


def _head(geometry: bool, sidecars: bool) -> int | None:
    """How much of each payload has to come with its header."""
    if geometry:
        return _HEAD_OF_IMAGE
    return 0 if sidecars else None


class _Found:
    """What a walk has come by."""

    def __init__(self, geometry: bool, sidecars: bool) -> None:
        self.names: list[bytes] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._digests: list[str] = []
        self._widths: list[int] | None = [] if geometry else None
        self._heights: list[int] = []
        self._payloads: dict[int, bytes] | None = {} if sidecars else None
        self.has_end = True

    def add(self, stretch: Stretch, source: TarBytes) -> None:
        if self._payloads is not None:
            self._add_payloads(stretch, source, self._payloads)
        if self._widths is not None:
            sizes = _image_sizes(stretch, source)
            self._widths.extend(width for width, _ in sizes)
            self._heights.extend(height for _, height in sizes)
        self.names += stretch.names
        self._offsets += stretch.offsets
        self._sizes += stretch.sizes
        self._digests += stretch.digests
        self.has_end = stretch.has_end

    def _add_payloads(self, stretch: Stretch, source: TarBytes, payloads: dict[int, bytes]) -> None:
        """Of members that may be sidecars; those that did not come with a header are read."""
        before = len(self.names)
        missing: list[int] = []
        for member, name in enumerate(stretch.names):
            if is_sidecar(name):
                size = stretch.sizes[member]
                if len(stretch.heads[member]) == size:
                    payloads[before + member] = stretch.heads[member]
                elif size <= LONGEST_SIDECAR:
                    missing.append(member)
        spans = [_span(stretch, member, 0, LONGEST_SIDECAR) for member in missing]
        for member, payload in zip(missing, source.read(spans), strict=True):
            payloads[before + member] = payload

    def index(self, facts: TarFacts, shown: str) -> TarIndex:
        index = TarIndex(
            names=string_array(self.names),
            offsets=np.array(self._offsets, np.int64),
            sizes=np.array(self._sizes, np.int64),
            sha256=pa.array(self._digests, pa.string()) if self._digests else None,
            facts=facts,
        )
        if self._widths is not None:
            widths, heights = np.array(self._widths, np.int32), np.array(self._heights, np.int32)
            index = replace(index, widths=widths, heights=heights)
        return index if self._payloads is None else with_sidecars(index, self._payloads, shown)


def _image_sizes(stretch: Stretch, source: TarBytes) -> list[tuple[int, int]]:
    """Width and height of each member, 0 where it is no image or does not say."""
    found = list(map(image_size, stretch.heads))
    for _ in range(_MOST_SEGMENTS):
        further = [(i, at) for i, at in enumerate(found) if isinstance(at, int)]
        if not further:
            break
        spans = [_span(stretch, member, at, _FURTHER_BYTES) for member, at in further]
        for (member, at), data in zip(further, source.read(spans), strict=True):
            found[member] = _behind(at, jpeg_size(data))
    return [size if isinstance(size, tuple) else (0, 0) for size in found]


def _behind(at: int, found: tuple[int, int] | int | None) -> tuple[int, int] | int | None:
    """What was found from a byte of an image on; nothing where the image ends before."""
    if isinstance(found, int):
        return at + found if found else None
    return found


def _span(stretch: Stretch, member: int, skipped: int, most: int) -> tuple[int, int]:
    """Bytes of a member from one on."""
    start, size = stretch.offsets[member], stretch.sizes[member]
    return start + min(skipped, size), start + min(skipped + most, size)


def _unreadable(path: str, broken: BrokenTar, found: _Found, source: TarBytes) -> ReadError:
    if found.names and broken.refused:
        return ReadError(f"{path}: {broken.reason}")
    if found.names:
        return ReadError(
            f"{path}: {broken.reason} (byte {broken.at:,}); the last good member is "
            f"{decoded(found.names[-1])!r}. Copy or write the tar again; --keep-going "
            "(keep_going=True) indexes what comes before"
        )
    compression = compression_of(source.read([(0, min(source.size, 16))])[0])
    if compression is not None:
        kind, command = compression
        return ReadError(
            f"{path} is compressed with {kind}, so that no member can be read by itself; "
            f"uncompress it, for instance with: {command} {path}"
        )
    if broken.at or broken.refused:
        return ReadError(f"{path}: {broken.reason} (byte {broken.at:,}); no member comes before it")
    return ReadError(f"{path} is no tar: {broken.reason}")
