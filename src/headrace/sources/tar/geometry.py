"""Width and height of images, from the first bytes of JPEG, PNG, WebP and GIF files."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["image_size", "jpeg_size"]

Size = tuple[int, int]

_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""markers that nothing belongs to"""
_END_OF_IMAGE, _SCAN = 0xD9, 0xDA
_FRAME_BYTES = 9
_LARGEST = (1 << 31) - 1


def image_size(head: bytes) -> Size | int | None:
    """Width and height as they are stored; None for what is no such image, or a damaged one.

    A number is the byte of a JPEG from which on :func:`jpeg_size` has to be given more.
    """
    measure = _BY_BEGINNING.get(head[:2])
    return None if measure is None else measure(head)


def jpeg_size(data: bytes, at: int = 0) -> Size | int | None:
    """The size that the first frame of a JPEG has; ``at`` is where a segment begins.

    A number says in which byte of ``data``, or behind it, the segment begins that is needed next.
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
        elif marker in _ALONE:
            at += 2
        elif marker in (_SCAN, _END_OF_IMAGE):
            return None
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if length < 2:
                return None
            at += 2 + length
    return at


def _jpeg(head: bytes) -> Size | int | None:
    return jpeg_size(head, 2)


def _png(head: bytes) -> Size | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or head[12:16] != b"IHDR" or len(head) < 24:
        return None
    return _size(int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))


def _gif(head: bytes) -> Size | None:
    if head[:6] not in (b"GIF87a", b"GIF89a") or len(head) < 10:
        return None
    return _size(_little(head, 6, 8), _little(head, 8, 10))


def _webp(head: bytes) -> Size | None:
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


def _size(width: int, height: int) -> Size | None:
    """None for what stands there for want of something better."""
    return (width, height) if 0 < width <= _LARGEST and 0 < height <= _LARGEST else None


def _little(data: bytes, start: int, stop: int) -> int:
    return int.from_bytes(data[start:stop], "little")


_BY_BEGINNING: dict[bytes, Callable[[bytes], Size | int | None]] = {
    b"\xff\xd8": _jpeg,
    b"\x89P": _png,
    b"GI": _gif,
    b"RI": _webp,
}
