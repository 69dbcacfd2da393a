"""A consumer who would wait for blocks does the next job itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_ahead import (
    Ahead,
    Block,
    Spec,
    in_turn,
    jittered,
    lanes_of,
    make,
    readers,
    wait_until,
)

from headrace.stream import Job, ReadAhead

pytestmark = pytest.mark.timeout(300)


def helped(
    specs: list[Spec],
    work: Callable[[Spec], Iterator[Block]],
    *,
    budget: int = 1000,
    most_jobs: int = 4,
) -> Ahead:
    """One thread, and a consumer that helps it."""
    jobs: Iterator[Job[Spec, Block]] = (Job(spec[0], spec, 10 * spec[2]) for spec in specs)
    return ReadAhead(
        jobs,
        work,
        size_of=lambda _: 10,
        budget_bytes=budget,
        threads=1,
        most_jobs=lambda: most_jobs,
        helps=lambda: True,
    )


def test_a_consumer_does_the_next_job_rather_than_wait() -> None:
    done_by_consumer = threading.Event()
    consumer = threading.get_ident()

    def work(spec: Spec) -> Iterator[Block]:
        if threading.get_ident() == consumer:
            done_by_consumer.set()
        else:  # would be waited for for ever
            assert done_by_consumer.wait(60)
        yield from make(spec)

    specs = [(0, number, 1) for number in range(6)]
    reading = helped(specs, work)
    assert in_turn(reading, [0]) == lanes_of(specs)
    assert done_by_consumer.is_set()
    reading.close()


def test_a_consumer_who_has_enough_does_nothing_itself() -> None:
    makers: list[int] = []

    def work(spec: Spec) -> Iterator[Block]:
        makers.append(threading.get_ident())
        yield from make(spec)

    specs = [(0, number, 1) for number in range(40)]
    reading = helped(specs, work)
    blocks = reading.blocks(0)
    next(blocks)
    for begun in range(5, 40):  # the one that was handed out and three ahead of it, or more
        wait_until(lambda begun=begun: len(makers) >= min(begun - 1, 40))  # type: ignore[misc]
        before = makers.count(threading.get_ident())
        next(blocks)
        assert makers.count(threading.get_ident()) == before
    reading.close()


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=12),
    budget=st.integers(1, 120),
    most_jobs=st.integers(1, 5),
)
def test_a_consumer_who_helps_gets_all_in_order(
    counts: list[tuple[int, int]], budget: int, most_jobs: int
) -> None:
    specs = [(lane, number, blocks) for number, (lane, blocks) in enumerate(counts)]
    reading = helped(specs, jittered, budget=budget, most_jobs=most_jobs)
    wanted = lanes_of(specs)
    assert in_turn(reading, [0, 1, 2]) == {lane: wanted.get(lane, []) for lane in range(3)}
    reading.close()


def test_what_a_consumer_makes_itself_does_not_wait_to_be_emptied() -> None:
    """A thread would: its blocks are many times what the budget has room for."""
    consumer = threading.get_ident()
    released = threading.Event()

    def work(spec: Spec) -> Iterator[Block]:
        if threading.get_ident() != consumer:
            assert released.wait(60)
        yield from make(spec)
        released.set()

    specs = [(1, 0, 1), (0, 0, 30), (0, 1, 30)]  # of which the thread has no other than the first
    reading = helped(specs, work, budget=20)
    assert in_turn(reading, [0, 1]) == lanes_of(specs)
    reading.close()


def test_an_error_in_what_the_consumer_does_comes_in_its_place() -> None:
    consumer = threading.get_ident()
    failed = threading.Event()

    def work(spec: Spec) -> Iterator[Block]:
        if threading.get_ident() == consumer:
            failed.set()
            raise ValueError(f"job {spec[1]}")
        assert failed.wait(60)
        yield from make(spec)

    reading = helped([(0, number, 1) for number in range(4)], work)
    seen: list[int] = []
    with pytest.raises(ValueError, match="job") as raised:
        seen.extend(spec[1] for spec, _ in reading.blocks(0))
    assert f"job {len(seen)}" in str(raised.value), "neither before its turn nor after it"
    reading.close()


def test_an_interrupt_ends_a_consumer_who_helps_at_once() -> None:
    consumer = threading.get_ident()
    interrupted = threading.Event()
    held: list[int] = []

    def work(spec: Spec) -> Iterator[Block]:
        if threading.get_ident() != consumer:
            held.append(spec[1])
            assert interrupted.wait(60)
        elif held and spec[1] > held[0]:
            interrupted.set()
            raise KeyboardInterrupt
        yield from make(spec)

    reading = helped([(0, number, 1) for number in range(9)], work)
    seen: list[int] = []

    def use(spec: Spec) -> int:
        wait_until(lambda: bool(held))
        return spec[1]

    with pytest.raises(KeyboardInterrupt):
        seen.extend(use(spec) for spec, _ in reading.blocks(0))
    assert seen == list(range(held[0])), "what came before it was in the making"
    reading.close()
    assert not readers()


def test_to_be_closed_ends_a_consumer_who_helps() -> None:
    consumer = threading.get_ident()
    closed = threading.Event()

    def work(spec: Spec) -> Iterator[Block]:
        if threading.get_ident() == consumer:
            closing.start()
            assert closed.wait(60)
        else:
            assert closed.wait(60)
        yield from make(spec)

    reading = helped([(0, number, 1) for number in range(9)], work)

    def close() -> None:
        threading.Timer(0.2, closed.set).start()
        reading.close()

    closing = threading.Thread(target=close)
    assert list(reading.blocks(0)) == []
    closing.join(60)
    assert not readers()


def test_an_interrupt_while_the_plan_is_asked_ends_a_consumer_who_helps_at_once() -> None:
    consumer = threading.get_ident()
    begun = threading.Event()
    released = threading.Event()

    def jobs() -> Iterator[Job[Spec, Block]]:
        for number in range(9):
            if number > 2 and threading.get_ident() == consumer:
                released.set()
                raise KeyboardInterrupt
            yield Job(0, (0, number, 1), 10)

    def work(spec: Spec) -> Iterator[Block]:
        if threading.get_ident() != consumer:
            begun.set()
            assert released.wait(60)
        yield from make(spec)

    reading: Ahead = ReadAhead(
        jobs(),
        work,
        size_of=lambda _: 10,
        budget_bytes=1000,
        threads=1,
        most_jobs=lambda: 6,
        helps=lambda: True,
    )
    seen: list[int] = []

    def use(spec: Spec) -> int:
        assert begun.wait(60)  # the thread holds one job, and the consumer has all others
        return spec[1]

    with pytest.raises(KeyboardInterrupt):
        seen.extend(use(spec) for spec, _ in reading.blocks(0))
    assert len(seen) <= 2, "not after all that was known"
    reading.close()
    assert not readers()


def test_a_consumer_who_may_not_help_waits() -> None:
    makers: set[int] = set()

    def work(spec: Spec) -> Iterator[Block]:
        makers.add(threading.get_ident())
        time.sleep(0.01)
        yield from make(spec)

    specs = [(0, number, 1) for number in range(6)]
    asked: list[int] = []
    jobs: Iterator[Job[Spec, Block]] = (Job(0, spec, 10) for spec in specs)
    reading: Ahead = ReadAhead(
        jobs,
        work,
        size_of=lambda _: 10,
        budget_bytes=1000,
        threads=1,
        helps=lambda: asked.append(1) is not None,
    )
    assert in_turn(reading, [0]) == lanes_of(specs)
    assert asked
    assert threading.get_ident() not in makers
    reading.close()
