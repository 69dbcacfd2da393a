"""Tars for tests: small samples, written by the standard library."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

Member = tuple[str, bytes]


def members(count: int, seed: int = 0, *, folder: str = "", size: int = 3000) -> list[Member]:
    """So many samples, each an image of some length with a JSON file."""
    draw = np.random.default_rng(seed)
    found: list[Member] = []
    for number in range(count):
        name = f"{folder}{seed:02}_{number:04}"
        found.append((f"{name}.jpg", draw.bytes(int(draw.integers(1, size)))))
        said = {"caption": f"what is in {name}", "id": number}
        found.append((f"{name}.json", json.dumps(said).encode()))
    return found


def tar_bytes(members: Iterable[Member]) -> bytes:
    """The tar of some members."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for name, payload in members:
            header = tarfile.TarInfo(name)
            header.size = len(payload)
            tar.addfile(header, io.BytesIO(payload))
    return memory.getvalue()


def write_tar(path: Path, members: Iterable[Member]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def write_shards(folder: Path, shards: Sequence[Sequence[Member]]) -> list[Path]:
    """``shard_0000.tar`` and so on."""
    return [
        write_tar(folder / f"shard_{number:04}.tar", members)
        for number, members in enumerate(shards)
    ]
