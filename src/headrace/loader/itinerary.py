"""From one number of ranks, workers and lanes to another, in the middle of an epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.errors import StateMismatchError
from headrace.loader.state import Place, Position, Stage
from headrace.plan import LanePlan, batches_in, first_in_turn, windows_begun
from headrace.stream import Cursor

__all__ = ["Crew", "Recount", "Route", "counted_start", "resumed"]

logger = logging.getLogger(__name__)


class Recount(Protocol):
    """Reads again what no plan knows, without its columns."""

    def batches(
        self, place: Place, lanes: Sequence[int], steps: int
    ) -> tuple[Mapping[int, Cursor], int]:
        """Return where lanes stand after so many batches from a place on, and which is next."""
        ...

    def windows(
        self, place: Place, windows: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int]:
        """Return the number of rows of some windows (lane, window) of the plan of a place."""
        ...


@dataclass(frozen=True, slots=True)
class Crew:
    """Who reads now."""

    rank: int
    ranks: int
    workers: int
    """of each rank, at least 1"""
    batch_size: int
    lanes: int | None
    """as the user gave it"""
    in_step: bool
    """whether all ranks have to take the same number of batches"""
    adaptive: bool = False
    """whether workers take windows of each other"""

    @property
    def usual_lanes(self) -> int:
        """Lanes of an epoch that is planned from its start."""
        return self.lanes or self.ranks * self.workers

    def start(self, epoch: int, lanes: int | None = None) -> Position:
        """The first batch of an epoch."""
        place = Place(epoch, self.batch_size, lanes or self.usual_lanes, self.ranks)
        return Position(place, self.rank, adaptive=self.adaptive)

    def keeps(self, place: Place) -> bool:
        """Whether the lanes of a place can be read as they are."""
        fits = place.lanes % (self.ranks * self.workers) == 0
        return fits and place.batch_size == self.batch_size and self.lanes in (None, place.lanes)


@dataclass(frozen=True, slots=True)
class Route:
    """What must be known of a data set to go on from a position in it."""

    plan_at: Callable[[Place], LanePlan]
    counted: bool
    even: Callable[[Place], bool]
    """whether the lanes of a place have equal numbers of batches, to one"""
    drop_last: bool
    recount: Recount
    """used only where rows are not counted"""


def resumed(position: Position, crew: Crew, route: Route) -> Position:
    """Where this rank of the crew goes on from a position that any crew may have saved.

    If lanes are kept, so is the sequence of batches. Else what is left is planned anew.
    """
    place = position.place
    together = len(set(position.steps)) == 1 and not position.adaptive
    if not position.begun and not any(position.steps):
        return crew.start(place.epoch, place.lanes if crew.keeps(place) else None)
    if crew.keeps(place):
        agreeing = together or not crew.in_step
        if (
            crew.ranks == place.ranks
            and crew.adaptive == position.adaptive
            and (agreeing or crew.adaptive)
        ):
            return _as_rank(position, crew.rank, route)
        if route.counted and together and route.even(place) and not crew.adaptive:
            taken = place.taken + position.steps[0] * place.ranks
            moved = replace(place, ranks=crew.ranks, taken=taken)
            plan = route.plan_at(moved)
            return counted_start(moved, crew.rank, plan, even=True, drop_last=route.drop_last)
    ended = _ended(position, route)
    rest = Place(
        place.epoch,
        crew.batch_size,
        crew.usual_lanes,
        crew.ranks,
        before=(*place.before, ended),
    )
    return Position(rest, crew.rank, adaptive=crew.adaptive)


def _ended(position: Position, route: Route) -> Stage:
    """Return the stage that ends at a position.

    Where rows are not counted, those of windows that were begun have to be: what is left of such a
    window can be shared only if it is known how much it is.
    """
    place, cursors = position.place, _all_cursors(position, route)
    if route.counted:
        return Stage(place.batch_size, cursors, position.loose)
    begun = windows_begun(route.plan_at(place), cursors, position.loose)
    if not begun:
        return Stage(place.batch_size, cursors, position.loose, counts=())
    logger.info(
        "rows are not counted: reading %d windows that were begun, without their columns, to share "
        "what is left of them",
        len(begun),
    )
    counts = route.recount.windows(place, begun)
    known = tuple((*window, counts[window]) for window in begun)
    return Stage(place.batch_size, cursors, position.loose, known)


def _as_rank(position: Position, rank: int, route: Route) -> Position:
    """The position of one rank; if it is that of another, as far as that had come."""
    if position.rank is None:
        cursors = {lane: position.cursor(lane) for lane in position.lanes_of(rank)}
        steps, turns = (position.steps[rank],), (position.turns[rank],)
        loose = tuple(at for at in position.loose if at[0] in cursors)
        return replace(position, rank=rank, steps=steps, turns=turns, cursors=cursors, loose=loose)
    if position.rank == rank:
        return position
    if position.adaptive:
        raise StateMismatchError(
            f"the state is that of rank {position.rank}, and where workers take what they can "
            '(balance="adaptive") it says nothing of others: give every rank its own state, or '
            "all of them merge_states([...])"
        )
    return _after(replace(position, rank=rank), route)


def _after(position: Position, route: Route) -> Position:
    """The position with the cursors of its rank, from the number of batches it took."""
    place, rank, steps = position.place, position.rank, position.steps[0]
    assert rank is not None
    if route.counted:
        plan, even = route.plan_at(place), route.even(place)
        return _counted_after(position, rank, plan, even=even, drop_last=route.drop_last)
    logger.warning(
        "the state is of another rank and rows are not counted: reading %d batches again, "
        "without their columns, to find the place of rank %d; merge_states avoids this",
        steps,
        rank,
    )
    cursors, turn = route.recount.batches(place, position.lanes_of(rank), steps)
    return replace(position, turns=(turn,), cursors=cursors)


def _all_cursors(position: Position, route: Route) -> tuple[Cursor, ...]:
    """How far the lanes of all ranks have come; rows that were repeated are none of theirs."""
    place = position.place
    plan = route.plan_at(place)
    cursors: dict[int, Cursor] = {}
    for rank in range(place.ranks):
        cursors.update(_as_rank(position, rank, route).cursors)
    missing = set(range(place.lanes)) - set(cursors)
    if missing:
        raise StateMismatchError(f"the state is damaged: nothing is known of lanes {missing}")
    return tuple(min(cursors[lane], plan.lane(lane).end) for lane in range(place.lanes))


# --- where rows are counted: arithmetic


def counted_start(
    place: Place, rank: int, plan: LanePlan, *, even: bool, drop_last: bool
) -> Position:
    """Where a rank begins at a place.

    ``even``: whether the lanes of the plan have equal numbers of batches, to one.
    """
    start = Position(place, rank)
    if not place.taken:
        return start
    return _counted_after(start, rank, plan, even=even, drop_last=drop_last)


def _counted_after(
    position: Position, rank: int, plan: LanePlan, *, even: bool, drop_last: bool
) -> Position:
    """The position with the cursors of its rank, from the number of batches it took."""
    place, steps = position.place, position.steps[0]
    lanes = {index: plan.lane(index) for index in position.lanes_of(rank)}
    size = place.batch_size
    if even:
        batches, turn = _taken_of_even(place, rank, steps)
    else:
        counts = [batches_in(lane.rows_left(), size, drop_last) for lane in lanes.values()]
        taken = first_in_turn(counts, steps)
        batches = dict(zip(lanes, taken, strict=True))
        last = max((at for at, n in enumerate(taken) if n == max(taken)), default=-1)
        turn = (last + 1) % max(len(taken), 1) if steps else 0
    cursors = {
        index: lane.cursor_after(min(batches[index] * size, lane.rows_left()))
        for index, lane in lanes.items()
    }
    return replace(position, turns=(turn,), cursors=cursors)


def _taken_of_even(place: Place, rank: int, steps: int) -> tuple[dict[int, int], int]:
    """Batches that were taken of each lane of a rank, and which of its lanes is next."""
    total = place.taken + steps * place.ranks
    own = range(rank, place.lanes, place.ranks)
    batches = {index: max(-((index - total) // place.lanes), 0) for index in own}
    following = total + (rank - total) % place.ranks
    return batches, following % place.lanes // place.ranks
