"""Processes that end in mid-epoch, and those that are started to read."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from numbered_rows import ALL_IDS, NAMES, Source, put_all, wait_until, with_parent
from servers.faults import SLOW_DOWN, Request, Stall
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from warm_interpreters import ColdProcess, WarmProcess

from headrace import OptionError

BUCKET = "leaving"
SCRIPT = Path(__file__).with_name("leaving_script.py")
WAYS = {"hold": 0, "break": 0, "exit": 3, "raise": 1, "interrupt": -2, "thread": 0}
"""how a process leaves an epoch, and the status that it ends with"""


@pytest.fixture
def source(s3_server: S3Server, proxy_to: Callable[..., FaultProxy]) -> Source:
    s3_server.make_bucket(BUCKET)
    put_all(lambda name, body: s3_server.put(BUCKET, name, body))
    return Source("s3", proxy_to(s3_server.url, latency_s=0.05), BUCKET)


@pytest.fixture
def web_source(http_server: HttpServer, proxy_to: Callable[..., FaultProxy]) -> Source:
    put_all(lambda name, body: http_server.put(f"{BUCKET}/{name}", body))
    return Source("http", proxy_to(http_server.url), BUCKET)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    way: str
    status: int
    said: str
    complained: str
    seconds: float

    @property
    def well(self) -> bool:
        expected = {"raise": "EnoughError: of this", "interrupt": "KeyboardInterrupt"}
        lines = self.complained.splitlines()
        if self.way in expected:
            quiet = lines[0].startswith("Traceback") and lines[-1].endswith(expected[self.way])
            quiet = quiet and self.complained.count("Traceback") == 1
        elif self.way == "thread":  # it may be told that what it waits for does not come
            quiet = not lines or lines[0].startswith("Exception in thread")
        else:
            quiet = not lines
        quiet = quiet and "Fatal" not in self.complained
        return quiet and self.status == WAYS[self.way] and self.said == "reading\n"


def run(
    source: Source,
    way: str,
    until: Callable[[], bool] | None = None,
    *,
    cold: bool = False,
    **options: Any,
) -> Ended:
    """Read in an interpreter of its own, and leave once it is so far that ``until`` holds.

    Seconds are those from then on; one that hangs is ended and fails the test.
    """
    settings = {
        "storage_options": source.options,
        "batch_size": 25,
        "split_rows": 150,
        "output_format": "numpy",
        **options,
    }
    command = [SCRIPT, way, source.folder, json.dumps(settings)]
    with ColdProcess(*command) if cold else WarmProcess(*command) as process:
        if until is not None:
            wait_until(until)
        began = time.monotonic()
        ended = process.finish("leave now\n")
    return Ended(way, ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)


def is_of_an_epoch(request: Request) -> bool:
    """Not for a footer: for the first row group of a file."""
    return request.range is not None and request.range.startswith("bytes=4-")


def run_all(source: Source, ways: list[str], **options: Any) -> list[Ended]:
    with ThreadPoolExecutor(3) as side_by_side:
        return list(side_by_side.map(lambda way: run(source, way, **options), ways))


def test_twelve_interpreters_leave_in_mid_epoch(source: Source) -> None:
    ended = run_all(source, [*WAYS] * 2, num_workers=0)
    assert len(ended) == 12
    assert [one for one in ended if not one.well] == []


def test_interpreters_with_workers_leave_in_mid_epoch(source: Source) -> None:
    ended = run_all(source, [*WAYS], num_workers=2)
    assert [one for one in ended if not one.well] == []


def test_an_interpreter_of_its_own_leaves_in_mid_epoch(source: Source) -> None:
    ended = run_all(source, ["hold"], cold=True, num_workers=0)
    assert [one for one in ended if not one.well] == []


def test_leaving_while_a_server_is_silent(source: Source) -> None:
    """Nobody waits for what a server may never send."""
    rule = source.proxy.inject(Stall(100), path=NAMES[1], where=is_of_an_epoch)
    how = {"num_workers": 0, "timeout_s": 3600.0}
    mixed = {**how, "shuffle": True, "shuffle_seed": 6, "mix": 2}
    ways = [("hold", how), ("exit", how), ("hold", mixed)]
    with ThreadPoolExecutor(3) as side_by_side:
        begun = [
            side_by_side.submit(run, source, way, until=lambda: rule.hits >= 3, **options)
            for way, options in ways
        ]
        ended = [one.result() for one in begun]
    assert [one for one in ended if not one.well] == []
    assert max(one.seconds for one in ended) < 100


def test_leaving_while_requests_are_tried_again(source: Source) -> None:
    rule = source.proxy.inject(SLOW_DOWN, path=NAMES[1], where=is_of_an_epoch)
    how = {"num_workers": 0, "retries": 1000, "max_elapsed_s": 3600.0}
    ended = run_all(source, ["hold", "exit"], until=lambda: rule.hits >= 2, **how)
    assert [one for one in ended if not one.well] == []
    assert max(one.seconds for one in ended) < 100


def test_a_thread_that_outlives_the_main_one_reads_on(source: Source) -> None:
    """Python waits for it, and so it is served as before: what fails is tried again."""
    source.proxy.inject(SLOW_DOWN, where=is_of_an_epoch, every=2)
    ended = run(source, "outlive", num_workers=0)
    assert (ended.status, ended.complained) == (0, "")
    assert ended.said == f"reading\n{len(ALL_IDS)} rows\n"


# --- processes that read


def test_workers_are_not_forked_by_default(source: Source) -> None:
    loader = source.loader(num_workers=2, collate_fn=with_parent)
    parents = {parent for parent, _ in loader}
    assert os.getpid() not in parents
    assert len(parents) == 1


@pytest.mark.parametrize(
    "how", ["fork", multiprocessing.get_context("fork")], ids=["name", "context"]
)
def test_forked_workers_are_refused(source: Source, how: Any) -> None:
    """They would wait for ever for threads that they have not got."""
    with pytest.raises(OptionError, match=r"multiprocessing_context='fork'.*'forkserver'.*'spawn'"):
        source.loader(num_workers=2, multiprocessing_context=how)


@pytest.mark.parametrize("kind", ["s3", "http"])
def test_a_fork_of_a_process_that_has_read_is_told_so(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """As by a DataLoader of torch, which forks without asking."""
    source = request.getfixturevalue("source" if kind == "s3" else "web_source")
    ended = run(source, "fork", batch_size=50)
    assert ended.status == 0, ended.complained
    assert "forked from one that has used an object store" in ended.said
    assert 'multiprocessing_context="forkserver"' in ended.said
