"""Images of every kind become pixels, and other bytes raise errors."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from sample_tars import huge_jpeg
from warm_interpreters import WarmProcess

from headrace.convert.images import _jpeg_pixels, decode_image, stored_pixels
from headrace.errors import MissingExtraError, ReadError

RAMP = np.add.outer(np.arange(20) * 4, np.arange(30) * 4).astype(np.uint8)
PIXELS = np.stack([RAMP, 255 - RAMP, np.full_like(RAMP, 77)], axis=2)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {})],
    ids=["png", "webp", "bmp"],
)
def test_pixels_come_back_as_they_were(kind: str, options: dict[str, object]) -> None:
    data = encoded(Image.fromarray(PIXELS), kind, **options)
    assert np.array_equal(decode_image(data, channels_first=False), PIXELS)
    first = decode_image(data)
    assert first.shape == (3, 20, 30)
    assert first.dtype == np.uint8
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert np.array_equal(first, PIXELS.transpose(2, 0, 1))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_pixels_come_close(kind: str) -> None:
    data = encoded(Image.fromarray(PIXELS), kind, quality=95)
    off = decode_image(memoryview(data), channels_first=False).astype(int) - PIXELS
    assert np.abs(off).mean() < 4


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1"])
def test_all_modes_become_rgb(mode: str) -> None:
    data = encoded(Image.fromarray(PIXELS).convert("L").convert(mode), "PNG")
    pixels = decode_image(data)
    assert pixels.shape == (3, 20, 30)
    assert np.array_equal(pixels[0], pixels[1])
    if mode in ("L", "LA", "RGBA"):
        assert np.array_equal(pixels[0], np.asarray(Image.fromarray(PIXELS).convert("L")))


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF"])
def test_of_16_bits_the_upper_8_stay(kind: str) -> None:
    wide = (np.arange(600, dtype=np.uint16) * 100).reshape(20, 30)
    pixels = decode_image(encoded(Image.fromarray(wide), kind))
    assert np.array_equal(pixels, np.stack([wide >> 8] * 3))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_of_32_bits_are_no_colours(dtype: type) -> None:
    data = encoded(Image.fromarray(np.arange(600, dtype=dtype).reshape(20, 30)), "TIFF")
    with pytest.raises(ReadError, match=r'32 bits.*"pixels"'):
        decode_image(data)
    assert stored_pixels(data).ravel().tolist() == list(range(600))


def test_orientation_is_not_applied() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    data = encoded(Image.fromarray(PIXELS), "JPEG", exif=turned)
    assert decode_image(data).shape == (3, 20, 30)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image",
        encoded(Image.fromarray(PIXELS), "JPEG")[:400],
        encoded(Image.fromarray(PIXELS), "PNG")[:60],
        encoded(Image.fromarray(PIXELS), "PNG").replace(b"IDAT", b"IDxT"),
        encoded(Image.fromarray(PIXELS), "WEBP")[:60],
    ],
    ids=["empty", "text", "short jpeg", "short png", "broken png", "short webp"],
)
def test_bytes_that_are_no_image(data: bytes) -> None:
    with pytest.raises(ReadError, match=rf"{len(data)} bytes do not decode as an image"):
        decode_image(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_bytes_decode_or_say_that_they_do_not(kind: str) -> None:
    whole = encoded(Image.fromarray(PIXELS), kind)
    random = np.random.default_rng(7)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = random.integers(256)
        try:
            decode_image(damaged[: random.integers(1, len(whole) + 1)])
        except ReadError:
            refused += 1
    assert 0 < refused <= 600


def test_a_header_that_promises_too_much() -> None:
    """Check an error of Pillow that is not an OSError, unlike most of its errors."""
    data = bytearray(encoded(Image.fromarray(PIXELS), "BMP"))
    data[18:26] = (100_000).to_bytes(4, "little") * 2
    with pytest.raises(ReadError, match="exceeds limit"):
        decode_image(data)


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r'pip install "headrace\[images\]"'):
        decode_image(b"")


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
def test_pixels_of_a_jpeg_are_the_same_by_either_decoder(
    monkeypatch: pytest.MonkeyPatch, mode: str, options: dict[str, object]
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (33, 47, 3), np.uint8)
    data = encoded(Image.fromarray(noise).convert(mode), "JPEG", quality=80, **options)
    by_default = decode_image(data + b"behind its end")
    quick = _jpeg_pixels(data)
    assert (quick is None) == (mode == "CMYK")  # CMYK is left to Pillow
    if quick is not None:
        assert np.array_equal(quick.transpose(2, 0, 1), by_default)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert _jpeg_pixels(data) is None
    assert np.array_equal(decode_image(data), by_default)


def test_any_buffer_of_bytes_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the quick decoder too, by hiding Pillow."""
    data = encoded(Image.effect_noise((30, 20), 90), "JPEG")
    pixels = decode_image(data)
    monkeypatch.setitem(sys.modules, "PIL", None)
    for buffer in (bytearray(data), memoryview(data), memoryview(pa.py_buffer(data))):
        assert np.array_equal(decode_image(buffer), pixels)


def test_a_jpeg_that_breaks_off_is_an_error_by_either_decoder() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = encoded(Image.fromarray(noise), "JPEG")[:-600]
    with pytest.raises(ReadError, match="truncated"):
        decode_image(data)


FORKED_DURING_AN_IMPORT = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from headrace.convert.images import decode_image, stored_pixels

data = Path(sys.argv[1], "a.jpg").read_bytes()
reader = threading.Thread(target=decode_image, args=(data,))
reader.start()
while not Path(sys.argv[1], "begun").exists():
    time.sleep(0.001)
child = os.fork()
shape = decode_image(data).shape
if child == 0:
    os._exit(shape[0])
reader.join()
print(shape, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
SLOW_MODULE = """
import time
from pathlib import Path

Path(__file__).with_name("begun").touch()
time.sleep(1.0)

def decode_jpeg_header(data):
    raise ValueError
"""


BEYOND_THE_LIMIT = """
import resource, sys
from pathlib import Path
from headrace.convert.images import decode_image, stored_pixels
from headrace.errors import ReadError

data = Path(sys.argv[1]).read_bytes()
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + (4 << 30)  # of which 12 would be needed
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    decode_image(data)
except ReadError as error:
    print(error)
"""


def test_a_jpeg_that_claims_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(huge_jpeg(65_500, 65_500))
    with WarmProcess("-c", BEYOND_THE_LIMIT, tmp_path / "a.jpg") as process:
        ended = process.finish(timeout_s=60)
    assert "65500 x 65500 pixels exceeds limit of 178956970 pixels" in ended.stdout


def test_the_limit_is_that_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(PIXELS), "JPEG")
    for limit in (300, 600, None):  # around 20 x 30 pixels
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert decode_image(data).shape == (3, 20, 30)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 299)
    with pytest.raises(ReadError, match="30 x 20 pixels exceeds limit of 598 pixels"):
        decode_image(data)


def test_without_pillow_its_limit_holds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = huge_jpeg(20_000, 20_000)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ReadError, match="20000 x 20000 pixels exceeds limit of 178956970"):
        decode_image(data)


def test_postscript_is_not_run() -> None:
    """Check that PostScript is not passed on to Ghostscript, as Pillow would do."""
    data = encoded(Image.fromarray(PIXELS), "EPS")
    with pytest.raises(ReadError, match="PostScript"):
        decode_image(data)
