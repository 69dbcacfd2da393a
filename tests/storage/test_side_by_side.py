"""Work that waits, done by several threads at a time."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.storage import side_by_side


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
