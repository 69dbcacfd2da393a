"""Small videos whose frames encode their own numbers."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT, FPS = 32, 24, 10
STEP = 5
"""the difference in green between a frame and the one before"""


def picture(
    frame: int, *, red: int = 0, height: int = HEIGHT, width: int = WIDTH
) -> npt.NDArray[np.uint8]:
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = red
    image[..., 1] = frame * STEP % 256
    image[:, : width // 2, 2] = 200
    return image


def make_video(
    path: Path,
    frames: int = 40,
    *,
    red: int = 0,
    height: int = HEIGHT,
    width: int = WIDTH,
    codec: str = "mpeg4",
    noise: int = 0,
) -> Path:
    """Write a video; pixels differ from the picture by up to ``noise``, so that frames grow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            image = picture(number, red=red, height=height, width=width)
            if noise:
                image = image + random.integers(0, noise, image.shape, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


TELLS_ROTATION = hasattr(av.VideoFrame, "rotation")
"""False for old versions of PyAV"""


def turn(path: Path) -> Path:
    """Mark an MP4 to be shown turned by a quarter to the right, as phones do."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 4 + 20 + 16
    one = 1 << 16
    data[matrix : matrix + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def damage(path: Path, start: float, stop: float) -> Path:
    """Overwrite a part of a file with zeros; both ends are given as shares of its size."""
    data = bytearray(path.read_bytes())
    first, last = int(len(data) * start), int(len(data) * stop)
    data[first:last] = bytes(last - first)
    path.write_bytes(data)
    return path


def cut_off(path: Path, share: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path
