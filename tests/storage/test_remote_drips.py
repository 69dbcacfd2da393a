"""Answers that come too slowly are given up in time; those of a slow connection are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from numbered_rows import BODIES, ROWS, Source, ids_of, make_loader, parquet_bytes
from servers.faults import Drip, Request
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import ReadError, StatefulLoader, StructuredDataset
from headrace.storage import _engine

BUCKET = "drips"
TIMEOUT_S = 0.3
FOR_EVER = Drip(0.1, 200)
"""never silent for as long as TIMEOUT_S; a row group would take more than half an hour"""
SOON: dict[str, Any] = {"timeout_s": TIMEOUT_S, "max_elapsed_s": 1.0, "retries": 1000}
LATE_S = 100.0
"""when something has not ended in time, on a machine however slow"""
FEW_ROWS = 10


@pytest.fixture(scope="module")
def s3_url(s3_server: S3Server) -> str:
    s3_server.make_bucket(BUCKET)
    s3_server.put(BUCKET, "a.parquet", BODIES[0])
    return s3_server.url


@pytest.fixture
def source(s3_url: str, proxy_to: Callable[..., FaultProxy]) -> Source:
    """One file behind a proxy without faults. Web servers have the same client, and its limits."""
    return Source("s3", proxy_to(s3_url), BUCKET)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., StatefulLoader]:
    """Make a loader over what was found before, at leisure: it asks for rows only."""

    def open_(path: str, retrying: dict[str, Any], **access: Any) -> StatefulLoader:
        StructuredDataset(path, **access).save_manifest(tmp_path / "found")
        return make_loader(path, manifest=tmp_path / "found", **access, **retrying)

    return open_


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up slow answers eight times as soon."""
    monkeypatch.setattr(_engine, "_LEAST_BYTES_PER_S", 64 << 10)


def error_in_time(act: Callable[[], Any]) -> str:
    """Return the message of the ReadError that ends an act, which must not take for ever."""
    began = time.monotonic()
    with pytest.raises(ReadError, match=r"time-out.* attempts? in \d") as caught:
        act()
    assert time.monotonic() - began < LATE_S
    return str(caught.value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("after_bytes", [200, None], ids=["body", "head"])
def test_an_answer_that_drips_is_an_error(
    source: Source, opened: Callable[..., StatefulLoader], after_bytes: int | None
) -> None:
    loader = opened(source.folder, SOON, storage_options=source.options)
    source.proxy.inject(Drip(0.1, after_bytes), ranged=True)
    assert f"{source.folder}/a.parquet, bytes " in error_in_time(lambda: ids_of(loader))


@pytest.mark.usefixtures("impatient")
def test_a_drip_that_passes_costs_a_retry_and_no_row(
    source: Source, opened: Callable[..., StatefulLoader]
) -> None:
    retrying = {"timeout_s": TIMEOUT_S, "retries": 1000}
    loader = opened(source.folder, retrying, storage_options=source.options)
    rule = source.proxy.inject(FOR_EVER, ranged=True, where=is_second_group, first=2)
    assert ids_of(loader) == list(range(ROWS))
    assert rule.hits == 2
    assert loader.stats()["retries"] >= 1


def test_a_listing_that_drips_is_an_error(source: Source) -> None:
    source.proxy.inject(Drip(0.1), method="GET", ranged=False)
    error_in_time(lambda: source.loader(**SOON))


def test_a_slow_connection_is_no_fault(
    source: Source, opened: Callable[..., StatefulLoader]
) -> None:
    """A row group takes many times as long as the time-out, at 20 kB a second."""
    retrying = {"timeout_s": TIMEOUT_S, "retries": 1000, "max_elapsed_s": 30.0}
    loader = opened(source.folder, retrying, storage_options=source.options)
    rule = source.proxy.inject(Drip(0.05, at_once=1000), ranged=True, where=is_second_group)
    assert ids_of(loader) == list(range(ROWS))
    assert rule.hits >= 1


def is_second_group(request: Request) -> bool:
    return 15_000 < int((request.range or "").partition("=")[2].partition("-")[0]) < 30_000


@pytest.mark.usefixtures("impatient")
def test_an_answer_of_the_hub_that_drips(
    hub_server: HubServer,
    proxy_to: Callable[..., FaultProxy],
    opened: Callable[..., StatefulLoader],
) -> None:
    hub_server.make_repo("owner/name")
    hub_server.put("owner/name", "a.parquet", BODIES[0], lfs=False)
    proxy = proxy_to(hub_server.url)
    access = {"endpoint": proxy.url, "token": False}
    loader = opened("hf://datasets/owner/name/a.parquet", SOON, storage_options=access)
    proxy.inject(FOR_EVER, ranged=True)
    error_in_time(lambda: ids_of(loader))


# --- filesystems that are given


class Dripping(MemoryFileSystem):
    """Lets some reads wait until the test is over."""

    cachable = False
    protocol = "dripping"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self) -> None:
        super().__init__()
        self.pipe("/d/a.parquet", parquet_bytes(0, FEW_ROWS))
        self.waiting_reads = 0
        self.over = threading.Event()

    def _wait(self) -> None:
        if self.waiting_reads > 0:
            self.waiting_reads -= 1
            self.over.wait()

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        self._wait()
        return super().cat_file(path, start=start, end=end)

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if "r" in mode:
            self._wait()
        return super()._open(path, mode, **more)


@pytest.fixture
def dripping() -> Iterator[Dripping]:
    files = Dripping()
    yield files
    files.over.set()
    Dripping.store.clear()


def as_arrow(files: Any) -> pafs.FileSystem:
    return pafs.PyFileSystem(pafs.FSSpecHandler(files))


def as_it_is(files: Any) -> Any:
    return files


@pytest.mark.parametrize("given", [as_it_is, as_arrow], ids=["fsspec", "pyarrow"])
def test_a_given_filesystem_that_does_not_answer(
    dripping: Dripping, opened: Callable[..., StatefulLoader], given: Any
) -> None:
    loader = opened("/d", SOON, filesystem=given(dripping))
    dripping.waiting_reads = 1000
    assert "a.parquet, bytes " in error_in_time(lambda: ids_of(loader))


@pytest.mark.parametrize("given", [as_it_is, as_arrow], ids=["fsspec", "pyarrow"])
def test_a_given_filesystem_that_answers_the_next_time(
    dripping: Dripping, opened: Callable[..., StatefulLoader], given: Any
) -> None:
    retrying = {"timeout_s": TIMEOUT_S, "retries": 1000}
    loader = opened("/d", retrying, filesystem=given(dripping))
    dripping.waiting_reads = 1
    assert ids_of(loader) == list(range(FEW_ROWS))
    assert loader.stats()["retries"] >= 1


def test_a_given_filesystem_that_reads_by_coroutines(
    http_server: HttpServer,
    proxy_to: Callable[..., FaultProxy],
    opened: Callable[..., StatefulLoader],
) -> None:
    http_server.put("few.parquet", parquet_bytes(0, FEW_ROWS))
    proxy = proxy_to(http_server.url)
    files = fsspec.filesystem("http", skip_instance_cache=True)
    loader = opened(f"{proxy.url}/few.parquet", SOON, filesystem=files)
    proxy.inject(FOR_EVER, ranged=True)
    error_in_time(lambda: ids_of(loader))
