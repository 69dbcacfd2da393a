"""The cache on disk: nothing is fetched twice, nothing wrong is served, and it stays small."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_folders import Served, numbers, parquet, put, rows_of, served
from warm_interpreters import WarmProcess, run_warm

from penstock.errors import FileChangedError, OptionError
from penstock.storage import DiskCache, Meter

ROWS = 4000
SOURCE = np.random.default_rng(0).bytes(1 << 20)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("caching") / "caching"
    for part in range(3):
        put(folder, f"parts/{part}.parquet", parquet(numbers(ROWS, ROWS * part), 1000))
    put(folder, "größe/日本 語=1/a b+c%.parquet", parquet(numbers(100)))
    put(folder, "other/one.parquet", parquet(numbers(ROWS), 1000))
    with served(folder) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def fresh_log(bucket: Served) -> None:
    bucket.taken()


class Source:
    """Bytes of an object, and how often they were asked for."""

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> memoryview:
        self.fetched.append((start, stop))
        return memoryview(SOURCE)[start:stop]


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


def size_meanwhile(folder: Path) -> int:
    """The same while others use the cache, who may not remove anything as long as it is counted."""
    if not (folder / "used").exists():
        return 0
    with open(folder / "used", "rb") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        return size_on_disk(folder)


def get(cache: DiskCache, key: str, start: int, stop: int, source: Source | None = None) -> bytes:
    return bytes(cache.get((key,), start, stop, source or Source(), Meter()))


# --- what a server sees


@pytest.mark.parametrize("columns", [None, ["id", "x1"]])
def test_the_second_epoch_makes_no_request(
    bucket: Served, tmp_path: Path, columns: list[str] | None
) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, columns=columns)
    assert rows_of(loader) == list(range(3 * ROWS))
    first = bucket.taken()
    assert first.reads
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().log == []
    stats = loader.stats()
    assert stats["requests"] == len(first.log)
    assert stats["fetched_bytes"] == first.bytes
    # The end of a file that was fetched with its footer is not fetched again either.
    assert 0 < stats["cached_bytes"] <= 2 * stats["fetched_bytes"]


def test_worker_processes_share_it(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, num_workers=2, lanes=2)
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    assert bucket.taken().reads
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    assert bucket.taken().log == []


READ_ALL = """
import sys
from penstock import StructuredDataset
place, endpoint, cache = sys.argv[1:]
loader, _ = StructuredDataset.create_dataloader(
    place,
    num_workers=0,
    cache_dir=cache,
    storage_options={"key": "any", "secret": "any", "endpoint_url": endpoint},
)
print(sum(int(batch["id"].sum()) for batch in loader))
"""


def test_another_process_reads_nothing_again(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path / "cache")
    total = sum(rows_of(loader))
    assert bucket.taken().reads
    place = [f"{bucket.bucket}/parts", bucket.proxy.url, str(tmp_path / "cache")]
    done = run_warm("-c", READ_ALL, *place)
    assert (done.stdout, done.stderr) == (f"{total}\n", "")
    asked = bucket.taken()
    assert asked.reads == []  # not even footers
    assert asked.listings


def test_other_columns_fetch_only_what_is_not_there(bucket: Served, tmp_path: Path) -> None:
    rows_of(bucket.loader("parts/", cache_dir=tmp_path, columns=["id", "x1"])[0])
    first = bucket.taken()
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path)
    assert rows_of(loader) == list(range(3 * ROWS))
    second = bucket.taken()
    whole = sum(path.stat().st_size for path in (bucket.folder / "parts").iterdir())
    assert first.bytes + second.bytes <= 1.02 * whole + 3 * (64 << 10)
    rows_of(loader)
    assert bucket.taken().log == []


def test_a_replaced_object_is_not_served_from_the_old_one(bucket: Served, tmp_path: Path) -> None:
    name = "other/one.parquet"

    def replace_by_rows_from(first: int) -> None:
        """By an object of the same size."""
        plain = {"compression": "none", "use_dictionary": False}
        put(bucket.folder, name, parquet(numbers(ROWS, first), 1000, **plain))
        sizes.add((bucket.folder / name).stat().st_size)

    sizes: set[int] = set()
    replace_by_rows_from(0)
    old, _ = bucket.loader(name, cache_dir=tmp_path, columns=["id", "x0"])
    assert rows_of(old) == list(range(ROWS))
    replace_by_rows_from(70_000)
    new, _ = bucket.loader(name, cache_dir=tmp_path, columns=["id", "x0"])
    assert rows_of(new) == list(range(70_000, 70_000 + ROWS))
    # What has been fetched of the old one is still that; what has not is no longer there.
    assert rows_of(old) == list(range(ROWS))
    rest, _ = bucket.loader(name, cache_dir=tmp_path)
    replace_by_rows_from(90_000)
    assert len(sizes) == 1
    with pytest.raises(FileChangedError, match=r"one\.parquet"):
        rows_of(rest)


def test_broken_segments_are_fetched_again(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path)
    rows_of(loader)
    bucket.taken()
    for index, path in enumerate(sorted(segments_in(tmp_path))):
        data = bytearray(path.read_bytes())
        if index % 4 == 0:
            path.write_bytes(data[: len(data) // 2])
        elif index % 4 == 1:
            path.write_bytes(b"")
        elif index % 4 == 2:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path)
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads == []


def test_names_of_all_kinds(bucket: Served, tmp_path: Path) -> None:
    cache = tmp_path / "schöner Ort 日本" / "mit Ordner"
    loader, _ = bucket.loader("größe/日本 語=1/", cache_dir=cache, partitioning=None)
    assert rows_of(loader) == list(range(100))
    assert rows_of(loader) == list(range(100))
    assert segments_in(cache)
    bucket.taken()
    loader, _ = bucket.loader("größe/日本 語=1/", cache_dir=cache, partitioning=None)
    assert rows_of(loader) == list(range(100))
    assert bucket.taken().reads == []


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    bucket: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody puts a file in its place: nobody can write there, not even root."""
    cache = tmp_path / "cache"
    loader, _ = bucket.loader("parts/", cache_dir=cache)
    shutil.rmtree(cache)
    cache.write_text("in the way")
    assert rows_of(loader) == list(range(3 * ROWS))
    assert "not cached" in caplog.text


