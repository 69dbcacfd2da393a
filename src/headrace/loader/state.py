"""Where a loader is: a few integers a lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Protocol

from headrace.access.state_checksum import (
    CHECKSUM,
    check_checksum,
    check_names,
    plain_state,
    with_checksum,
)
from headrace.errors import StateMismatchError
from headrace.loader.claims import DONE, Loose
from headrace.loader.fingerprint import Fingerprint
from headrace.stream import Cursor

__all__ = ["END", "Place", "Position", "Stage", "check_state", "merge_states"]

VERSION = 3
_ALL = -1
"""in place of a rank: the state is that of all of them"""
_NAMES = (
    "version",
    "epoch",
    "batch_size",
    "steps",
    "turn",
    "lanes",
    "ranks",
    "before",
    "loose",
    "plan",
    "splits",
    CHECKSUM,
)
"""the keys of every state"""
END = -1
"""in place of a window: behind the last, whichever that is"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan that was given up before its end, and how far every lane had come in it."""

    batch_size: int
    cursors: tuple[Cursor, ...]
    loose: Loose = ()

    def as_list(self) -> list[Any]:
        """JSON-safe."""
        cursors = [list(cursor) for cursor in self.cursors]
        loose = [list(window) for window in self.loose]
        return [self.batch_size, cursors, loose] if loose else [self.batch_size, cursors]

    @classmethod
    def of_list(cls, value: Any) -> Stage:
        """What ``as_list`` has made."""
        size, cursors, *loose = value
        return cls(_count(size, 1), _cursors(cursors), *map(_loose, loose))


@dataclass(frozen=True, slots=True)
class Place:
    """Where in an epoch's plans a rank counts from: the same for all ranks."""

    epoch: int
    batch_size: int
    lanes: int
    ranks: int = 1
    taken: int = 0
    """batches that all ranks together had taken of the plan when ranks became so many"""
    before: tuple[Stage, ...] = ()
    """plans of this epoch that were given up, because lanes or batch_size changed"""


