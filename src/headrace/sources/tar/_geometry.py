"""Width and height of images, from the first bytes of JPEG, PNG, WebP, GIF, BMP and TIFF files."""

from __future__ import annotations

from collections.abc import Callable, Generator

__all__ = ["Measuring", "image_size", "measured"]

ImageSize = tuple[int, int]
Measuring = Generator[tuple[int, int], bytes, ImageSize | None]
"""Yields the start and the end of bytes that it needs, is sent those, and returns the size."""

_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_LONE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_END_OF_IMAGE, _SCAN = 0xD9, 0xDA
_FRAME_BYTES = 9
_FURTHER_BYTES = 2048
_MOST_READS = 512
"""of a JPEG: color profiles and thumbnails come before its size"""
_LARGEST = (1 << 31) - 1
_TIFF_ENTRY, _TIFF_WIDTH, _TIFF_HEIGHT = 12, 256, 257
_TIFF_SIZES = {3: 2, 4: 4}
"""bytes of a number, by its type"""


def image_size(data: bytes) -> ImageSize | None:
    """Return width and height as they are stored, or None if the bytes do not tell.

    Args:
        data: The file, or its beginning.
    """
    found = measured(data)
    if not isinstance(found, Generator):
        return found
    try:
        start, stop = next(found)
        while True:
            start, stop = found.send(data[start:stop])
    except StopIteration as ended:
        size: ImageSize | None = ended.value
        return size


def measured(head: bytes) -> ImageSize | Measuring | None:
    """Return the size of an image from its beginning, or a generator if that takes further bytes.

    None is returned for bytes that are no such image, or a damaged one.
    """
    measure = _BY_BEGINNING.get(head[:2])
    return None if measure is None else measure(head)


def _jpeg(head: bytes) -> ImageSize | Measuring | None:
    found = _jpeg_frame(head, 2)
    return _jpeg_further(found) if isinstance(found, int) else found


def _jpeg_further(at: int) -> Measuring:
    for _ in range(_MOST_READS):
        data = yield at, at + _FURTHER_BYTES
        found = _jpeg_frame(data, 0)
        if not isinstance(found, int):
            return found
        if not found:
            return None
        at += found
    return None


def _jpeg_frame(data: bytes, at: int) -> ImageSize | int | None:
    """Return the size in the first frame; ``at`` is where a segment begins.

    A number is the place of the segment that is needed next, in ``data`` or behind it.
    """
    last = len(data) - _FRAME_BYTES
    while 0 <= at <= last:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _FRAME_MARKERS:
            return _size(data[at + 7] << 8 | data[at + 8], data[at + 5] << 8 | data[at + 6])
        if marker == 0xFF:
            at += 1
        elif marker in _LONE_MARKERS:
            at += 2
        elif marker in (_SCAN, _END_OF_IMAGE):
            return None
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if length < 2:
                return None
            at += 2 + length
    return at


def _png(head: bytes) -> ImageSize | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or head[12:16] != b"IHDR" or len(head) < 24:
        return None
    return _size(int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))


def _gif(head: bytes) -> ImageSize | None:
    if head[:6] not in (b"GIF87a", b"GIF89a") or len(head) < 10:
        return None
    return _size(_little(head, 6, 8), _little(head, 8, 10))


def _webp(head: bytes) -> ImageSize | None:
    if not head.startswith(b"RIFF") or head[8:12] != b"WEBP" or len(head) < 25:
        return None
    kind = head[12:16]
    if kind == b"VP8L" and head[20] == 0x2F:
        packed = _little(head, 21, 25)
        return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    if len(head) < 30:
        return None
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return _size(_little(head, 26, 28) & 0x3FFF, _little(head, 28, 30) & 0x3FFF)
    if kind == b"VP8X":
        return _little(head, 24, 27) + 1, _little(head, 27, 30) + 1
    return None


def _bmp(head: bytes) -> ImageSize | None:
    if len(head) < 26:
        return None
    if _little(head, 14, 18) == 12:
        return _size(_little(head, 18, 20), _little(head, 20, 22))
    height = int.from_bytes(head[22:26], "little", signed=True)  # negative: from top to bottom
    return _size(_little(head, 18, 22), abs(height))


def _tiff(head: bytes) -> Measuring | None:
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(head[:4])
    return None if order is None or len(head) < 8 else _tiff_directory(head, order == "big")


def _tiff_directory(head: bytes, big: bool) -> Measuring:
    def number(data: bytes) -> int:
        return int.from_bytes(data, "big" if big else "little")

    start = number(head[4:8])
    count = number((yield start, start + 2))
    entries = yield start + 2, start + 2 + count * _TIFF_ENTRY
    found: dict[int, int] = {}
    for at in range(0, len(entries) - _TIFF_ENTRY + 1, _TIFF_ENTRY):
        tag, type = number(entries[at : at + 2]), number(entries[at + 2 : at + 4])
        found[tag] = number(entries[at + 8 : at + 8 + _TIFF_SIZES.get(type, 0)])
    return _size(found.get(_TIFF_WIDTH, 0), found.get(_TIFF_HEIGHT, 0))


def _size(width: int, height: int) -> ImageSize | None:
    return (width, height) if 0 < width <= _LARGEST and 0 < height <= _LARGEST else None


def _little(data: bytes, start: int, stop: int) -> int:
    return int.from_bytes(data[start:stop], "little")


_BY_BEGINNING: dict[bytes, Callable[[bytes], ImageSize | Measuring | None]] = {
    b"\xff\xd8": _jpeg,
    b"\x89P": _png,
    b"GI": _gif,
    b"RI": _webp,
    b"BM": _bmp,
    b"II": _tiff,
    b"MM": _tiff,
}
