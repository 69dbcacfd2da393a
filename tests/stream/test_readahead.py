"""Threads make blocks ahead: in order, within the budget, and without getting stuck."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_ahead import (
    Ahead,
    Block,
    Spec,
    ahead,
    in_turn,
    jittered,
    lanes_of,
    make,
    readers,
    wait_until,
)

from headrace.stream import Job, ReadAhead

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("budget", [1, 35, 10_000])
def test_order_whatever_the_timing(threads: int, budget: int) -> None:
    specs = [
        (lane, number, 1 + (number * 7 + lane) % 5) for number in range(8) for lane in range(3)
    ]
    reading = ahead(specs, jittered, budget=budget, threads=threads)
    assert in_turn(reading, [0, 1, 2]) == lanes_of(specs)
    reading.close()


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=12),
    order=st.permutations([0, 1, 2, 3]),
    budget=st.integers(1, 120),
    threads=st.integers(1, 3),
    cost=st.none() | st.integers(0, 200),
    lane_by_lane=st.booleans(),
)
def test_any_jobs_any_budget_any_order_of_use(
    counts: list[tuple[int, int]],
    order: list[int],
    budget: int,
    threads: int,
    cost: int | None,
    lane_by_lane: bool,
) -> None:
    specs = [(lane, number, blocks) for number, (lane, blocks) in enumerate(counts)]
    reading = ahead(specs, budget=budget, threads=threads, cost=cost)
    if lane_by_lane:
        blocks_by_lane = {lane: [block for _, block in reading.blocks(lane)] for lane in order}
    else:
        blocks_by_lane = in_turn(reading, list(order))
    reading.close()
    assert {lane: blocks for lane, blocks in blocks_by_lane.items() if blocks} == {
        lane: blocks for lane, blocks in lanes_of(specs).items() if blocks
    }
    assert readers() == []


@pytest.mark.parametrize("turns", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("cost", [0, 1, 500])
def test_one_thread_and_streaming_jobs_of_many_lanes_do_not_get_stuck(
    turns: list[int], cost: int
) -> None:
    specs = [(lane, number, 50) for lane in range(3) for number in range(2)]
    reading = ahead(specs, budget=1, threads=1, cost=cost)
    assert in_turn(reading, turns) == lanes_of(specs)
    reading.close()
    assert reading.peak_bytes <= 3 * 20 + 1  # in a lane one block waits and one is in use


def test_a_lane_that_comes_last_in_the_plan_can_be_used_first() -> None:
    specs = [(lane, 0, 50) for lane in range(20)]
    reading = ahead(specs, budget=20, threads=2, cost=10)
    assert next(reading.blocks(19)) == ((19, 0, 50), (19, 0, 0))
    assert len(readers()) <= 4
    reading.close()


def test_the_budget_is_honoured_where_every_job_fits() -> None:
    specs = [(lane, number, 3) for number in range(30) for lane in range(2)]
    reading = ahead(specs, jittered, budget=100, threads=4)
    assert in_turn(reading, [0, 1]) == lanes_of(specs)
    assert 30 <= reading.peak_bytes <= 100
    reading.close()


def test_it_reads_ahead_as_far_as_the_budget_goes_and_no_further() -> None:
    specs = [(0, number, 1) for number in range(100)]
    finished: list[Spec] = []

    def work(spec: Spec) -> Iterator[Block]:
        finished.append(spec)
        return make(spec)

    reading = ahead(specs, work, budget=50, threads=4)
    blocks = reading.blocks(0)
    next(blocks)
    wait_until(lambda: len(finished) == 5)
    time.sleep(0.05)
    assert len(finished) == 5  # one delivered, four waiting
    next(blocks)
    wait_until(lambda: len(finished) == 6)
    reading.close()


def test_a_job_of_many_blocks_is_held_back() -> None:
    finished: list[int] = []

    def work(spec: Spec) -> Iterator[Block]:
        for block in make(spec):
            finished.append(block[2])
            yield block

    reading = ahead([(0, 0, 1000)], work, budget=1000, cost=50, threads=1)
    blocks = reading.blocks(0)
    next(blocks)
    wait_until(lambda: len(finished) >= 6)
    time.sleep(0.05)
    assert len(finished) <= 8
    assert len(list(blocks)) == 999
    assert reading.peak_bytes <= 70
    reading.close()


def test_a_job_larger_than_the_budget_holds_no_more_than_the_budget() -> None:
    specs = [(0, number, 100) for number in range(3)]
    reading = ahead(specs, budget=50, threads=2)
    assert [block for _, block in reading.blocks(0)] == lanes_of(specs)[0]
    assert reading.peak_bytes <= 50 + 2 * 10  # plus the blocks in use and one that was waited for
    reading.close()


def test_estimates_that_are_far_too_low_are_learned() -> None:
    specs = [(0, number, 4) for number in range(50)]
    reading = ahead(specs, jittered, budget=100, cost=1, threads=4)
    held = []
    for at, _ in enumerate(reading.blocks(0)):
        if at > 40:
            held.append(reading._held)
    assert max(held) <= 140  # one job more than the budget, because it was waited for
    reading.close()


def test_waiting_threads_do_not_burn_the_processor() -> None:
    specs = [(lane, 0, 1000) for lane in range(4)]
    reading = ahead(specs, budget=10_000, cost=20, threads=4)
    sources = [reading.blocks(lane) for lane in range(4)]
    for source in sources:
        next(source)
    wait_until(lambda: reading._stuck == 4)
    before, worked = time.monotonic(), time.process_time()
    time.sleep(0.5)
    worked = time.process_time() - worked
    share = worked / (time.monotonic() - before)
    reading.close()
    assert share < 0.4


class Interrupt(BaseException):
    """An exception that is not an Exception, like KeyboardInterrupt."""


@pytest.mark.parametrize("error", [ValueError("broken"), Interrupt("stop"), SystemExit(3)])
def test_an_error_comes_in_its_place(error: BaseException) -> None:
    def work(spec: Spec) -> Iterator[Block]:
        if spec[:2] == (0, 1):
            yield 0, 1, 0
            yield 0, 1, 1
            raise error
        yield from make(spec)

    specs = [(lane, number, 3) for number in range(3) for lane in range(2)]
    reading = ahead(specs, work, budget=10_000)
    other = reading.blocks(1)
    next(other)
    source = reading.blocks(0)
    cursors = [next(source)[1] for _ in range(5)]
    with pytest.raises(type(error)) as caught:
        next(source)
    assert caught.value is error
    assert cursors == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1)]
    assert len(list(other)) == 8  # other lanes continue
    reading.close()
    assert readers() == []


def test_a_size_that_cannot_be_told_is_an_error_of_its_job() -> None:
    def size_of(block: Block) -> int:
        raise TypeError(f"no size: {block}")

    reading: Ahead = ReadAhead(
        iter([Job(0, (0, 0, 1), 10)]), make, size_of=size_of, budget_bytes=10, threads=1
    )
    with pytest.raises(TypeError, match="no size"):
        list(reading.blocks(0))
    reading.close()


@pytest.mark.parametrize("good", [0, 1, 5])
def test_a_plan_that_breaks_off_is_an_error_and_not_the_end(good: int) -> None:
    def jobs() -> Iterator[Job[Spec, Block]]:
        for number in range(good):
            yield Job(number % 2, (number % 2, number, 1), 10)
        raise RuntimeError("the plan is broken")

    reading: Ahead = ReadAhead(jobs(), make, size_of=lambda _: 10, budget_bytes=1000, threads=2)
    for lane in (0, 1):
        source = reading.blocks(lane)
        for number in range(lane, good, 2):
            assert next(source)[1] == (lane, number, 0)
        with pytest.raises(RuntimeError, match="the plan is broken"):
            next(source)
    reading.close()


def test_threads_start_with_the_first_block_and_end_with_the_last() -> None:
    reading = ahead([(0, 0, 1), (0, 1, 1)], threads=3)
    blocks = reading.blocks(0)
    assert readers() == []
    next(blocks)
    list(blocks)
    wait_until(lambda: readers() == [])
    reading.close()


def test_close_in_mid_stream_wakes_producers_and_leaves_no_thread() -> None:
    ended: list[Spec] = []

    def work(spec: Spec) -> Iterator[Block]:
        try:
            yield from make(spec)
        finally:
            ended.append(spec)

    reading = ahead([(lane, 0, 1000) for lane in range(3)], work, budget=1, threads=1, cost=1)
    sources = [reading.blocks(lane) for lane in range(3)]
    for source in sources:
        next(source)
    assert readers()
    reading.close()
    assert readers() == []
    assert len(ended) == 3
    reading.close()
    assert len(list(sources[0])) <= 1  # a block that was already made, and then the end


def test_close_before_the_first_block() -> None:
    reading = ahead([(0, 0, 5)])
    reading.close()
    reading.close()
    assert list(reading.blocks(0)) == []
    assert readers() == []


def test_close_waits_for_what_is_being_made() -> None:
    inside = threading.Event()

    def work(spec: Spec) -> Iterator[Block]:
        inside.set()
        time.sleep(0.2)
        yield 0, 0, 0

    reading = ahead([(0, 0, 1), (1, 0, 1)], work, budget=1000, threads=1)
    consumer = threading.Thread(target=lambda: list(reading.blocks(0)))
    consumer.start()
    inside.wait(60)
    reading.close()
    assert readers() == []
    consumer.join(60)
    assert not consumer.is_alive()


def test_a_lane_without_jobs_ends_at_once_and_the_others_are_whole() -> None:
    specs = [(0, number, 2) for number in range(5)]
    reading = ahead(specs)
    assert list(reading.blocks(7)) == []
    assert [block for _, block in reading.blocks(0)] == lanes_of(specs)[0]
    reading.close()


def test_waiting_is_measured() -> None:
    def slow(spec: Spec) -> Iterator[Block]:
        time.sleep(1.0)  # much longer than reaching the wait takes
        return make(spec)

    reading = ahead([(0, 0, 1)], slow, threads=1)
    began = time.monotonic()
    list(reading.blocks(0))
    assert 0.05 <= reading.waited_s <= time.monotonic() - began
    reading.close()


def test_a_forked_child_reads_with_threads_of_its_own() -> None:
    """Fork at moments at which the parent's threads may hold any lock."""
    specs = [(lane, number, 20) for number in range(50) for lane in range(3)]
    reading = ahead(specs, budget=50, threads=4)
    sources = [reading.blocks(lane) for lane in range(3)]
    for attempt in range(10):
        for source in sources:
            next(source)
        child = os.fork()
        if child == 0:
            reading.close()  # as when the parent's loader is collected here
            own = ahead(specs[:30], budget=50, threads=2)
            right = in_turn(own, [0, 1, 2]) == lanes_of(specs[:30])
            own.close()
            os._exit(0 if right else 1)
        assert wait_for(child) == 0, f"attempt {attempt}"
    reading.close()


def wait_for(child: int, timeout_s: float = 120.0) -> int:
    """Return the exit status of a child, or kill it and fail if it hangs."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
