"""Copies of whole objects in the disk cache, for readers that need a file."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import FileChangedError, OptionError
from headrace.storage import DiskCache

SIZE = 100_000


def data(number: int) -> bytes:
    return bytes([number]) * SIZE


def pieces(number: int) -> Iterator[bytes]:
    whole = data(number)
    yield from (whole[start : start + 30_000] for start in range(0, SIZE, 30_000))


def copy(cache: DiskCache, number: int) -> bytes:
    with cache.open_copy(f"s3://b/{number}", (number,), SIZE, pieces(number)) as file:
        file.seek(0)
        return file.read()


def copies(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("??/*/0-*") if path.is_file())


def test_a_copy_is_made_once(tmp_path: Path) -> None:
    cache = DiskCache.at(tmp_path, 10 * SIZE)
    assert copy(cache, 1) == data(1)

    def never() -> Iterator[bytes]:
        raise AssertionError("it is fetched again")
        yield b""

    with cache.open_copy("s3://b/1", (1,), SIZE, never()) as file:
        assert file.read() == data(1)
    assert len(copies(tmp_path)) == 1


def test_a_copy_that_is_removed_stays_readable_by_its_descriptor(tmp_path: Path) -> None:
    cache = DiskCache.at(tmp_path, 3 * SIZE // 2)
    with cache.open_copy("s3://b/1", (1,), SIZE, pieces(1)) as first:
        assert copy(cache, 2) == data(2)
        assert len(copies(tmp_path)) == 1
        with open(f"/dev/fd/{first.fileno()}", "rb") as again:
            assert again.read() == data(1)


def test_a_copy_that_fails_leaves_nothing_and_its_room(tmp_path: Path) -> None:
    cache = DiskCache.at(tmp_path, 3 * SIZE // 2)

    def broken() -> Iterator[bytes]:
        yield b"some"
        raise FileChangedError("s3://b/1 changed")

    for _ in range(3):
        with pytest.raises(FileChangedError):
            cache.open_copy("s3://b/1", (1,), SIZE, broken())
    assert copies(tmp_path) == []
    assert os.listdir(tmp_path / "new") == []
    assert copy(cache, 1) == data(1)


def test_a_copy_that_is_being_made_is_waited_for(tmp_path: Path) -> None:
    """By those that want the same one, and by those that need its room."""
    cache = DiskCache.at(tmp_path, 3 * SIZE // 2)
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        begun.set()
        assert go_on.wait(60)
        yield from pieces(1)

    with ThreadPoolExecutor(3) as threads:
        making = threads.submit(lambda: cache.open_copy("s3://b/1", (1,), SIZE, slow()).close())
        assert begun.wait(60)
        same, other = threads.submit(copy, cache, 1), threads.submit(copy, cache, 2)
        assert copies(tmp_path) == []
        go_on.set()
        making.result(60)
        assert same.result(60) == data(1)
        assert other.result(60) == data(2)
    assert 1 <= len(copies(tmp_path)) <= 2
    assert sum(path.stat().st_size for path in copies(tmp_path)) <= 3 * SIZE // 2


def test_what_a_cache_may_not_or_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"s3://b/1 has 100000 bytes .*more cache_bytes"):
        copy(DiskCache.at(tmp_path, SIZE - 1), 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, limits[1]))
    try:
        with pytest.raises(OptionError, match=r"cache_dir cannot hold a copy of s3://b/1: .*large"):
            copy(DiskCache.at(tmp_path, 10 * SIZE), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path / "new") == []
    assert copy(DiskCache.at(tmp_path, 10 * SIZE), 1) == data(1)
