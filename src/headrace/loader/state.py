"""Where a loader is: a few integers a lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Protocol

from headrace.errors import StateMismatchError
from headrace.loader.claims import DONE, Loose
from headrace.loader.fingerprint import Fingerprint
from headrace.stream import Cursor

__all__ = ["END", "Place", "Position", "Stage", "merge_states"]

VERSION = 3
_ALL = -1
"""in place of a rank: the state is that of all of them"""
_ALONE = [0, 1, 0]
END = -1
"""in place of a window: behind the last, whichever that is"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan that was given up before its end, and how far every lane had come in it."""

    batch_size: int
    cursors: tuple[Cursor, ...]
    loose: Loose = ()
    counts: Loose | None = None
    """lane, window and rows of windows that were begun; None where the plan knew all rows"""

    def as_list(self) -> list[Any]:
        """JSON-safe."""
        made: list[Any] = [self.batch_size, [list(cursor) for cursor in self.cursors]]
        if self.loose or self.counts is not None:
            made.append([list(window) for window in self.loose])
        if self.counts is not None:
            made.append([list(window) for window in self.counts])
        return made

    @classmethod
    def of_list(cls, value: Any) -> Stage:
        """What ``as_list`` has made."""
        size, cursors, *windows = value
        return cls(_count(size, 1), _cursors(cursors), *map(_loose, windows))


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

    def as_state(self, fingerprint: Fingerprint) -> dict[str, Any]:
        """JSON-safe, and all that is needed to go on in a new process.

        Its keys are always the same and none of its values is a dict: torch's distributed
        checkpoints load, of what was saved, the keys that a fresh loader's state has.
        """
        place, merged = self.place, self.rank is None
        loose = [list(window) for window in self.loose]
        return {
            "version": VERSION,
            "epoch": place.epoch,
            "batch_size": place.batch_size,
            "steps": list(self.steps) if merged else self.steps[0],
            "turn": list(self.turns) if merged else self.turns[0],
            "lanes": [list(self.cursor(lane)) for lane in self.own_lanes],
            "ranks": [_ALL if self.rank is None else self.rank, place.ranks, place.taken],
            "before": [stage.as_list() for stage in place.before],
            "loose": loose if self.adaptive else None,
            "plan": fingerprint.as_list(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], fingerprint: Fingerprint) -> Position:
        """The place that a state describes, if it is one in this data and this order."""
        _check_version(state)
        fingerprint.check(state.get("plan"))
        try:
            return cls._read(state)
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatchError(f"the state is damaged: {error}") from error

    @classmethod
    def _read(cls, state: Mapping[str, Any]) -> Position:
        rank, ranks, taken = _part(state, "ranks")
        merged = rank == _ALL and ranks > 1
        before = tuple(map(Stage.of_list, _part(state, "before")))
        cursors = _cursors(_part(state, "lanes"))
        place = Place(
            _count(_part(state, "epoch")),
            _count(_part(state, "batch_size"), 1),
            len(cursors) * (1 if merged else _count(ranks, 1)),
            _count(ranks, 1),
            _count(taken),
            before,
        )
        steps, turns = _part(state, "steps"), _part(state, "turn")
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
        loose = _part(state, "loose")
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
    for state in states:
        _check_version(state)
    epoch = min(state.get("epoch", 0) for state in states)
    first = next(state for state in states if state.get("epoch", 0) == epoch)
    states = [_at_its_end(state, first) for state in states]
    rank, ranks, taken = first.get("ranks", _ALONE)
    if len(states) == 1 and (ranks == 1 or rank == _ALL):
        return dict(first)
    same = ("epoch", "batch_size", "plan", "before")
    for state in states:
        if state.get("ranks", _ALONE)[1:] != [ranks, taken] or any(
            state.get(name) != first.get(name) for name in same
        ):
            raise StateMismatchError(
                "states of different jobs, or of different moments of one, cannot be merged: "
                f"{first!r} and {state!r}"
            )
    found = [state.get("ranks", _ALONE)[0] for state in states]
    if sorted(found) != list(range(ranks)):
        raise StateMismatchError(f"a state of each of {ranks} ranks is needed, not of {found}")
    by_rank = [state for _, state in sorted(zip(found, states, strict=True), key=itemgetter(0))]
    lanes: list[Any] = [None] * sum(len(state["lanes"]) for state in states)
    for rank, state in enumerate(by_rank):
        lanes[rank::ranks] = state["lanes"]
    adaptive = any(state.get("loose") is not None for state in by_rank)
    loose = [window for state in by_rank for window in state.get("loose") or ()]
    return {
        **first,
        "loose": loose if adaptive else None,
        "ranks": [_ALL, ranks, taken],
        "steps": [state["steps"] for state in by_rank],
        "turn": [state["turn"] for state in by_rank],
        "lanes": lanes,
    }


def _at_its_end(state: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rank that stands before the next epoch has ended the one that another is still in."""
    begun = state.get("steps", 0) or any(map(any, state.get("lanes", ())))
    alone = other.get("ranks", _ALONE)[1] == 1
    if state.get("epoch") != other.get("epoch", 0) + 1 or begun or alone:
        return state
    ranks = [state.get("ranks", _ALONE)[0], *other["ranks"][1:]]
    if state.get("plan") != other.get("plan"):
        return state
    lanes = [[END, 0]] * len(other["lanes"])
    # Another number of steps, whatever it is: the ranks are not in step.
    return {**other, "ranks": ranks, "steps": other["steps"] + 1, "turn": 0, "lanes": lanes}


def _check_version(state: object) -> None:
    found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
    if found != VERSION:
        raise StateMismatchError(
            f"not a state of this library, or of another version of it: {found!r} "
            f"where {VERSION!r} is expected"
        )


def _part(state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise ValueError(f"it has no {name}")
    return state[name]


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