def test_a_cache_that_was_removed_is_made_again(bucket: Served, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    loader, _ = bucket.loader("parts/", cache_dir=cache)
    rows_of(loader)
    shutil.rmtree(cache)
    assert rows_of(loader) == list(range(3 * ROWS))
    bucket.taken()
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads == []


def test_a_folder_without_permission_is_no_reason_to_fail(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path / "cache")
    os.chmod(tmp_path / "cache", 0o500)
    try:
        assert rows_of(loader) == list(range(3 * ROWS))
        assert rows_of(loader) == list(range(3 * ROWS))
    finally:
        os.chmod(tmp_path / "cache", 0o700)


def test_a_tiny_limit_caches_what_fits(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, cache_bytes=1000)
    assert rows_of(loader) == list(range(3 * ROWS))
    assert size_on_disk(tmp_path) <= 1000
    bucket.taken()
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads


def test_options_that_cannot_be(bucket: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for options in (
        {"cache_dir": tmp_path / "file"},
        {"cache_dir": 7},
        {"cache_bytes": "1GB"},
        {"cache_dir": tmp_path, "cache_bytes": "many"},
        {"cache_dir": tmp_path, "cache_bytes": -1},
    ):
        with pytest.raises(OptionError, match="cache_"):
            bucket.loader("parts/", **options)
    assert bucket.taken().log == []


# --- the folder itself

RANGES = st.tuples(st.integers(0, 3000), st.integers(1, 900), st.sampled_from(["a", "b"]))
STEPS = st.lists(st.tuples(RANGES, st.sampled_from(["", "", "", "cut", "flip", "remove"])))


@settings(max_examples=60)
@given(STEPS, st.sampled_from([0, 500, 2000, 1 << 20]))
def test_gives_the_right_bytes_whatever_happens_to_the_folder(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    cache = DiskCache.at(folder, limit)
    for (start, length, key), damage in steps:
        assert get(cache, key, start, start + length) == SOURCE[start : start + length]
        assert size_on_disk(folder) <= limit
        segments = sorted(segments_in(folder))
        if segments and damage:
            path = segments[start % len(segments)]
            data = path.read_bytes()
            if damage == "remove":
                path.unlink()
            elif damage == "cut":
                path.write_bytes(data[:-1])
            else:
                path.write_bytes(bytes(255 - byte for byte in data[:1]) + data[1:])


def test_bytes_that_are_there_are_not_fetched(tmp_path: Path) -> None:
    cache, source = DiskCache.at(tmp_path, 1 << 20), Source()
    meter = Meter()
    for start, stop in ((100, 200), (300, 400), (0, 500), (0, 500), (150, 350)):
        data = cache.get(("a",), start, stop, source, meter)
        assert bytes(data) == SOURCE[start:stop]
    assert source.fetched == [(100, 200), (300, 400), (0, 100), (200, 300), (400, 500)]
    assert meter.drain() == {"cached_bytes": 200 + 500 + 200}
    get(cache, "another", 100, 200, source)
    assert source.fetched[-1] == (100, 200)


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = DiskCache.at(tmp_path, 10_000)
    for number in range(9):
        get(cache, "a", 1000 * number, 1000 * number + 1000)
        time.sleep(0.01)
    used = Source()
    get(cache, "a", 0, 1000, used)  # the oldest, just used
    time.sleep(0.01)
    assert used.fetched == []
    for number in range(20, 23):
        get(cache, "a", 1000 * number, 1000 * number + 1000)
        time.sleep(0.01)
        assert size_on_disk(tmp_path) <= 10_000
    again = Source()
    for number in (0, 20, 21, 22, 8, 7):
        get(cache, "a", 1000 * number, 1000 * number + 1000, again)
    assert again.fetched == []
    get(cache, "a", 1000, 2000, again)
    assert again.fetched == [(1000, 2000)]


USE = """
import random, sys, threading
from penstock.storage.disk_cache import DiskCache
from penstock.storage.meter import Meter
folder, limit, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
cache = DiskCache.at(folder, limit)
def work(number):
    draw = random.Random(1000 * seed + number)
    for _ in range(40):
        start = draw.randrange(100) * 1000
        length = draw.randrange(1, 60_000)
        data = cache.get(
            ("shared",), start, start + length, lambda a, b: memoryview(bytes(b - a)), Meter()
        )
        assert bytes(data) == bytes(length)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"""


def test_processes_stay_within_the_limit_together(tmp_path: Path) -> None:
    limit = 400_000
    most = 0
    command = ["-c", USE, tmp_path, limit]
    with WarmProcess(*command, 0) as first, WarmProcess(*command, 1) as second:
        while first.poll() is None or second.poll() is None:
            most = max(most, size_meanwhile(tmp_path))
            time.sleep(0.002)
        for done in (first.finish(), second.finish()):
            assert (done.stdout, done.stderr) == ("done\n", "")
    left = size_on_disk(tmp_path)
    assert most <= limit
    assert limit / 5 < left <= limit
    assert not list((tmp_path / "new").iterdir())


def test_threads_may_ask_for_the_same(tmp_path: Path) -> None:
    cache = DiskCache.at(tmp_path, 1 << 20)
    together = threading.Barrier(8)

    def ask(number: int) -> bytes:
        together.wait(60)
        return get(cache, "a", 10 * number, 10_000)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert found == [SOURCE[10 * number : 10_000] for number in range(8)]


DIE = """
import os, signal, sys
from penstock.storage import disk_cache
from penstock.storage.meter import Meter
folder, limit, where = sys.argv[1], int(sys.argv[2]), sys.argv[3]
cache = disk_cache.DiskCache.at(folder, limit)
source = bytes(range(256)) * 4000
fetch = lambda a, b: memoryview(source)[a:b]
cache.get(("a",), 0, 1000, fetch, Meter())
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "before":
    disk_cache.os.replace = die
else:
    class Half:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *_): pass
        def write(self, data):
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            die()
    def open_half(path, mode, **how):
        file = open(path, mode, **how)
        return Half(file) if isinstance(path, str) and mode in ("wb", "r+b") else file
    disk_cache.open = open_half
cache.get(("a",), 1000, 300_000, fetch, Meter())
"""


@pytest.mark.parametrize("where", ["before", "within"])
def test_a_writer_that_is_killed_leaves_it_usable(tmp_path: Path, where: str) -> None:
    limit = 500_000
    writer = run_warm("-c", DIE, tmp_path, limit, where)
    assert writer.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "new").iterdir()
    cache, source = DiskCache.at(tmp_path, limit), Source()
    data = cache.get(("a",), 0, 1000, source, Meter())
    assert bytes(data) == (bytes(range(256)) * 4)[:1000]  # what was whole is still there
    assert source.fetched == []
    for number in range(12):
        start = 60_000 * number
        assert get(cache, "b", start, start + 60_000) == SOURCE[start : start + 60_000]
        assert size_on_disk(tmp_path) <= limit
    os.utime(left, (time.time() - 7200,) * 2)
    for number in range(12):
        get(cache, "c", 60_000 * number, 60_000 * number + 60_000)
    assert not left.exists()  # given up for lost after an hour


FILL = """
import resource, signal, sys, logging
from penstock.storage.disk_cache import DiskCache
from penstock.storage.meter import Meter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # a disk with so much room
logging.disable()
cache = DiskCache.at(sys.argv[1], 1 << 30)
source = bytes(range(256)) * 4000
for start, stop in ((0, 400_000), (0, 40_000), (0, 400_000), (0, 40_000)):
    data = cache.get(("a",), start, stop, lambda a, b: memoryview(source)[a:b], Meter())
    assert bytes(data) == source[start:stop]
print("done")
"""


def test_a_disk_that_is_full_is_no_reason_to_fail(tmp_path: Path) -> None:
    done = run_warm("-c", FILL, tmp_path)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert [path.name.split("-")[:2] for path in segments_in(tmp_path)] == [["0", "40000"]]
    assert not list((tmp_path / "new").iterdir())


def test_a_count_that_was_lost_is_made_again(tmp_path: Path) -> None:
    cache = DiskCache.at(tmp_path, 10_000)
    for number in range(8):
        get(cache, "a", 1000 * number, 1000 * number + 1000)
    for content in (b"", b"garbage", b"-5"):
        (tmp_path / "used").write_bytes(content)
        for number in range(30):
            get(cache, "b", 1000 * number, 1000 * number + 1000)
            assert size_on_disk(tmp_path) <= 10_000


def test_files_of_others_in_its_folder_are_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / "my" / "work" / "thesis.tex", tmp_path / "ab" / "1-2-00000000"]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(5_000))
    cache = DiskCache.at(tmp_path, 4_000)
    for start in range(0, 20_000, 1_000):
        get(cache, "a", start, start + 1_000)
    assert [path.stat().st_size for path in others] == [5_000, 5_000]
    assert size_on_disk(tmp_path) - 10_000 <= 4_000
