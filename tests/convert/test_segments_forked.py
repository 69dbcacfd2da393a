"""What a process sees in shared memory, its children may go on seeing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import pytest
from both_sides import SIZE, both_sides, received

from headrace.convert import arrivals
from headrace.convert.arrivals import mapped_segments
from headrace.convert.outgoing import outgoing

__all__ = ["both_sides"]
pytestmark = pytest.mark.usefixtures("both_sides")


def in_child(look: Callable[[], bool]) -> Callable[[], bool]:
    """Fork; what is returned lets the child look, and says what it saw."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0 if look() else 1)
    os.close(reading)

    def answer() -> bool:
        os.close(writing)
        return os.waitpid(pid, 0)[1] == 0

    return answer


def test_a_child_goes_on_seeing_what_its_parent_lets_go() -> None:
    held = [received(7)]
    answer = in_child(lambda: bool((held[0] == 7).all()))
    held.clear()
    for value in (8, 9):
        received(value)
    assert answer()


def test_a_child_does_not_give_back_what_its_parent_sees() -> None:
    held = [received(7)]

    def drop() -> bool:
        held.clear()
        return mapped_segments() == 0

    assert in_child(drop)()
    received(8)
    assert (held[0] == 7).all()


def test_a_child_of_a_sender_fills_segments_of_its_own() -> None:
    received(1)
    buffer = outgoing(SIZE)
    buffer.memory[:] = 7

    def fill() -> bool:
        own = outgoing(SIZE)
        own.memory[:] = 9
        args = buffer.handed_over()  # inherited: a copy of it goes, and not the segment itself
        return args[2] is None and bool((args[1].numpy() == 7).all())

    assert in_child(fill)()
    array = pickle.loads(bytes(ForkingPickler.dumps(buffer)))
    assert (array == 7).all()


def test_leases_during_a_fork_are_not_given_back() -> None:
    here = arrivals._here
    before = received(1)
    names = set(here.mapped)
    here.before_fork()
    del before  # another thread's, while the child may have it
    during = received(2)
    names |= set(here.mapped)
    here.after_fork()
    del during
    assert len(names) == 2
    received(3)
    assert mapped_segments() == 1
    assert not names & set(here.mapped), "both are retired"
    names = set(here.mapped)
    received(4)
    assert names == set(here.mapped), "and then it is as before"
