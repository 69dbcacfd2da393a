"""Sizes of images from their first bytes, against Pillow."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from PIL import Image
from tar_making import scanned, write_tar

from headrace.sources.tar._geometry import image_size

KINDS = {
    "jpeg": ("JPEG", {}),
    "progressive": ("JPEG", {"progressive": True}),
    "gray": ("JPEG", {"mode": "L"}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {"quality": 50}),
    "lossless": ("WEBP", {"lossless": True}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {}),
    "extended": ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),
}
SHAPES = [(1, 1), (33, 7), (640, 480), (257, 1023)]


def image(kind: str, size: tuple[int, int], **more: object) -> bytes:
    format, options = KINDS[kind]
    options = {**options, **more}
    out = io.BytesIO()
    Image.new(options.pop("mode", "RGB"), size, 90).save(out, format, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_sizes(kind: str) -> None:
    for size in SHAPES:
        assert image_size(image(kind, size)) == size


@pytest.mark.parametrize("kind", KINDS)
def test_beginnings_of_all_lengths(kind: str) -> None:
    """Nothing is made up, whatever is missing."""
    whole = image(kind, (640, 480))
    for length in range(700):
        found = image_size(whole[:length])
        assert found in (None, (640, 480)), length


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff",
        b"\xff\xd8\xff\xda" + bytes(20),
        b"\xff\xd8" + bytes(20),
        b"\xff\xd8\xff\xe0\0\1" + bytes(20),
        b"\xff\xd8\xff\xc0\0\x11\x08\0\0\0\0" + bytes(20),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\xff" * 8,
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDX" + bytes(8),
        b"GIF88a" + bytes(10),
        b"GIF89a" + bytes(10),
        b"RIFF\0\0\0\0WAVEVP8 " + bytes(30),
        b"RIFF\0\0\0\0WEBPVP9 " + bytes(30),
        b"plain text",
    ],
    ids=str,
)
def test_what_has_no_size(head: bytes) -> None:
    assert image_size(head) is None


def test_bytes_that_fill_up_before_a_marker() -> None:
    whole = image("jpeg", (33, 7))
    assert image_size(whole[:2] + b"\xff" * 5 + whole[2:]) == (33, 7)


def test_tiffs_of_either_byte_order_with_the_directory_at_the_end() -> None:
    entries = ((256, 3, 1, 33), (257, 4, 1, 70_000))
    for order, mark in (("<", b"II*\0"), (">", b"MM\0*")):
        head = mark + struct.pack(f"{order}I", 600) + bytes(592)
        directory = struct.pack(f"{order}H", 2)
        for tag, kind, count, value in entries:
            number = struct.pack(f"{order}{'H2x' if kind == 3 else 'I'}", value)
            directory += struct.pack(f"{order}HHI", tag, kind, count) + number
        assert image_size(head + directory) == (33, 70_000)
        assert image_size(head) is None


def test_the_smallest_webp() -> None:
    head = b"RIFF\x12\0\0\0WEBPVP8L\x06\0\0\0" + b"\x2f\x41\x6c\x6f\0\x6b"
    assert len(head) < 30
    assert image_size(head) == ((0x6C41 & 0x3FFF) + 1, (0x6F6C41 >> 14 & 0x3FFF) + 1)
    assert image_size(head[:24]) is None


@pytest.mark.parametrize("segments", [65, 130])
def test_many_segments_before_the_size_of_a_jpeg(tmp_path: Path, segments: int) -> None:
    whole = image("jpeg", (33, 7))
    segment = b"\xff\xe1\xff\xff" + bytes(65533)
    tar = write_tar(tmp_path / "a.tar", [("a.jpg", whole[:2] + segment * segments + whole[2:])])
    assert scanned(tar, geometry=True).widths.tolist() == [33]


def test_images_in_a_tar(tmp_path: Path) -> None:
    members = [(f"{n}.{kind}", image(kind, (n + 1, 9))) for n, kind in enumerate(KINDS)]
    profile = image("jpeg", (99, 5), exif=b"Exif\0\0" + bytes(60_000), icc_profile=bytes(200_000))
    members += [
        ("profile.jpg", profile),
        ("profile.txt", b"a caption"),
        ("broken.jpg", b"\xff\xd8"),
    ]
    members += [("cut.jpg", profile[:61_000]), ("empty.jpg", b"")]
    index = scanned(write_tar(tmp_path / "a.tar", members), geometry=True)
    assert index.facts.has_geometry
    assert index.widths.tolist() == [*range(1, len(KINDS) + 1), 99, 0, 0, 0, 0]
    assert index.heights.tolist() == [9] * len(KINDS) + [5, 0, 0, 0, 0]
    without = scanned(write_tar(tmp_path / "b.tar", members))
    assert without.widths is None
    assert not without.facts.has_geometry
