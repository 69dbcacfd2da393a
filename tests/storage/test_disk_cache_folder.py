"""The folder of the cache: what is in it is right, whatever happens to it, and stays small."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments_held import segments_in, size_on_disk
from warm_interpreters import WarmProcess, run_warm

from headrace.storage import DiskCache, Meter
from headrace.storage import _disk_cache as disk_cache

SOURCE = np.random.default_rng(0).bytes(1 << 20)


class Source:
    """Bytes of an object, and how often they were asked for."""

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> memoryview:
        self.fetched.append((start, stop))
        return memoryview(SOURCE)[start:stop]


def size_meanwhile(folder: Path) -> int:
    """The same while others use the cache, who may not remove anything as long as it is counted."""
    if not (folder / "used.lock").exists():
        return 0
    with open(folder / "used.lock", "rb") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        return size_on_disk(folder)


def get(cache: DiskCache, key: str, start: int, stop: int, source: Source | None = None) -> bytes:
    return bytes(cache.get((key,), start, stop, source or Source(), Meter()))


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


def read(cache: DiskCache, numbers: Iterable[int]) -> int:
    """Read segments of 1,000 bytes by their numbers; return how many were in the cache."""
    source = Source()
    for number in numbers:
        get(cache, "a", 1000 * number, 1000 * number + 1000, source)
    return len(list(numbers)) - len(source.fetched)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_epochs_hit_as_much_as_the_cache_holds(
    tmp_path: Path, share: float, shuffled: bool
) -> None:
    rng = np.random.default_rng(0)
    for run in range(2):
        cache = DiskCache.at(tmp_path, int(share * 100_000))
        hits = []
        for _ in range(3):
            order = rng.permutation(100) if shuffled else np.arange(100)
            hits.append(read(cache, order.tolist()))
            assert size_on_disk(tmp_path) <= share * 100_000
        assert hits[1:] == [100 * share] * 2
        assert shuffled or hits[0] == (100 * share if run else 0)


def test_a_run_evicts_the_data_of_earlier_ones_alone(tmp_path: Path) -> None:
    """Those that were not used for longest go first."""
    before = DiskCache.at(tmp_path, 10_000)
    read(before, range(10))
    run = DiskCache.at(tmp_path, 10_000)
    worker = pickle.loads(pickle.dumps(run))
    assert read(worker, range(5)) == 5  # used by one of its processes
    assert read(run, range(20, 24)) == 0
    assert read(run, [*range(20, 24), *range(5), 9]) == 10
    assert read(run, range(30, 40)) == 0  # in place of the last one of the earlier run
    assert read(run, [*range(20, 24), *range(5)]) == 9
    assert size_on_disk(tmp_path) <= 10_000


def test_a_full_cache_is_searched_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache.at(tmp_path, 10_000)
    read(cache, range(10))
    assert read(cache, [50, 50]) == 0
    for path in segments_in(tmp_path):
        path.unlink()
    assert read(cache, [50, 50]) == 0
    later = time.monotonic() + 3600
    monkeypatch.setattr(disk_cache.time, "monotonic", lambda: later)
    assert read(cache, [50, 50]) == 1


USE = """
import random, sys, threading
from headrace.storage._disk_cache import DiskCache
from headrace.storage import Meter
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
from headrace.storage import _disk_cache as disk_cache
from headrace.storage import Meter
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
        def __getattr__(self, name): return getattr(self.file, name)
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
    cache = DiskCache.at(tmp_path, limit)
    for number in range(12):
        get(cache, "c", 60_000 * number, 60_000 * number + 60_000)
    assert not left.exists()  # given up for lost after an hour


FILL = """
import resource, signal, sys, logging
from headrace.storage._disk_cache import DiskCache
from headrace.storage import Meter
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


FILL_A_DISK = """
import logging, os, sys, time
from headrace.storage import DiskCache, Meter
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
cache, source, now = DiskCache.at(sys.argv[1], 1 << 30), bytes(range(256)) * 4000, time.monotonic
in_the_way = os.path.join(sys.argv[1], "in the way")
def read(*numbers):
    for start in (10_000 * number for number in numbers):
        data = cache.get(("a",), start, start + 10_000, lambda a, b: memoryview(source)[a:b], meter)
        assert bytes(data) == source[start : start + 10_000]
    return meter.drain().get("cached_bytes", 0) // 10_000
meter = Meter()
open(in_the_way, "wb").write(bytes(150_000))
assert read(*range(50)) == 0
held = read(*range(50))
assert 0 < held < 20, held
os.remove(in_the_way)
assert read(*range(30, 35)) == 0
assert read(*range(30, 35)) == 0  # left alone: it was full a moment ago
time.monotonic = lambda: now() + 61
assert read(*range(30, 35)) == 0
assert read(*range(30, 35)) == 5
print("done")
"""
ON_A_SMALL_DISK = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1"'


def test_a_full_disk_is_left_alone_for_a_while_and_warned_of_once(tmp_path: Path) -> None:
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*apart, "mount -t tmpfs x /mnt"]).returncode
    ):
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(
        [*apart, ON_A_SMALL_DISK, "sh", tmp_path, sys.executable, FILL_A_DISK],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    warning, last = done.stdout.splitlines()
    assert last == "done"
    assert warning.startswith(f"WARNING {tmp_path}: ")
    assert "No space left on device" in warning


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


def test_what_is_put_in_its_place_while_it_is_cleaned_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment is moved as soon as the first folder has been looked through."""
    written, looked, moved = threading.Event(), threading.Event(), threading.Event()
    listdir, replace = os.listdir, os.replace

    def wait_and_move(*paths: str) -> None:
        written.set()
        assert looked.wait(60)
        replace(*paths)
        moved.set()

    def look_and_let_move(folder: str) -> list[str]:
        found = listdir(folder)
        if threading.current_thread() is threading.main_thread() and written.is_set():
            looked.set()
            assert moved.wait(60)
        return found

    cache = DiskCache.at(tmp_path, 10_000)
    get(cache, "a", 0, 4_000)
    monkeypatch.setattr(disk_cache.os, "replace", wait_and_move)
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(get, cache, "a", 4_000, 8_000)
        assert written.wait(60)
        monkeypatch.setattr(disk_cache.os, "replace", replace)
        monkeypatch.setattr(disk_cache.os, "listdir", look_and_let_move)
        cache._keep(str(tmp_path / "ab" / ("0" * 64)), 0, memoryview(SOURCE)[:4_000])
        assert writer.result() == SOURCE[4_000:8_000]
    assert moved.is_set()
    assert size_on_disk(tmp_path) <= 10_000


def test_many_segments_of_an_object_are_not_listed_for_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random reads of a large file make tens of thousands of them."""
    listings = []
    list_segments = disk_cache._list_segments

    def listed(folder: str) -> Any:
        listings.append(folder)
        return list_segments(folder)

    monkeypatch.setattr(disk_cache, "_LISTED_FOR_S", 1000.0)
    monkeypatch.setattr(disk_cache, "_list_segments", listed)
    cache, meter, source = DiskCache.at(tmp_path, 1 << 20), Meter(), Source()
    for _ in range(2):
        for start in range(0, 2000, 20):
            got = cache.get(("an object",), start, start + 10, source, meter)
            assert got == SOURCE[start : start + 10]
    assert len(listings) == 1
    assert len(source.fetched) == 100
    assert meter.drain() == {"cached_bytes": 1000}