class Pass(Protocol):
    """An iteration over the lanes of one rank."""

    def progress(self, lanes: Sequence[int]) -> tuple[Mapping[int, Cursor], Loose]: ...
    @property
    def turn(self) -> int: ...
    @property
    def handed_over(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an epoch, after some batches that one rank took, or all of them."""

    place: Place
    rank: int | None
    """None: the position holds the lanes of all ranks"""
    steps: tuple[int, ...] = (0,)
    """batches taken since ``place``, by this rank or by each"""
    turns: tuple[int, ...] = (0,)
    """which of the lanes of this rank, or of each, is next"""
    cursors: Mapping[int, Cursor] = field(default_factory=dict)
    """of the lanes that were begun"""
    loose: Loose = ()
    """windows beyond the cursors of their lanes that other workers took"""
    adaptive: bool = False
    """whether workers take windows of each other, so that lanes tell nothing of other lanes"""

    @property
    def begun(self) -> bool:
        """Whether anything of the epoch lies behind."""
        moved = any(map(any, self.cursors.values()))
        return moved or bool(self.loose) or bool(self.place.before)

    def lanes_of(self, rank: int) -> range:
        """The lanes of a rank."""
        return range(rank, self.place.lanes, self.place.ranks)

    @property
    def own_lanes(self) -> range:
        """The lanes whose cursors are here."""
        return range(self.place.lanes) if self.rank is None else self.lanes_of(self.rank)

    def cursor(self, lane: int) -> Cursor:
        """How far a lane has come."""
        return self.cursors.get(lane, (0, 0))

    def after(self, running: Pass, repeated: int = 0) -> Position:
        """The place to which a pass has come that began here, and repeated so many batches."""
        cursors, loose = running.progress(self.own_lanes)
        steps = self.steps[0] + running.handed_over["batches"] + repeated
        return replace(self, steps=(steps,), turns=(running.turn,), cursors=cursors, loose=loose)

    @property
    def _first_lanes(self) -> int:
        """The number of lanes for which the split strategy planned the epoch."""
        place = self.place
        return len(place.before[0].cursors) if place.before else place.lanes

    def _splits(self, fingerprint: Fingerprint) -> str | None:
        """The digest of the user's own splits; None at the start of an epoch, where any will do."""
        if not self.begun and not any(self.steps):
            return None
        return fingerprint.splits_digest(self.place.epoch, self._first_lanes)

    def as_state(
        self, fingerprint: Fingerprint, loaded: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """JSON-safe, and all that is needed to go on in a new process.

        ``loaded`` is the state that this position was loaded from, if nothing was read since: what
        it says of its data holds, whatever data is there now.

        Its keys are always the same and none of its values is a dict: torch's distributed
        checkpoints load, of what was saved, the keys that a fresh loader's state has.
        """
        place, merged = self.place, self.rank is None
        loose = [list(window) for window in self.loose]
        state = {
            "version": VERSION,
            "epoch": place.epoch,
            "batch_size": place.batch_size,
            "steps": list(self.steps) if merged else self.steps[0],
            "turn": list(self.turns) if merged else self.turns[0],
            "lanes": [list(self.cursor(lane)) for lane in self.own_lanes],
            "ranks": [_ALL if self.rank is None else self.rank, place.ranks, place.taken],
            "before": [stage.as_list() for stage in place.before],
            "loose": loose if self.adaptive else None,
            "plan": fingerprint.as_list() if loaded is None else list(loaded["plan"]),
            "splits": self._splits(fingerprint) if loaded is None else loaded["splits"],
        }
        return with_checksum(state)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], fingerprint: Fingerprint) -> Position:
        """The place that a state describes, if it is one in this data and this order."""
        plain = _plain_of_this_version(state)
        fingerprint.check(plain.get("plan"))
        check_names(plain, _NAMES)
        try:
            position = cls._read(plain)
        except (TypeError, ValueError) as error:
            raise StateMismatchError(f"the state is damaged: {error}") from error
        check_checksum(plain, _NAMES)  # after what has more to say of a fault
        if position.begun or any(position.steps):
            splits, lanes = plain["splits"], position._first_lanes
            fingerprint.check_splits(splits, position.place.epoch, lanes)
        return position

    @classmethod
    def _read(cls, state: Mapping[str, Any]) -> Position:
        rank, ranks, taken = state["ranks"]
        merged = rank == _ALL and ranks > 1
        before = tuple(map(Stage.of_list, state["before"]))
        cursors = _cursors(state["lanes"])
        place = Place(
            _count(state["epoch"]),
            _count(state["batch_size"], 1),
            len(cursors) * (1 if merged else _count(ranks, 1)),
            _count(ranks, 1),
            _count(taken),
            before,
        )
        steps, turns = state["steps"], state["turn"]
        position = cls(
            place,
            None if merged else _count(rank),
            tuple(map(_count, steps)) if merged else (_count(steps),),
            tuple(map(_count, turns)) if merged else (_count(turns),),
        )
        known = place.ranks if merged else 1
        if len(position.steps) != known or len(position.turns) != known:
            raise ValueError(f"steps are {steps!r}, and turns {turns!r}, of {place.ranks} ranks")
        if not cursors or place.lanes % place.ranks or rank >= place.ranks:
            raise ValueError(f"{len(cursors)} lanes of rank {rank} of {place.ranks}")
        loose = state["loose"]
        return replace(
            position,
            cursors=dict(zip(position.own_lanes, cursors, strict=True)),
            loose=() if loose is None else _loose(loose),
            adaptive=loose is not None,
        )


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks of a job, in any order, as one that a job of any size can load."""
    if not states:
        raise StateMismatchError("there are no states to merge")
    states = [check_state(state) for state in states]
    epoch = min(state["epoch"] for state in states)
    first = next(state for state in states if state["epoch"] == epoch)
    states = [_at_its_end(state, first) for state in states]
    rank, ranks, taken = first["ranks"]
    if len(states) == 1 and (ranks == 1 or rank == _ALL):
        return dict(first)
    same = ("epoch", "batch_size", "plan", "before")
    splits = {state["splits"] for state in states} - {None}  # None: a rank has not begun
    for state in states:
        if (
            state["ranks"][1:] != [ranks, taken]
            or any(state[name] != first[name] for name in same)
            or len(splits) > 1
        ):
            raise StateMismatchError(
                "states of different jobs, or of different moments of one, cannot be merged: "
                f"{first!r} and {state!r}"
            )
    found = [state["ranks"][0] for state in states]
    if sorted(found) != list(range(ranks)):
        raise StateMismatchError(f"a state of each of {ranks} ranks is needed, not of {found}")
    by_rank = [state for _, state in sorted(zip(found, states, strict=True), key=itemgetter(0))]
    lanes: list[Any] = [None] * sum(len(state["lanes"]) for state in states)
    for rank, state in enumerate(by_rank):
        lanes[rank::ranks] = state["lanes"]
    adaptive = any(state["loose"] is not None for state in by_rank)
    loose = [window for state in by_rank for window in state["loose"] or ()]
    merged = {
        **first,
        "loose": loose if adaptive else None,
        "ranks": [_ALL, ranks, taken],
        "steps": [state["steps"] for state in by_rank],
        "turn": [state["turn"] for state in by_rank],
        "lanes": lanes,
        "splits": next(iter(splits), None),
    }
    return with_checksum(merged)


def _at_its_end(state: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rank that stands before the next epoch has ended the one that another is still in."""
    begun = state["steps"] or any(map(any, state["lanes"]))
    alone = other["ranks"][1] == 1 or other["ranks"][0] == _ALL
    if state["epoch"] != other["epoch"] + 1 or begun or alone:
        return state
    ranks = [state["ranks"][0], *other["ranks"][1:]]
    if state["plan"] != other["plan"]:
        return state
    lanes = [[END, 0]] * len(other["lanes"])
    # Another number of steps, whatever it is: the ranks are not in step.
    return {**other, "ranks": ranks, "steps": other["steps"] + 1, "turn": 0, "lanes": lanes}


def check_state(state: object) -> dict[str, Any]:
    """Return a state as JSON has it.

    Raises:
        StateMismatchError: It is no state of this version, or it was changed since it was taken.
    """
    plain = _plain_of_this_version(state)
    check_checksum(plain, _NAMES)
    return plain


def _plain_of_this_version(state: object) -> dict[str, Any]:
    plain = plain_state(state, _NAMES)
    found = plain.get("version")
    if found != VERSION:
        raise StateMismatchError(
            f"not a state of this library, or of another version of it: {found!r} "
            f"where {VERSION!r} is expected"
        )
    return plain


def _count(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} where a number of at least {least} is expected")
    return value


def _loose(value: object) -> Loose:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} where windows are expected")
    windows = []
    for lane, window, row in value:
        windows.append((_count(lane), _count(window), _count(row, DONE)))
    return tuple(windows)


def _cursors(value: object) -> tuple[Cursor, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} where places in lanes are expected")
    cursors = []
    for at in value:
        if not isinstance(at, list | tuple) or len(at) != 2:
            raise ValueError(f"a lane is at {at!r}")
        cursors.append((END, 0) if at[0] == END else (_count(at[0]), _count(at[1])))
    return tuple(cursors)
