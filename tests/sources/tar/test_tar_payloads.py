"""Bytes of members: the right ones in the order asked for, or an error that says of what."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tars_made import members, tar_bytes, write_shards, write_tar

from headrace.errors import FileChangedError, ReadError, StaleIndexError
from headrace.sources.tar import index_tars
from headrace.sources.tar._locate import access_of
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.payloads import Payloads

SHARDS = [[*members(30 + seed, seed), ("empty.txt", b"")] for seed in range(3)]
Pairs = list[tuple[int, int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("payloads")
    write_shards(folder, SHARDS)
    return folder


def reader_of(source: Any) -> Payloads:
    return Payloads(TarCollection.find(source, access=access_of()))


def read(reader: Payloads, pairs: Pairs) -> list[bytes]:
    return reader.read_many([shard for shard, _ in pairs], [member for _, member in pairs])


def column_of(reader: Payloads, member: int) -> Any:
    return reader.column(np.array([0]), np.array([member]))


def expected(pairs: Pairs) -> list[bytes]:
    return [SHARDS[shard][member][1] for shard, member in pairs]


def some_pairs(count: int, seed: int = 0) -> Pairs:
    draw = random.Random(seed)
    shards = [draw.randrange(3) for _ in range(count)]
    return [(shard, draw.randrange(len(SHARDS[shard]))) for shard in shards]


PAIRS = st.lists(
    st.integers(0, 2).flatmap(
        lambda shard: st.tuples(st.just(shard), st.integers(0, len(SHARDS[shard]) - 1))
    )
)


@settings(max_examples=50)
@given(PAIRS)
def test_in_the_order_asked_for_and_as_often(folder: Path, pairs: Pairs) -> None:
    reader = reader_of(folder)
    assert read(reader, pairs) == expected(pairs)
    shards, wanted = [s for s, _ in pairs], [m for _, m in pairs]
    column = reader.column(np.array([*shards, 0], np.int64), np.array([*wanted, -1], np.int64))
    assert column.to_pylist() == [*expected(pairs), None]
    column.validate(full=True)


def test_of_one_tar(folder: Path) -> None:
    reader = reader_of(folder)
    numbers = [5, 0, 5, 60]
    for wanted in (numbers, np.array(numbers, np.int32), tuple(numbers)):
        assert reader.read(0, wanted) == expected([(0, n) for n in numbers])
    assert reader.read(1, [3]) == expected([(1, 3)])
    assert reader.read(1, []) == []
    with pytest.raises(ValueError, match="2 shards for 1 members"):
        reader.read_many([0, 0], [1])


def test_system_calls_that_give_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those for more than 2 GiB do."""
    reader = reader_of(folder)
    assert reader.collection.sample_counts.tolist() == [31, 32, 33]
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 1000), at))
    monkeypatch.setattr(os, "preadv", lambda file, to, at: preadv(file, [to[0][:1000]], at))
    pairs = some_pairs(50)
    assert read(reader, pairs) == expected(pairs)


def test_neighbours_and_their_headers_are_read_by_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = [(f"{number:03}.txt", b"x" * number) for number in range(600)]
    path = write_tar(tmp_path / "a.tar", shard)
    index_tars(path)
    reader = reader_of(path)
    index = reader.collection.index(0)
    calls: list[Any] = []
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda *what: calls.append(what) or pread(*what))
    monkeypatch.setattr(os, "preadv", lambda *what: calls.append(what) or preadv(*what))
    column = reader.column(np.zeros(600, np.int64), np.arange(600))
    assert column.to_pylist() == [data for _, data in shard]
    assert len(calls) == 2
    assert not index.unchecked.any()
    index.unchecked[300] = True
    sizes = index.sizes.copy()
    sizes[300] -= 1
    object.__setattr__(index, "sizes", sizes)
    index.__dict__.pop("places", None)
    with pytest.raises(StaleIndexError, match=r"no header of '300\.txt'"):
        reader.column(np.zeros(600, np.int64), np.arange(600))


# --- what is not there


@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_tar_that_was_cut_is_an_error_and_no_signal(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "a.tar", members(50))
    reader = reader_of(path)
    assert reader.read(0, [0])
    os.truncate(path, path.stat().st_size - cut)
    for ask in (lambda: reader.read(0, [98]), lambda: column_of(reader, 98)):
        with pytest.raises(FileChangedError, match=r"a\.tar changed after it was discovered"):
            ask()
    with pytest.raises(FileChangedError, match=r"a\.tar"):
        pickle.loads(pickle.dumps(reader)).read(0, [98])


def test_a_tar_that_was_written_again_in_place(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(5))
    reader = reader_of(path)
    assert reader.read(0, [0])
    with open(path, "r+b") as file:
        file.write(tar_bytes(members(5))[::-1])
    os.utime(path, ns=(0, 12345))
    with pytest.raises(FileChangedError, match="was written again"):
        reader.read(0, [0])


