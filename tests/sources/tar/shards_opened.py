"""Tars that are open as ``TarShards``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tars_made import Member, members, write_shards, write_tar

from headrace import TarShards
from headrace.sources.tar import index_tars

SHARDS = [members(20, 0), members(7, 1, folder="deep/er/")]


def png(width: int, height: int) -> bytes:
    """As much of an image as tells its size."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + bytes(50)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, SHARDS)
    return folder


@pytest.fixture
def shards(folder: Path) -> TarShards:
    return TarShards(folder)


def one_tar(tmp_path: Path, shard: list[Member], **index: Any) -> TarShards:
    """A tar with an index, if it is said how that is made."""
    path = write_tar(tmp_path / "a.tar", shard)
    if index:
        index_tars(path, **index)
    return TarShards(path)
