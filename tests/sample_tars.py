"""Small tars of samples, as other tools write them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = [(16, 12), (12, 16), (16, 16), (24, 12)]
"""width and height of the pictures, in turn"""


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return path


def picture(number: int, size: tuple[int, int], kind: str = "PNG") -> bytes:
    """Return an image of one colour, which depends on its number."""
    stream = BytesIO()
    Image.new("RGB", size, (number % 256, number // 256, 7)).save(stream, kind)
    return stream.getvalue()


def huge_jpeg(width: int, height: int) -> bytes:
    """Return a JPEG of a few hundred bytes whose header claims this width and height."""
    data = bytearray(picture(1, (16, 16), "JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


def npy(values: np.ndarray) -> bytes:
    stream = BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def sample(number: int, *, same_size: bool = False) -> list[tuple[str, bytes]]:
    """Return the members of a sample: a picture, its metadata, its class, and an array."""
    key = f"{number:06d}"
    width, height = SIZES[0] if same_size else SIZES[number % len(SIZES)]
    metadata = {"id": number, "caption": f"picture {number}"}
    return [
        (f"{key}.png", picture(number, (width, height))),
        (f"{key}.json", json.dumps(metadata).encode()),
        (f"{key}.cls", str(number % 10).encode()),
        (f"{key}.npy", npy(np.full((2, 3), number, np.float32))),
        (f"{key}.txt", f"ä {number}".encode()),
    ]


def write_samples(folder: Path, counts: Iterable[int], *, same_size: bool = False) -> Path:
    """Write a tar for each count of samples; the samples are numbered across the tars."""
    first = 0
    for shard, count in enumerate(counts):
        numbers = range(first, first + count)
        members = [one for i in numbers for one in sample(i, same_size=same_size)]
        write_tar(folder / f"shard_{shard:04d}.tar", members)
        first += count
    return folder