@pytest.mark.parametrize("how", ["pread", "preadv"])
def test_a_tar_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = write_tar(tmp_path / "a.tar", members(5))
    reader = reader_of(path)
    assert reader.read(0, [0])
    real = getattr(os, how)

    def meddling(*what: Any) -> Any:
        os.utime(path)
        return real(*what)

    monkeypatch.setattr(os, how, meddling)
    with pytest.raises(FileChangedError, match="was written again"):
        column_of(reader, 0) if how == "preadv" else reader.read(0, [0])


def test_a_tar_that_was_replaced(tmp_path: Path) -> None:
    """Who has it open reads the old one, and nobody reads the new one by the old index."""
    old = members(5)
    path = write_tar(tmp_path / "a.tar", old)
    reader = reader_of(path)
    assert reader.read(0, [2]) == [old[2][1]]
    os.replace(write_tar(tmp_path / "new", members(7, 3)), path)
    assert reader.read(0, [4]) == [old[4][1]]
    with pytest.raises(FileChangedError, match=r"a\.tar"):
        pickle.loads(pickle.dumps(reader)).read(0, [4])
    os.unlink(path)
    with pytest.raises(FileChangedError, match="vanished"):
        pickle.loads(pickle.dumps(reader)).read(0, [4])


def test_a_payload_that_is_short_names_tar_and_member(tmp_path: Path) -> None:
    """Whatever the index says: what cannot be read whole is never handed out."""
    path = write_tar(tmp_path / "a.tar", members(3))
    index_tars(path)
    reader = reader_of(path)
    index = reader.collection.index(0)
    sizes = index.sizes.copy()
    sizes[4] = path.stat().st_size
    object.__setattr__(index, "sizes", sizes)
    index.__dict__.pop("places", None)
    index.unchecked.fill(False)
    for ask in (
        lambda: reader.read(0, [4]),
        lambda: reader.read(0, [0, 4]),
        lambda: column_of(reader, 4),
    ):
        with pytest.raises(ReadError, match=r"a\.tar: member '00_0002\.jpg' has .* but only"):
            ask()


def test_a_disk_that_fails_is_an_error_that_names_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "a.tar", members(3))
    reader = reader_of(path)
    index, pread = reader.collection.index(0), os.pread

    def failing(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    monkeypatch.setattr(os, "preadv", failing)
    for ask in (lambda: reader.read(0, [4]), lambda: column_of(reader, 4)):
        with pytest.raises(ReadError, match=r"'00_0002\.jpg' cannot be read: .*a\.tar.*output"):
            ask()

    def failing_at(file: int, size: int, at: int) -> bytes:
        return failing() if at == index.offsets[3] else pread(file, size, at)

    monkeypatch.setattr(os, "pread", failing_at)
    with pytest.raises(ReadError, match=r"'00_0001\.json' cannot be read"):
        reader.column(np.zeros(6, np.int64), np.arange(6))


def test_a_tar_that_may_not_be_opened(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(3))
    index_tars(path)
    reader = reader_of(path)
    reader.collection.index(0)
    os.unlink(path)
    path.mkdir()
    with pytest.raises(ReadError, match=r"a\.tar"):
        reader.read(0, [0])


# --- many of them


def test_only_so_many_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.tar.payloads._OPEN_AT_ONCE", 3)
    shards = [members(2, seed) for seed in range(12)]
    write_shards(tmp_path, shards)
    reader = reader_of(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for number, shard in enumerate(shards):
            assert reader.read(number, [1]) == [shard[1][1]]
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 3
    del reader
    assert len(os.listdir("/proc/self/fd")) <= before


def test_tars_take_a_share_of_the_descriptors(tmp_path: Path) -> None:
    shards = [members(2, seed) for seed in range(80)]
    write_shards(tmp_path, shards)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        reader = reader_of(tmp_path)
        assert reader.collection.sample_counts.sum() == 160
        taken += [os.dup(0) for _ in range(256 - len(os.listdir("/proc/self/fd")) - 70)]
        for number, shard in enumerate(shards):
            assert reader.read(number, [1]) == [shard[1][1]]
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(ReadError, match=r"\.tar cannot be opened: Too many open files"):
            reader.read(0, [1])
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_share_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.tar.payloads._OPEN_AT_ONCE", 2)
    reader = reader_of(folder)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for turn in range(40):
            pairs = some_pairs(10, 100 * seed + turn)
            if read(reader, pairs) != expected(pairs):
                wrong.append(pairs)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_copy_of_it_reads_too(folder: Path) -> None:
    reader = reader_of(folder)
    pairs = some_pairs(10)
    assert read(reader, pairs) == expected(pairs)
    sent = pickle.dumps(reader)
    assert len(sent) < 3000
    assert read(pickle.loads(sent), pairs) == expected(pairs)
