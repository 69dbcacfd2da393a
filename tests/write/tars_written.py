"""Tars written by tests, and their contents as Python reads them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace import TarWriter


def members(path: Path) -> dict[str, bytes]:
    """Return the members of a tar as Python reads them."""
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def numbered(count: int, size: int = 100) -> list[dict[str, Any]]:
    return [{"__key__": f"{n:04d}", "bin": bytes([n % 256]) * size} for n in range(count)]


def write(folder: Path, samples: Iterable[dict[str, Any]], **options: Any) -> TarWriter:
    with TarWriter(folder, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return the samples of all tars in their order, by key."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        for name, data in members(path).items():
            head, slash, base = name.rpartition("/")
            key, _, field = base.partition(".")
            found.setdefault(head + slash + key, {})[field] = data
    return found


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]
