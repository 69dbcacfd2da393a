"""``TarShards``: members that are too large, indices that are stale, options that cannot be."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from tars_made import members, write_tar

from headrace import TarShards
from headrace.errors import NothingFoundError, OptionError, ReadError, StaleIndexError
from headrace.sources.tar import index_tars


def huge_tar(path: Path) -> None:
    """A small sample, and one of ten gigabytes, of which the disk has nothing."""
    size = 10 << 30
    with open(path, "wb") as file:
        for name, payload in (("small.jpg", b"small"), ("small.json", b"{}")):
            header = tarfile.TarInfo(name)
            header.size = len(payload)
            file.write(header.tobuf(tarfile.GNU_FORMAT) + payload.ljust(512, b"\0"))
        header = tarfile.TarInfo("huge.mp4")
        header.size = size
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.seek(size, os.SEEK_CUR)
        file.write(bytes(1024))


def test_a_member_of_ten_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    huge_tar(path)
    shards = TarShards(path)
    limit = 1 << 20
    for ask in (
        lambda: shards.load_sample(0, 1, max_file_size=limit),
        lambda: shards.load_samples([(0, 0), (0, 1)], max_file_size=limit),
        lambda: list(shards.samples(max_file_size=limit)),
        lambda: shards.open_shard(0).load_sample(1, max_file_size=limit),
    ):
        with pytest.raises(ReadError, match=r"a\.tar: member 'huge\.mp4' has 10,737,418,240 bytes"):
            ask()
    assert shards.load_sample(0, 0, max_file_size=limit).bytes == b"small"
    assert shards.load_sample(0, 0, max_file_size=5).bytes == b"small"
    with pytest.raises(ReadError, match=r"small\.jpg"):
        shards.load_sample(0, 0, max_file_size=4)
    assert shards.load_sample(0, 0, max_file_size="1KiB").bytes == b"small"
    with pytest.raises(ReadError, match=r"huge\.mp4.*max_file_size=1,024"):
        list(shards.samples(max_file_size="1KiB"))
    with pytest.raises(OptionError, match=r"max_file_size must be"):
        shards.load_sample(0, 0, max_file_size="much")


def test_a_stale_index(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(5))
    index_tars(path)
    write_tar(tmp_path / "a.tar", members(6, 9))
    shards = TarShards(path)
    for ask in (
        lambda: shards.load_sample(0, 0),
        lambda: list(shards.samples()),
        lambda: len(shards),
        lambda: shards.open_shard(0),
    ):
        with pytest.raises(StaleIndexError, match=r"a\.tar.*headrace index"):
            ask()


def test_options_that_cannot_be(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", members(1))
    for options, what in (
        ({"cache_bytes": "1GiB"}, "cache_bytes has no effect without cache_dir"),
        ({"cache_dir": tmp_path / "c", "cache_bytes": "much"}, "cache_bytes must be"),
        ({"storage_options": 7}, "storage_options must be"),
    ):
        with pytest.raises(OptionError, match=what):
            TarShards(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(NothingFoundError):
        TarShards(tmp_path / "nowhere")
