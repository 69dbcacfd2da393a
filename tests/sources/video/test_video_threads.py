"""How many threads decode."""

from __future__ import annotations

import pytest

from headrace.sources.crew import Crew


def sizes(crew: Crew, calls: int, seconds: dict[int, float]) -> list[int]:
    """Which numbers of threads are chosen, if decoding takes so long with each of them."""
    chosen = []
    for _ in range(calls):
        threads = crew.size(100)
        crew.note(threads, 100, seconds[threads])
        chosen.append(threads)
    return chosen


@pytest.mark.parametrize(
    ("seconds", "better"),
    [({1: 2.0, 4: 1.0}, 4), ({1: 1.0, 4: 2.0}, 1)],
    ids=["several", "one"],
)
def test_both_are_tried_and_the_faster_is_kept(seconds: dict[int, float], better: int) -> None:
    chosen = sizes(Crew(cores=64), 15, seconds)
    assert sorted(chosen[:4]) == [1, 1, 4, 4]
    assert set(chosen[4:]) == {better}


def test_what_was_slower_once_is_tried_again() -> None:
    crew = Crew(cores=4)
    assert sizes(crew, 15, {1: 1.0, 4: 9.0})[-1] == 1
    assert sizes(crew, 120, {1: 1.0, 4: 0.3})[-1] == 4


def test_few_frames_and_one_core_take_one_thread() -> None:
    crew = Crew(cores=8)
    assert sizes(crew, 6, {1: 2.0, 4: 1.0})[-1] == 4
    assert [crew.size(frames) for frames in (0, 1, 7)] == [1, 1, 1]
    alone = Crew(cores=1)
    assert sizes(alone, 5, {1: 1.0}) == [1] * 5


def test_several_have_to_be_well_faster() -> None:
    assert sizes(Crew(cores=2, most=2), 15, {1: 1.0, 2: 0.95})[-1] == 1
    assert sizes(Crew(cores=2, most=2), 15, {1: 1.0, 2: 0.85})[-1] == 2


def test_one_call_that_took_long_is_soon_forgotten() -> None:
    crew = Crew(cores=2, most=2)
    assert sizes(crew, 15, {1: 1.0, 2: 0.6})[-1] == 2
    crew.note(2, 100, 600.0)
    assert sizes(crew, 20, {1: 1.0, 2: 0.6})[-1] == 2
