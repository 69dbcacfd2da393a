"""Listing buckets: complete, sorted, in few requests and little memory, however many objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from served_folders import Served, numbers, parquet, put, rows_of, served
from servers.fast_s3 import FolderBucket
from servers.faults import INTERNAL_ERROR, SLOW_DOWN, CutShort, Request
from servers.listening import Listener
from servers.proxy import FaultProxy

from headrace import StructuredDataset
from headrace.errors import NothingFoundError, ReadError
from headrace.storage import Access, Meter, RetryPolicy, find_files

MANY = 100_000
PLANNED = 2000


@dataclass(frozen=True)
class Bucket:
    """A bucket with many objects, and what they are called."""

    served: Served
    names: list[str]

    def listed(self, place: str = "", **access: Any) -> list[str]:
        """Paths in the order in which they were found, without the bucket."""
        options = Access(storage_options=self.served.options, **access)
        found = find_files(f"{self.served.bucket}/{place}", options).files
        return [file.path.removeprefix(f"{self.served.bucket}/") for file in found]


class Names(FolderBucket):
    """A bucket of empty objects that are nowhere but in its listing."""

    def __init__(self, bucket: str, names: list[str], like: Path) -> None:
        super().__init__(like.parent, bucket=bucket)
        self._stats = dict.fromkeys(names, os.stat(like))
        self._keys = sorted(names)


@contextmanager
def many(folder: Path, layout: str) -> Iterator[Bucket]:
    names = list(map(LAYOUTS[layout], range(MANY)))
    listener = Listener(Names(folder.name, names, put(folder, "empty", b"")).serve)
    listener.open()
    with FaultProxy(listener.url) as proxy:
        yield Bucket(Served(folder, proxy), sorted(names))
    listener.close(drop=True)


LAYOUTS: dict[str, Callable[[int], str]] = {
    "flat": lambda i: f"flat/part-{i:06}.parquet",
    "directories": lambda i: f"dirs/{i % 1000:03}/{i // 1000:03}.parquet",
    "hive": lambda i: (
        f"hive/year={i % 4}/month={i // 4 % 12}/day={i // 48 % 25}/{i // 1200}.parquet"
    ),
}


LISTINGS = {
    "flat": 100,
    "dirs": 5 + 1 + 1000,  # enough to see that there are many; the directories; each of them
    "hive": 5 + 1 + 4 * (5 + 1) + 48 * 3,  # and those of a month together
}


@pytest.fixture(scope="module", params=LAYOUTS)
def large(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    place = tmp_path_factory.mktemp("listing") / f"listing-{request.param}"
    with many(place, request.param) as bucket:
        yield bucket


def test_100000_objects(large: Bucket) -> None:
    large.served.taken()
    root = large.names[0].partition("/")[0]
    assert large.listed(f"{root}/") == large.names
    asked = large.served.taken()
    assert len(asked.heads) <= 1
    assert asked.reads == []
    assert len(asked.listings) == LISTINGS[root]
    assert max(request.body_bytes for request in asked.listings) < 1 << 20  # by 1,000


@pytest.mark.parametrize("large", ["directories"], indirect=True)
def test_100000_objects_though_pages_fail(large: Bucket) -> None:
    """A page that fails is asked for again, and not all that came before it."""
    root = large.names[0].partition("/")[0]
    meter = Meter()
    rule = large.served.proxy.inject(
        SLOW_DOWN, where=lambda r: "list-type" in r.query, probability=0.05, seed=3
    )
    large.served.taken()
    try:
        assert large.listed(f"{root}/", meter=meter) == large.names
    finally:
        large.served.proxy.remove(rule)
    failed = rule.hits
    assert failed >= 3
    asked = large.served.taken()
    assert len(asked.listings) <= LISTINGS[root] + 6 * failed
    counts = meter.drain()
    assert counts["retries"] == failed
    assert counts["requests"] >= len(asked.listings)


LIST_AND_MEASURE = """
import gc, json, sys, tracemalloc
from headrace.storage import Access, find_files

