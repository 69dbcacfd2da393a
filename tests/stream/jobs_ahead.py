"""Jobs that make blocks of names, and the blocks that are expected of them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

from headrace.stream import Job, ReadAhead

Spec = tuple[int, int, int]  # lane, number of the job in its lane, blocks it makes
Block = tuple[int, int, int]  # lane, number of the job, number of the block
Ahead = ReadAhead[Spec, Block]


def make(spec: Spec) -> Iterator[Block]:
    lane, number, blocks = spec
    for block in range(blocks):
        yield lane, number, block


def jittered(spec: Spec) -> Iterator[Block]:
    """Make blocks that each take a random time."""
    for block in make(spec):
        time.sleep(random.Random(str(block)).choice([0, 0, 0.001, 0.003]))
        yield block


def ahead(
    specs: list[Spec],
    work: Callable[[Spec], Iterator[Block]] = make,
    *,
    block_bytes: int = 10,
    cost: int | None = None,
    budget: int = 100,
    threads: int = 2,
) -> Ahead:
    jobs: Iterator[Job[Spec, Block]] = (
        Job(spec[0], spec, block_bytes * spec[2] if cost is None else cost) for spec in specs
    )
    return ReadAhead(
        jobs, work, size_of=lambda _: block_bytes, budget_bytes=budget, threads=threads
    )


def lanes_of(specs: list[Spec]) -> dict[int, list[Block]]:
    wanted: dict[int, list[Block]] = {}
    for spec in specs:
        wanted.setdefault(spec[0], []).extend(make(spec))
    return wanted


def in_turn(reading: Ahead, lanes: list[int]) -> dict[int, list[Block]]:
    """Take one block from each lane in turn, until all lanes have ended."""
    sources = {lane: reading.blocks(lane) for lane in lanes}
    blocks_by_lane: dict[int, list[Block]] = {lane: [] for lane in lanes}
    while sources:
        for lane, source in list(sources.items()):
            item = next(source, None)
            if item is None:
                del sources[lane]
            else:
                spec, block = item
                assert spec[:2] == block[:2]
                blocks_by_lane[lane].append(block)
    return blocks_by_lane


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("headrace-read")]
