"""Loaders over a list of numbers: a correct one, and several that break one promise each."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

ROWS = 98
"""25 batches, the last of them short: one rank of two has one more than the other"""
BATCH = 4
State = dict[str, int]


class ListLoader:
    """Rank r takes batches r, r + ranks, … after the place of its state; all take equally many.

    Two batches a worker are fetched ahead, as by a loader with worker processes.
    """

    def __init__(self, rank: int, world_size: int, num_workers: int) -> None:
        self.rank, self.world_size, self.ahead = rank, world_size, 2 * num_workers
        self.epoch = self.place = self.taken = self.fetched = 0
        self.resumed = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.place = 0
        self.resumed, self.taken, self.fetched = False, 0, 0
        queue: deque[list[int]] = deque()
        for batch in self.own_batches():
            self.fetched += 1
            queue.append(batch)
            if len(queue) > self.ahead:
                yield self.hand_over(queue.popleft())
        while queue:
            yield self.hand_over(queue.popleft())
        self.epoch, self.place, self.taken, self.fetched = self.epoch + 1, 0, 0, 0

    def all_batches(self) -> list[list[int]]:
        rows = list(range(ROWS))
        Random(self.epoch).shuffle(rows)
        return [rows[start : start + BATCH] for start in range(0, ROWS, BATCH)]

    def own_batches(self) -> list[list[int]]:
        left = self.all_batches()[self.place :]
        even = len(left) // self.world_size * self.world_size
        return left[self.rank : even : self.world_size]

    def hand_over(self, batch: list[int]) -> Any:
        self.taken += 1
        return {"row": batch}

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.place, self.taken, self.resumed = epoch, 0, 0, False

    def state_dict(self) -> State:
        return {"epoch": self.epoch, "place": self.place + self.steps_done() * self.world_size}

    def steps_done(self) -> int:
        return self.taken

    def load_state_dict(self, state: State) -> None:
        self.epoch, self.place, self.resumed = state["epoch"], state["place"], True


class RollingOver(ListLoader):
    """Its state after the last batch of an epoch is the start of the next."""

    def state_dict(self) -> State:
        state = super().state_dict()
        if state["place"] + self.world_size > len(self.all_batches()):
            return {"epoch": self.epoch + 1, "place": 0}
        return state


class TakingTurns(ListLoader):
    """Rank 0 has the batches with even numbers, whatever the place at which it resumes."""

    def own_batches(self) -> list[list[int]]:
        left = self.all_batches()[self.place :]
        even = len(left) // self.world_size * self.world_size
        first = (self.rank - self.place) % self.world_size
        return left[first : even : self.world_size]


class WithASlowRank(ListLoader):
    """Rank 1 is always behind."""

    def hand_over(self, batch: list[int]) -> Any:
        time.sleep(0.1 * self.rank)
        return super().hand_over(batch)


def merge(states: list[State]) -> State:
    """Return the state of any rank: all have taken the same number of steps."""
    (state,) = {tuple(sorted(state.items())) for state in states}
    return dict(state)


def may_drop(ranks: int) -> int:
    return (ranks - 1) * BATCH


class Forgetful(ListLoader):
    """Counts batches as delivered when they are fetched."""

    def steps_done(self) -> int:
        return self.fetched


class Repeating(ListLoader):
    """Forgets that the last batch was delivered."""

    def steps_done(self) -> int:
        return max(0, self.taken - 1)


class Reordering(ListLoader):
    """Swaps the first two batches after a resume."""

    def own_batches(self) -> list[list[int]]:
        own = super().own_batches()
        if self.place:
            own[:2] = own[1::-1]
        return own


class Hanging(ListLoader):
    """Waits for ever after a resume, in a thread whose name is recognizable."""

    def load_state_dict(self, state: State) -> None:
        waiting = threading.Thread(target=wait_for_a_batch_that_never_comes, daemon=True)
        waiting.start()
        waiting.join()


def wait_for_a_batch_that_never_comes() -> None:
    threading.Event().wait()


class Raising(ListLoader):
    """Cannot load the state that it saved."""

    def load_state_dict(self, state: State) -> None:
        raise KeyError("no such shard")


class Overlapping(ListLoader):
    """Reads everything in every rank."""

    def own_batches(self) -> list[list[int]]:
        return self.all_batches()[self.place :]


class WithoutEpochs:
    """Has equal passes, and tuples as states; loading a state of the end yields nothing."""

    def __init__(self, rank: int, world_size: int, num_workers: int) -> None:
        self.rows = range(rank, 24, world_size)
        self.place, self.resumed = 0, False

    def __iter__(self) -> Iterator[Any]:
        start = self.place if self.resumed else 0
        self.resumed = False
        for place in range(start, len(self.rows)):
            self.place = place + 1
            yield (self.rows[place],)

    def state_dict(self) -> tuple[int]:
        return (self.place,)

    def load_state_dict(self, state: tuple[int]) -> None:
        assert isinstance(state, tuple)
        (self.place,), self.resumed = state, True


class SayingFarewell(ListLoader):
    """Writes a line when its loop is left in an orderly way."""

    def __init__(self, folder: Path, rank: int, world_size: int, num_workers: int) -> None:
        super().__init__(rank, world_size, num_workers)
        self.folder = folder

    def __iter__(self) -> Iterator[Any]:
        start = self.place if self.resumed else 0
        try:
            yield from super().__iter__()
        finally:
            with (self.folder / f"rank-{self.rank}").open("a") as farewells:
                farewells.write(f"from {start}\n")


def tuple_ids(batch: tuple[int]) -> list[tuple[str, int]]:
    return [("row", batch[0])]


def broken_factory(rank: int, world_size: int, num_workers: int) -> ListLoader:
    if world_size > 1:
        raise ConnectionError(f"no peer for rank {rank}")
    return ListLoader(rank, world_size, num_workers)


def without_rows(rank: int, world_size: int, num_workers: int) -> list[Any]:
    return []
