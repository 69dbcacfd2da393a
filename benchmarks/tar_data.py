"""The data of indexed tars, which is written once, in folders beside the other data.

Four tars of pairs: a JPEG of about 65 KB and a JSON file of metadata about it. Their JSON index is
in a folder beside them that has links to the tars, for readers that need both in one place.
"""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from data import Data, write_missing

__all__ = ["entries_path", "indexed_tars", "make_tar_data", "sample_count", "tar_paths"]

TARS = 4
ENTRIES = 400_000
_SHAPES = ((512, 512), (640, 480), (480, 640), (768, 432), (432, 768), (576, 448), (448, 576))


def sample_count(data: Data) -> int:
    """Return the number of pairs in all tars."""
    return TARS * _samples_per_tar(data)


def _samples_per_tar(data: Data) -> int:
    return max(1, round(2_500 * data.scale))


def tar_paths(data: Data) -> list[Path]:
    """Return the tars, in order."""
    return data.files("tar")


def indexed_tars(data: Data) -> Path:
    """Return the folder of the tars and their JSON indices, with image sizes and all sidecars."""
    return data.folder("tar-indexed")


def entries_path(data: Data, kind: str) -> Path:
    """Return the index of many small entries, ``json`` or ``idx.arrow``, beside its tar."""
    return data.folder("tar-entries") / kind / f"shard_0000.{kind}"


def entry_count(data: Data) -> int:
    """Return the number of entries of that index."""
    return max(10, round(ENTRIES * data.scale))


def make_tar_data(data: Data) -> None:
    """Write the data that do not exist yet."""
    write_missing(data, _WRITERS)


def _write_tars(data: Data, folder: Path) -> None:
    chosen = random.Random(0)
    pictures = [(width, height, _jpeg(width, height)) for width, height in _SHAPES]
    for shard in range(TARS):
        path = folder / f"shard_{shard:04d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(_samples_per_tar(data)):
                width, height, picture = chosen.choice(pictures)
                key = f"{shard:04d}_{number:06d}"
                about = {
                    "caption": f"a picture of thing {number}, seen from the side",
                    "width": width,
                    "height": height,
                    "id": number,
                    "url": f"https://example.com/images/{key}.jpg",
                    "score": round(chosen.random(), 6),
                    "tags": ["one", "two", f"tag{number % 17}"],
                }
                surplus = chosen.randbytes(
                    chosen.randrange(64, 6000)
                )  # after the end of the picture
                _add(tar, f"{key}.jpg", picture + surplus)
                _add(tar, f"{key}.json", json.dumps(about).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(content), 1_700_000_000
    tar.addfile(info, io.BytesIO(content))


def _jpeg(width: int, height: int) -> bytes:
    """Return noise, at a quality at which it has about 65 KB."""
    from PIL import Image

    noise = np.random.default_rng(width).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    picture = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    for quality in (60, 75, 85, 92, 95):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        if file.tell() > 60_000:
            break
    return file.getvalue()


def _write_indexed(data: Data, folder: Path) -> None:
    from headrace.sources.tar import index_tars

    for path in tar_paths(data):
        os.link(path, folder / path.name)
    index_tars(folder, geometry=True, format="json")


def _write_entries(data: Data, folder: Path) -> None:
    """Write an index like those of published data sets: name, place, and the size of the image."""
    from headrace.sources.tar._json_index import read_json_index
    from headrace.sources.tar.index import write_index

    chosen = random.Random(0)
    files: dict[str, dict[str, float]] = {}
    for kind in ("json", "idx.arrow"):
        (folder / kind).mkdir()
    tar_path = folder / "json" / "shard_0000.tar"
    with tarfile.open(tar_path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(entry_count(data)):
            name, content = f"{number:09d}.webp", chosen.randbytes(chosen.randrange(100, 500))
            width, height = chosen.choice(_SHAPES)
            aspect = float(str(np.float32(width / height)))  # as webshart writes it
            shape = {"width": width, "height": height, "aspect": aspect}
            files[name] = {"offset": tar.offset + 512, "length": len(content), **shape}
            _add(tar, name, content)
            tar.members.clear()  # tarfile would search them for each new member
    os.link(tar_path, folder / "idx.arrow" / "shard_0000.tar")
    text = json.dumps({"filesize": tar_path.stat().st_size, "files": files}).encode()
    (folder / "json" / "shard_0000.json").write_bytes(text)
    index = read_json_index(text, "shard_0000.json")
    write_index(folder / "idx.arrow" / "shard_0000.idx.arrow", [("shard_0000.tar", index)])


_WRITERS: dict[str, Callable[[Data, Path], None]] = {
    "tar": _write_tars,
    "tar-indexed": _write_indexed,
    "tar-entries": _write_entries,
}
