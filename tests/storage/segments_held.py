"""What a cache on disk holds, by its files."""

from __future__ import annotations

from pathlib import Path


def segments_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*-*-*") if path.is_file()]


def size_on_disk(folder: Path) -> int:
    """Of all segments, each once, also if one is renamed just now."""
    sizes: dict[int, int] = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file() and path.name != "used":
                sizes[path.stat().st_ino] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sum(sizes.values())
