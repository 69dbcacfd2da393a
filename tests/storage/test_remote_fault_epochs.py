"""Whole epochs through faults at random, and through servers that go away and come back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numbered_rows import ALL_IDS, Source, ids_of, make_loader, parquet_bytes, put_all, wait_until
from servers.fast_s3 import FastS3Process
from servers.faults import (
    INTERNAL_ERROR,
    SLOW_DOWN,
    TOO_MANY_REQUESTS,
    CutShort,
    Fault,
    Reset,
    Rule,
    SlowFirstByte,
    Stall,
    WrongLength,
    slow_down,
)
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import StatefulLoader

BUCKET = "fault-epochs"
MIXED = (
    INTERNAL_ERROR,
    SLOW_DOWN,
    slow_down(retry_after_s=0.1),
    TOO_MANY_REQUESTS,
    Reset(),
    Reset(500),
    CutShort(300),
)
SILENT = (Stall(200), WrongLength(-3))
"""what a client finds out by its patience, or may find out with the request after"""


@pytest.fixture(params=["s3", "http"])
def source(
    request: pytest.FixtureRequest, http_server: HttpServer, proxy_to: Callable[..., FaultProxy]
) -> Source:
    if request.param == "http":
        put_all(lambda name, body: http_server.put(f"{BUCKET}/{name}", body))
        return Source("http", proxy_to(http_server.url), BUCKET)
    s3_server: S3Server = request.getfixturevalue("s3_server")
    s3_server.make_bucket(BUCKET)
    put_all(lambda name, body: s3_server.put(BUCKET, name, body))
    return Source("s3", proxy_to(s3_server.url), BUCKET)


EACH_ONCE = pytest.mark.parametrize(
    ("source", "workers"), [("s3", 0), ("http", 2)], indirect=["source"]
)
"""Kinds of stores and numbers of workers, each once: obstore reads both kinds."""
ON_THE_WEB = pytest.mark.parametrize("source", ["http"], indirect=True)


def inject_mixed(
    proxy: FaultProxy, share: float, seed: int, faults: tuple[Fault, ...] = MIXED
) -> list[Rule]:
    """Faults of many kinds, which strike this share of the range requests together."""
    each = share / len(faults)
    return [
        proxy.inject(fault, ranged=True, probability=each, seed=100 * seed + number)
        for number, fault in enumerate(faults)
    ]


@EACH_ONCE
def test_five_percent_of_requests_fail_at_random(source: Source, workers: int) -> None:
    loader = source.loader(
        num_workers=workers, max_request_bytes=2000, batch_size=32, split_rows=200
    )
    undisturbed = ids_of(loader)
    assert sorted(undisturbed) == ALL_IDS
    assert loader.stats()["retries"] == 0
    source.proxy.log.clear()
    rules = inject_mixed(source.proxy, 0.05, seed=workers)
    assert ids_of(loader) == undisturbed
    struck = sum(rule.hits for rule in rules)
    requests = len(source.proxy.log)
    assert 0.02 < struck / requests < 0.1
    assert sum(rule.hits > 0 for rule in rules) >= 4
    assert loader.stats()["retries"] == struck


@pytest.mark.parametrize("source", ["s3"], indirect=True)
def test_faults_at_random_while_files_are_found_and_read(source: Source) -> None:
    """A third of all requests, of listing and footers too."""
    rules = inject_mixed(source.proxy, 0.2, seed=7, faults=MIXED + SILENT)
    rules += [source.proxy.inject(SLOW_DOWN, probability=0.15, seed=8)]
    folder = f"{source.folder}/"  # or its index page is looked at by a GET whose body nobody reads
    loader = make_loader(folder, storage_options=source.options, retries=20, timeout_s=1.0)
    assert ids_of(loader) == ALL_IDS
    assert loader.stats()["retries"] >= sum(rule.hits for rule in rules) >= 4


# --- restarts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put_all(lambda name, body: (tmp_path / name).write_bytes(body))
    return tmp_path


def patient_loader(source: Source, workers: int) -> StatefulLoader:
    """Reads little ahead, so that an epoch takes a while."""
    return source.loader(
        num_workers=workers, prefetch_bytes="48KiB", retries=12, batch_size=25, prefetch_factor=1
    )


@pytest.mark.parametrize("workers", [2])
def test_a_server_restarts_in_mid_epoch(
    folder: Path, proxy_to: Callable[..., FaultProxy], workers: int
) -> None:
    with contextlib.ExitStack() as running, ThreadPoolExecutor(1) as aside:
        first = running.enter_context(FastS3Process(folder, bucket=BUCKET))
        proxy = proxy_to(first.url, latency_s=0.02)
        loader = patient_loader(Source("s3", proxy, BUCKET), workers)
        undisturbed = ids_of(loader)
        proxy.log.clear()
        batches = iter(loader)
        found = ids_of([next(batches)])
        first.stop()
        stopped_at_s = time.monotonic()

        def start_again() -> None:
            wait_until(lambda: [r for r in proxy.requests(status=0) if r.at_s > stopped_at_s])
            second = running.enter_context(FastS3Process(folder, bucket=BUCKET))
            proxy.upstream = ("127.0.0.1", second.port)

        started = aside.submit(start_again)
        found += ids_of(batches)
        started.result()
    assert found == undisturbed
    lost = proxy.requests(status=0)
    # And perhaps one more, whose answer had begun.
    assert loader.stats()["retries"] >= len(lost) > 0


@EACH_ONCE
def test_the_way_to_a_server_is_cut_in_mid_epoch(source: Source, workers: int) -> None:
    source.proxy.latency_s = 0.02
    loader = patient_loader(source, workers)
    undisturbed = ids_of(loader)
    batches = iter(loader)
    found = ids_of([next(batches)])
    held = source.proxy.inject(SlowFirstByte(3600), ranged=True, first=1)

    def cut() -> None:
        wait_until(lambda: held.hits)
        source.proxy.refuse_for(0.5)

    with ThreadPoolExecutor(1) as aside:
        done = aside.submit(cut)
        found += ids_of(batches)
        done.result()
    assert found == undisturbed
    assert sorted(found) == ALL_IDS
    assert loader.stats()["retries"] > 0


@ON_THE_WEB
def test_a_state_taken_among_faults_goes_on(source: Source) -> None:
    loader = source.loader(timeout_s=1.0, retries=20)
    inject_mixed(source.proxy, 0.3, seed=3, faults=MIXED + SILENT)
    batches = iter(loader)
    found = ids_of([next(batches) for _ in range(7)])
    state: dict[str, Any] = loader.state_dict()
    del batches
    resumed = source.loader(timeout_s=1.0, retries=20)
    resumed.load_state_dict(state)
    assert found + ids_of(resumed) == ALL_IDS


def test_a_directory_of_many_pages_and_files_is_found_through_faults(
    http_server: HttpServer, proxy_to: Callable[..., FaultProxy]
) -> None:
    """Each request is tried again for itself: all of them together would never succeed."""
    for number in range(120):
        http_server.put(f"deep/{number % 30}/{number}.parquet", parquet_bytes(number, 1))
    proxy = proxy_to(http_server.url)
    rule = proxy.inject(INTERNAL_ERROR, probability=0.1, seed=5)
    loader = Source("http", proxy, "deep").loader()
    assert sorted(ids_of(loader)) == list(range(120))
    assert loader.stats()["retries"] == rule.hits > 15