location, options = json.loads(sys.argv[1])
tracemalloc.start()
listing = find_files(location, Access(storage_options=options))
_, most = tracemalloc.get_traced_memory()
gc.collect()  # cycles that wait for the collector are not held
held, _ = tracemalloc.get_traced_memory()
print(json.dumps([len(listing.files), held, most]))
"""


def test_memory_of_100000_objects(tmp_path: Path) -> None:
    with many(tmp_path / "listing-memory", "hive") as large:
        asked = json.dumps([f"{large.served.bucket}/hive/", large.served.options])
        # In a process of its own: the server runs in this one, and its memory would count.
        done = subprocess.run(
            [sys.executable, "-c", LIST_AND_MEASURE, asked],
            check=True,
            capture_output=True,
            text=True,
        )
    files, held, most = json.loads(done.stdout)
    assert files == MANY
    assert held < 600 * MANY
    assert most < 1500 * MANY


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("small") / "small-bucket"
    for part in range(PLANNED):
        name = f"parts/{part % 10}/{part:04}.parquet"
        if part < 10:
            data = parquet(numbers(5, 0))
        put(folder, name, data)
    for name in (
        "mixed/a.parquet",
        "mixed/_SUCCESS",
        "mixed/_metadata",
        "mixed/.hidden.parquet",
        "mixed/_temporary/0/b.parquet",
        "mixed/.spark/c.parquet",
        "mixed/_k=1/d.parquet",
        "mixed/sub/e.parquet",
        "mixed-not/f.parquet",
        "mixed.parquet",
    ):
        put(folder, name, data)
    with served(folder) as bucket:
        yield bucket


def found(bucket: Served, place: str, **access: Any) -> list[str]:
    bucket.taken()
    return Bucket(bucket, []).listed(place, **access)


def test_2000_files_are_planned(small: Served, tmp_path: Path) -> None:
    """A footer each, and not one of them again once there is a manifest."""
    small.taken()
    loader, dataset = small.loader("parts/", shuffle=True)
    asked = small.taken()
    assert dataset.num_rows == 5 * PLANNED
    assert [file.path for file in dataset.files] == sorted(file.path for file in dataset.files)
    assert len(asked.reads) == PLANNED
    of_tables = [one for one in asked.listings if "parts" not in one.query]
    assert len(of_tables) == 3  # the bucket may be a table of three formats
    assert len(asked.listings) - len(of_tables) == 2
    dataset.save_manifest(tmp_path / "found")
    given, other = small.loader("parts/", shuffle=True, manifest=tmp_path / "found")
    assert small.taken().log == []
    assert [file.path for file in other.files] == [file.path for file in dataset.files]
    given.load_state_dict(loader.state_dict())
    whole = (small.folder / "mixed.parquet").stat().st_size
    assert (tmp_path / "found").stat().st_size < PLANNED * whole


def test_hidden_files_are_left_out(small: Served) -> None:
    seen = ["mixed/_k=1/d.parquet", "mixed/a.parquet", "mixed/sub/e.parquet"]
    assert found(small, "mixed/") == seen
    assert found(small, "mixed") == seen  # and nothing that merely begins alike
    assert found(small, "mixed/**/*.parquet") == seen
    assert found(small, "mixed/_SUCCESS") == ["mixed/_SUCCESS"]
    assert found(small, "mixed/_temporary/*/*") == ["mixed/_temporary/0/b.parquet"]
    assert found(small, "mixed.parquet") == ["mixed.parquet"]
    loader, _ = small.loader("mixed/", partitioning=None)
    assert len(rows_of(loader)) == 15


def test_a_glob_asks_for_no_object_by_itself(small: Served) -> None:
    names = found(small, "parts/[0-4]/*.parquet")
    assert names == sorted(f"parts/{i % 10}/{i:04}.parquet" for i in range(PLANNED) if i % 10 < 5)
    asked = small.taken()
    assert len(asked.log) <= 6
    directories = found(small, "parts/[67]")
    assert directories == sorted(
        f"parts/{i % 10}/{i:04}.parquet" for i in range(PLANNED) if i % 10 in (6, 7)
    )
    assert len(small.taken().log) <= 6


def test_many_named_files_are_asked_for_side_by_side(small: Served) -> None:
    """Not one after the other: none of the first eight is answered before all of them have come."""
    places = [f"{small.bucket}/parts/{i % 10}/{i:04}.parquet" for i in range(200)]
    together = threading.Barrier(8)
    first_ones = iter(range(together.parties))

    def hold(request: Request) -> None:
        if request.method == "HEAD" and next(first_ones, None) is not None:
            together.wait(60)

    small.taken()
    small.proxy.intercept = hold
    try:
        dataset = StructuredDataset(places, storage_options=small.options)
    finally:
        small.proxy.intercept = None
    assert len(dataset.files) == 200
    heads = small.taken().heads
    assert len([request for request in heads if request.path.endswith(".parquet")]) == 200
    assert len(heads) <= 200 + 48  # whether they are parts of a table is asked of a few folders


@pytest.mark.parametrize(
    "fault", [SLOW_DOWN, INTERNAL_ERROR, CutShort(after_bytes=300)], ids=["503", "500", "cut"]
)
def test_a_listing_that_fails_is_tried_again(small: Served, fault: Any) -> None:
    rule = small.proxy.inject(fault, where=lambda r: "list-type" in r.query, first=2)
    try:
        names = found(small, "parts/")
    finally:
        small.proxy.remove(rule)
    assert len(names) == PLANNED
    assert rule.hits == 2
    asked = small.taken()
    assert 4 <= len(asked.listings) <= 6


def test_a_page_that_fails_in_the_middle_loses_nothing(small: Served) -> None:
    rule = small.proxy.inject(SLOW_DOWN, where=lambda r: "continuation-token" in r.query, first=1)
    try:
        names = found(small, "parts/")
    finally:
        small.proxy.remove(rule)
    assert names == sorted(f"parts/{i % 10}/{i:04}.parquet" for i in range(PLANNED))
    assert rule.hits == 1


def test_a_listing_that_keeps_failing_is_an_error(small: Served) -> None:
    rule = small.proxy.inject(SLOW_DOWN, where=lambda r: "list-type" in r.query)
    try:
        with pytest.raises(ReadError, match=r"(?s)listing s3://small-bucket/parts.* \(3 attempts"):
            found(small, "parts/", retry=RetryPolicy(retries=2))
    finally:
        small.proxy.remove(rule)


def test_what_is_not_there(small: Served) -> None:
    for place in ("nothing/", "nothing", "par", "parts/*.csv"):
        with pytest.raises(NothingFoundError, match="s3://small-bucket/"):
            found(small, place)
