"""Files that are whole or not there: written beside their place, flushed, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["flush_directory", "whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; what is there after the block gets the name ``path``, at once.

    An error or a kill leaves at most a file whose name ends in ``.partial``, which the next
    attempt replaces.
    """
    partial = path.with_name(path.name + ".partial")
    yield partial
    with open(partial, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Make the names in a directory last."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
