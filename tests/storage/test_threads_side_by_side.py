"""Work that waits, done by several threads at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from numbered_rows import NAMES, Source, put_all, wait_until
from servers.faults import Answer, Request, SlowFirstByte
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import ReadError
from headrace.storage import side_by_side


def test_results_come_in_the_order_of_the_items() -> None:
    def late_if_early(item: int) -> int:
        time.sleep((20 - item) / 1000)
        return -item

    assert list(side_by_side(late_if_early, range(20), threads=4)) == [-item for item in range(20)]
    assert list(side_by_side(late_if_early, [], threads=4)) == []


@pytest.mark.timeout(60)
def test_so_many_work_at_a_time() -> None:
    together = threading.Barrier(3)
    at_work: list[int] = []
    most: list[int] = []

    def meet(item: int) -> None:
        at_work.append(item)
        most.append(len(at_work))
        together.wait()
        at_work.remove(item)

    list(side_by_side(meet, range(9), threads=3))
    assert max(most) == 3


@pytest.mark.timeout(60)
def test_nobody_waits_for_the_rest_when_one_has_failed() -> None:
    never, begun = threading.Event(), []

    def fail_or_wait(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise KeyError("the first")
        never.wait()

    try:
        with pytest.raises(KeyError, match="the first"):
            list(side_by_side(fail_or_wait, range(100), threads=2))
    finally:
        never.set()
    assert len(begun) <= 3


def is_of_rows(request: Request) -> bool:
    return request.range is not None and request.range.startswith("bytes=4-")


@pytest.mark.timeout(60)
def test_a_window_that_fails_waits_for_no_server_and_leaves_no_thread(
    s3_server: S3Server, proxy_to: Callable[..., FaultProxy]
) -> None:
    s3_server.make_bucket("beside")
    put_all(lambda name, body: s3_server.put("beside", name, body))
    source = Source("s3", proxy_to(s3_server.url), "beside")
    # With this seed the file that fails comes first: an error comes in its place.
    mixed = {"shuffle": True, "shuffle_seed": 1, "mix": len(NAMES), "split_rows": None}
    loader = source.loader(**mixed, timeout_s=3600.0, retries=0)
    silent = source.proxy.inject(SlowFirstByte(3600), path=NAMES[1], where=is_of_rows)
    source.proxy.inject(Answer(400), path=NAMES[0], where=is_of_rows)

    def wait_for_the_silent_one(request: Request) -> None:
        if NAMES[0] in request.path:
            wait_until(lambda: silent.hits)

    source.proxy.intercept = wait_for_the_silent_one
    with pytest.raises(ReadError, match=NAMES[0]):
        list(loader)
    wait_until(lambda: "headrace-side" not in {thread.name for thread in threading.enumerate()})
