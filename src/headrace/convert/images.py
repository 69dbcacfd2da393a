"""Decode images to arrays of pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import MissingExtraError, ReadError

Encoded = bytes | bytearray | memoryview
ImagePixels = npt.NDArray[np.uint8]

_JPEG = b"\xff\xd8"
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_MOST_PIXELS = 1024 * 1024 * 1024 // 4 // 3
"""Value of ``PIL.Image.MAX_IMAGE_PIXELS``, for use without Pillow."""
_GREY_OF_16_BITS = ("PPM", "PNG")
"""Formats whose grey images of 16 bits Pillow may return as numbers of 32 bits."""
_POSTSCRIPT = ("EPS",)
"""Formats that Pillow passes to Ghostscript, which would run the program in the file."""


def decode_image(data: Encoded, *, channels_first: bool = True) -> ImagePixels:
    """Return a JPEG, PNG, WebP or other image as RGB: uint8 [3, H, W], or [H, W, 3].

    Grey images have three equal channels. Transparency is left out, 16 bits are reduced to the
    upper 8, and only the first of several frames is read. Orientation tags of cameras are not
    applied. Any thread may call this.

    Raises:
        ReadError: The bytes do not decode, claim more than twice ``PIL.Image.MAX_IMAGE_PIXELS``
            pixels, or are PostScript. The caller has to add where they lie.
    """
    pixels = image_pixels(data)
    return np.array(pixels.transpose(2, 0, 1) if channels_first else pixels, order="C")


def image_pixels(data: Encoded) -> ImagePixels:
    """Return the same pixels as [H, W, 3], in memory that may be read-only."""
    data = memoryview(data).cast("B")  # those of Arrow are of signed bytes, which not all take
    quick = _jpeg_pixels(data)
    return _with_pillow(data, _rgb) if quick is None else quick


def stored_pixels(data: Encoded) -> npt.NDArray[Any]:
    """Return the pixels of an image as they are stored, as [H, W, channels].

    Grey images have one channel of 8 or 16 bits; images with a palette have one of its indices.
    """
    pixels: npt.NDArray[Any] = _with_pillow(memoryview(data).cast("B"), np.asarray)
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def images_on(device: Any, images: Sequence[bytes | None]) -> list[Any]:
    """Return images as ``decode_image`` does, as tensors on a CUDA device; None stays None.

    The device decodes JPEG; its pixels may differ a little from those that the host decodes. The
    host decodes all other formats.
    """
    import torch

    found: dict[int, Any] = {}
    jpegs = {
        row: torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for row, data in enumerate(images)
        if data is not None and _is_jpeg_in_rgb_or_grey(data)
    }
    if jpegs:
        library = _torchvision_io()
        try:
            decoded = library.decode_jpeg([*jpegs.values()], library.ImageReadMode.RGB, device)
            found = dict(zip(jpegs, decoded, strict=True))
        except RuntimeError:  # nvJPEG does not tell which: the host decodes it, or names its fault
            pass
    for row, data in enumerate(images):
        if data is not None and row not in found:
            found[row] = torch.from_numpy(decode_image(data)).to(device)
    return [found.get(row) for row in range(len(images))]


def check_decoder_on(device: Any) -> None:
    """Check that images can be decoded on a device.

    Raises:
        MissingExtraError: It is a CUDA device, and torchvision is not installed.
    """
    if device is not None and device.type == "cuda":
        _torchvision_io()


def _torchvision_io() -> Any:
    try:
        import torchvision.io
    except ImportError as error:
        raise MissingExtraError(
            'decode="nvjpeg" needs a torchvision that fits torch and its CUDA; run: '
            "pip install torchvision"
        ) from error
    return torchvision.io


def _is_jpeg_in_rgb_or_grey(data: bytes) -> bool:
    if data[:2] != _JPEG:
        return False
    library = _simplejpeg()
    try:
        if library is not None:
            height, width, colors, _ = library.decode_jpeg_header(data)
        else:
            with pillow().open(BytesIO(data)) as image:
                (width, height), colors = image.size, image.mode
        _check_size(data, width, height)
    except (ValueError, OSError):
        return False
    return colors in ("YCbCr", "Gray", "RGB", "L")


def _rgb(image: Any) -> ImagePixels:
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image))
    if image.mode == "I" and image.format in _GREY_OF_16_BITS:
        return _grey(np.asarray(image).astype(np.uint16))
    if image.mode in ("I", "F"):
        raise ValueError(
            "its pixels are numbers of 32 bits, which have no range of colours; decode it as "
            '"pixels" to have these numbers'
        )
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _with_pillow(data: memoryview, pixels_of: Callable[[Any], Any]) -> Any:
    library = pillow()
    if bytes(data[:12]).startswith(_JPEG_XL):
        _register_jpeg_xl()
    try:
        with library.open(BytesIO(data)) as image:
            if image.format in _POSTSCRIPT:
                raise ValueError("they are PostScript, which is a program and is not run")
            return pixels_of(image)
    except MemoryError:
        raise
    except library.UnidentifiedImageError:
        why = "they are in no format that Pillow knows"
    except Exception as error:  # the readers of formats raise what they like
        why = str(error) or type(error).__name__
    raise ReadError(f"{data.nbytes} bytes do not decode as an image: {why}")


def _register_jpeg_xl() -> None:
    """Have Pillow read JPEG XL, for which it needs a package of its own."""
    try:
        import pillow_jxl  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "JPEG XL images need pillow-jxl-plugin: pip install pillow-jxl-plugin"
        ) from error


def _jpeg_pixels(data: Encoded) -> ImagePixels | None:
    """Decode a JPEG with simplejpeg if it is installed: the same pixels in half the time.

    Returns None for other formats and for a damaged JPEG, which Pillow can read or describe. A JPEG
    that claims too many pixels is refused before memory is taken for them.
    """
    if bytes(data[:2]) != _JPEG:
        return None
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colors, _ = library.decode_jpeg_header(data)
        _check_size(data, width, height)
        if colors not in ("YCbCr", "Gray", "RGB"):
            return None
        pixels: ImagePixels = library.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
    except ValueError:
        return None
    return pixels


def _check_size(data: Encoded, width: int, height: int) -> None:
    """Apply the limit of Pillow: more than twice ``MAX_IMAGE_PIXELS`` is an error."""
    limit = _most_pixels()
    if limit is not None and width * height > 2 * limit:
        raise ReadError(
            f"{memoryview(data).nbytes} bytes do not decode as an image: {width} x {height} pixels "
            f"exceeds limit of {2 * limit} pixels; set PIL.Image.MAX_IMAGE_PIXELS if images may be "
            "that large"
        )


def _most_pixels() -> int | None:
    try:
        from PIL import Image
    except ImportError:
        return _MOST_PIXELS
    return Image.MAX_IMAGE_PIXELS


def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _grey(values: npt.NDArray[np.uint16]) -> ImagePixels:
    # The higher eight of 16 bits, three times: as red, green and blue.
    return np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)


def pillow() -> Any:
    """``PIL.Image``, with the formats that are expected: what else there is it looks for itself."""
    try:
        from PIL import Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401
    except ImportError as error:
        raise MissingExtraError.for_extra("images", "Pillow") from error
    Image.preinit()
    return Image
