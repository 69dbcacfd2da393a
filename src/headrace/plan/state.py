"""Where loaders and samplers stand: the cursors of their lanes, and how other readers go on.

An epoch is read in one stage, unless the number of lanes or the size of batches changes on the way:
then what is left is planned anew, as another stage. All ranks together take the batches of a stage
in one global sequence. A cursor (window, row) says how far one lane of the last stage has come.

``State.as_json`` writes a state and ``State.from_json`` reads it, if it belongs to the same data
and order (``Fingerprint``). ``Readers.resume`` answers how a rank goes on from a state that any
other readers may have saved. Loaders, samplers and batches of buckets all use these.
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.errors import StateMismatchError
from headrace.model import Cursor

__all__ = [
    "DONE",
    "END",
    "Fingerprint",
    "Loose",
    "Place",
    "Readers",
    "Share",
    "Stage",
    "State",
    "check_state",
    "merge_states",
    "same_data",
]

logger = logging.getLogger(__name__)


_PARTS: Mapping[str, str] = {
    "files": "the files (their paths, sizes or content)",
    "content": "the content of the files",
    "filters": "filters",
    "order": "shuffle, split_bytes, split_rows, split_strategy, mix or interleave (of a sampler: "
    "its kind, rows, buckets or options)",
    "seed": "the seed (shuffle_seed)",
    "version": "the snapshots of the table, or its schemas,",
}
"""the parts of a fingerprint in the order of the list that a state holds, and what to call them"""


def _no_content() -> None:
    return None


def _no_splits(epoch: int, lanes: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The data and the options that must be the same when a state is loaded.

    Attributes:
        files: A digest of the paths, sizes, and etags or times of change of the files.
        filters: A digest of the filters.
        order: All that decides the order beside files, filters and seed.
        seed: The seed of all permutations.
        version: The snapshot and schema of a table.
        content: Returns a digest of the paths, sizes and contents of local files; None for other
            files, whose etags say as much. Called only when a state is taken, or when ``files``
            differ: it reads the files.
        splits_digest: Returns a digest of the splits that a strategy of the user's own makes for
            an epoch and a number of lanes; None for the strategies of the library.
    """

    files: str
    filters: str
    order: str
    seed: int
    version: tuple[int, int] | None = None
    content: Callable[[], str | None] = field(default=_no_content, compare=False, repr=False)
    splits_digest: Callable[[int, int], str | None] = field(
        default=_no_splits, compare=False, repr=False
    )

    def as_list(self) -> list[Any]:
        """Return the parts in their order, safe for JSON."""
        version = None if self.version is None else list(self.version)
        return [self.files, self.content(), self.filters, self.order, self.seed, version]

    @staticmethod
    def part_of(state: object, name: str) -> Any:
        """Return one part of the fingerprint in a state; None if it has none."""
        plan = state.get("plan") if isinstance(state, Mapping) else None
        if not isinstance(plan, list | tuple) or len(plan) != len(_PARTS):
            return None
        return plan[list(_PARTS).index(name)]

    @staticmethod
    def version_of(state: object) -> tuple[int, int] | None:
        """Return the version of a table that a state was taken of, if it has one."""
        version = Fingerprint.part_of(state, "version")
        if not isinstance(version, list | tuple) or [type(one) for one in version] != [int, int]:
            return None
        return version[0], version[1]

    def check(self, other: object) -> None:
        """Raise a StateMismatchError that names what is different in the list of a state.

        Local files whose times of change differ are the same if their content is.
        """
        if not isinstance(other, list | tuple) or len(other) != len(_PARTS):
            raise StateMismatchError(f"the state is damaged: plan is {other!r}")
        files, content, filters, order, seed, version = other
        mine = None if self.version is None else list(self.version)
        _check_part("version", version, mine)
        if files != self.files:
            if content is None or content != self.content():
                _check_part("files", files, self.files)
            logger.info(
                "the files were written again since the state was taken; their content is the same"
            )
        _check_part("filters", filters, self.filters)
        _check_part("order", order, self.order)
        _check_part("seed", seed, self.seed)

    def check_splits(self, other: object, epoch: int, lanes: int) -> None:
        """Raise a StateMismatchError if a strategy of the user's own makes other splits now."""
        mine = self.splits_digest(epoch, lanes)
        if mine != other:
            raise StateMismatchError(
                "the state was taken with other data or options: split_strategy made other splits "
                f"for epoch {epoch} and {lanes} lanes ({other!r} in the state, {mine!r} here); it "
                "must have the same parameters, and make the same splits whenever it is asked"
            )


def _check_part(name: str, theirs: object, mine: object) -> None:
    if theirs != mine:
        raise StateMismatchError(
            f"the state was taken with other data or options: {_PARTS[name]} differ "
            f"({theirs!r} in the state, {mine!r} here)"
        )


def same_data(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return True if two fingerprints, as lists, are of the same data and order."""
    same_files = one[0] == other[0] or (one[1] is not None and one[1] == other[1])
    return same_files and list(one[2:]) == list(other[2:])


VERSION = 4
_EVEN = ("", "drop", "pad", "full")
_ALL = -1
"""in place of a rank: the state is that of all of them"""
_CHECKSUM = "checksum"
"""the key of the checksum of all other items"""
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
    _CHECKSUM,
)
"""the keys of every state"""
END = -1
"""in place of a window: behind the last, whichever that is"""
DONE = -1
"""in place of a row: all of a window was delivered"""
Loose = tuple[tuple[int, int, int], ...]
"""lane, window and row of windows that are not behind the cursor of their lane, and yet begun"""


class Share(NamedTuple):
    """How many ranks share the batches of a stage, from which batch on.

    Attributes:
        taken: Number of batches that all ranks together had taken of the stage before.
        ranks: Number of ranks from then on.
        even: How its last batches were cut, so that all ranks take as many: "drop" and "pad" as the
            option ``even``, "full" with ``drop_last``, "" if they were not.
    """

    taken: int = 0
    ranks: int = 1
    even: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan of an epoch, or of what an earlier stage left of it.

    A new stage begins where the number of lanes or the size of batches changes.

    Attributes:
        batch_size: Number of rows in a batch.
        lanes: Number of lanes.
        shares: The ranks that shared it, one after the other.
        cursors: How far each lane had come when the stage was given up; empty for the last stage.
        loose: Windows beyond the cursor of their lane of which rows were delivered by then.
        counts: Lane, window and number of rows of the windows that were begun by then; None where
            the plan knows all rows.
    """

    batch_size: int
    lanes: int
    shares: tuple[Share, ...] = (Share(),)
    cursors: tuple[Cursor, ...] = ()
    loose: Loose = ()
    counts: Loose | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks that share the stage now."""
        return self.shares[-1].ranks

    @property
    def taken(self) -> int:
        """Number of batches that were taken before they did."""
        return self.shares[-1].taken


Place = tuple[int, tuple[Stage, ...]]
"""An epoch and its stages: what decides the lanes, the same for all ranks."""


class Pass(Protocol):
    """An iteration over the lanes of one rank."""

    def progress(self, lanes: Sequence[int]) -> tuple[Mapping[int, Cursor], Loose]: ...
    @property
    def turn(self) -> int: ...
    @property
    def handed_over(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class State:
    """Where a rank stands in an epoch, or all of them.

    Attributes:
        epoch: The epoch.
        stages: Its plans; the last one is being read.
        rank: The rank; None if the state holds the lanes of all ranks.
        steps: Number of batches taken since the last share began, by this rank or by each.
        turns: Which of the lanes of this rank, or of each, is next.
        cursors: How far the lanes have come that were begun. None are known yet of a rank that
            goes on in place of others: they follow from the number of steps.
        loose: Windows beyond the cursors of their lanes that other workers took.
        adaptive: Whether workers take windows of each other; a lane then tells nothing of others.
    """

    epoch: int
    stages: tuple[Stage, ...]
    rank: int | None
    steps: tuple[int, ...] = (0,)
    turns: tuple[int, ...] = (0,)
    cursors: Mapping[int, Cursor] = field(default_factory=dict)
    loose: Loose = ()
    adaptive: bool = False

    @property
    def place(self) -> Place:
        """What decides the lanes."""
        return self.epoch, self.stages

    @property
    def stage(self) -> Stage:
        """The plan that is being read."""
        return self.stages[-1]

    @property
    def begun(self) -> bool:
        """Whether anything of the epoch was delivered."""
        moved = any(map(any, self.cursors.values())) or any(self.steps) or self.stage.taken > 0
        return moved or bool(self.loose) or len(self.stages) > 1

    @property
    def in_step(self) -> bool:
        """Whether the state tells that all ranks have taken the same number of batches."""
        return len(set(self.steps)) == 1 and not self.adaptive

    @property
    def taken(self) -> int:
        """Number of batches of the stage that all ranks have taken, if they are in step."""
        return self.stage.taken + self.steps[0] * self.stage.ranks

    def lanes_of(self, rank: int) -> range:
        """Return the lanes of a rank."""
        return range(rank, self.stage.lanes, self.stage.ranks)

    @property
    def own_lanes(self) -> range:
        """The lanes whose cursors are here."""
        return range(self.stage.lanes) if self.rank is None else self.lanes_of(self.rank)

    def cursor(self, lane: int) -> Cursor:
        """Return how far a lane has come."""
        return self.cursors.get(lane, Cursor())

    def after(self, running: Pass, repeated: int = 0) -> State:
        """Return the state of a pass that began here, and repeated so many batches."""
        cursors, loose = running.progress(self.own_lanes)
        steps = self.steps[0] + running.handed_over["batches"] + repeated
        return replace(self, steps=(steps,), turns=(running.turn,), cursors=cursors, loose=loose)

    def of_rank(self, rank: int) -> State:
        """Return the state of one of the ranks.

        If it is that of another rank, both have taken as many batches, and no cursors are known.

        Raises:
            StateMismatchError: The state is of another rank, and tells nothing of this one.
        """
        if self.rank == rank:
            return self
        if self.rank is None:
            cursors = {lane: self.cursor(lane) for lane in self.lanes_of(rank)}
            steps, turns = (self.steps[rank],), (self.turns[rank],)
            loose = tuple(at for at in self.loose if at[0] in cursors)
            return replace(self, rank=rank, steps=steps, turns=turns, cursors=cursors, loose=loose)
        if self.adaptive:
            raise StateMismatchError(
                f"the state is that of rank {self.rank}, and where workers take what they can "
                '(balance="adaptive") it says nothing of others: give every rank its own state, or '
                "all of them merge_states([...])"
            )
        return replace(self, rank=rank, cursors={})

    # --- as JSON

    def as_json(
        self, fingerprint: Fingerprint, loaded: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return all that is needed to go on in a new process, safe for JSON.

        Its keys are always the same and none of its values is a dict: torch's distributed
        checkpoints load, of what was saved, the keys that a fresh loader's state has.

        Args:
            fingerprint: The data and order of the state.
            loaded: The JSON that this state was loaded from, if nothing was read since: what it
                says of its data holds, whatever data is there now.
        """
        stage, merged = self.stage, self.rank is None
        loose = [list(window) for window in self.loose]
        state = {
            "version": VERSION,
            "epoch": self.epoch,
            "batch_size": stage.batch_size,
            "steps": list(self.steps) if merged else self.steps[0],
            "turn": list(self.turns) if merged else self.turns[0],
            "lanes": [list(self.cursor(lane)) for lane in self.own_lanes],
            "ranks": [_ALL if self.rank is None else self.rank, *map(list, stage.shares)],
            "before": [_stage_as_list(earlier) for earlier in self.stages[:-1]],
            "loose": loose if self.adaptive else None,
            "plan": fingerprint.as_list() if loaded is None else list(loaded["plan"]),
            "splits": self._splits(fingerprint) if loaded is None else loaded["splits"],
        }
        return _with_checksum(state)

    def _splits(self, fingerprint: Fingerprint) -> str | None:
        """Return the digest of the user's own splits; None at the start of an epoch."""
        if not self.begun:
            return None
        return fingerprint.splits_digest(self.epoch, self.stages[0].lanes)

    @classmethod
    def from_json(cls, state: Mapping[str, Any], fingerprint: Fingerprint) -> State:
        """Return the state that JSON describes, if it belongs to this data and this order.

        Raises:
            StateMismatchError: It belongs to something else, or it was changed since it was taken.
        """
        plain = _plain_of_this_version(state)
        fingerprint.check(plain.get("plan"))
        _check_names(plain)
        try:
            read = cls._read(plain)
        except (TypeError, ValueError) as error:
            raise StateMismatchError(f"the state is damaged: {error}") from error
        _check_checksum(plain)  # after what has more to say of a fault
        if read.begun:
            fingerprint.check_splits(plain["splits"], read.epoch, read.stages[0].lanes)
        return read

    @classmethod
    def _read(cls, state: Mapping[str, Any]) -> State:
        rank, *listed = state["ranks"]
        shares = _shares(listed)
        ranks = shares[-1].ranks
        merged = rank == _ALL and ranks > 1
        cursors = _cursors(state["lanes"])
        lanes = len(cursors) * (1 if merged else ranks)
        current = Stage(_count(state["batch_size"], 1), lanes, shares)
        steps, turns = state["steps"], state["turn"]
        read = cls(
            _count(state["epoch"]),
            (*map(_stage_of_list, state["before"]), current),
            None if merged else _count(rank),
            tuple(map(_count, steps)) if merged else (_count(steps),),
            tuple(map(_count, turns)) if merged else (_count(turns),),
        )
        known = ranks if merged else 1
        if len(read.steps) != known or len(read.turns) != known:
            raise ValueError(f"steps are {steps!r}, and turns {turns!r}, of {ranks} ranks")
        if not cursors or lanes % ranks or rank >= ranks:
            raise ValueError(f"{len(cursors)} lanes of rank {rank} of {ranks}")
        loose = state["loose"]
        return replace(
            read,
            cursors=dict(zip(read.own_lanes, cursors, strict=True)),
            loose=() if loose is None else _loose(loose),
            adaptive=loose is not None,
        )


# --- how others go on


@dataclass(frozen=True, slots=True)
class Readers:
    """The ranks and workers that share the lanes.

    Attributes:
        rank: The rank of this process.
        ranks: Number of ranks.
        workers: Number of workers of each rank, at least 1.
        batch_size: Number of rows in a batch.
        lanes: Number of lanes, if the user has chosen it.
        even: How the last batches are cut for these ranks; see ``Share``.
        in_step: Whether all ranks have to take the same number of batches.
        adaptive: Whether workers take windows of each other.
        any_ranks: Whether any number of ranks can share the batches of a stage, as for samplers;
            False where they have to divide its lanes.
    """

    rank: int
    ranks: int
    workers: int = 1
    batch_size: int = 1
    lanes: int | None = None
    even: str = ""
    in_step: bool = True
    adaptive: bool = False
    any_ranks: bool = False

    @property
    def usual_lanes(self) -> int:
        """Number of lanes of an epoch that is planned from its start."""
        return self.lanes or self.ranks * self.workers

    def start(self, epoch: int, lanes: int | None = None) -> State:
        """Return the state before the first batch of an epoch."""
        stage = self._stage(lanes or self.usual_lanes)
        return State(epoch, (stage,), self.rank, adaptive=self.adaptive)

    def rest(self, epoch: int, before: Sequence[Stage]) -> State:
        """Return the state before the first batch of what earlier stages left of an epoch."""
        stages = (*before, self._stage(self.usual_lanes))
        return State(epoch, stages, self.rank, adaptive=self.adaptive)

    def _stage(self, lanes: int) -> Stage:
        return Stage(self.batch_size, lanes, (Share(0, self.ranks, self.even),))

    def resume(self, state: State, *, evenly: bool) -> State | None:
        """Return where this rank goes on in the lanes of a state.

        If ranks and workers are as they were, it goes on in its own lanes. Other ranks share the
        global sequence of batches from the first one that was not taken. The cursors are empty
        where they have to be computed from the number of batches.

        Args:
            state: A state that any readers may have saved.
            evenly: Whether the global sequence of batches is known: lanes have equal numbers of
                batches, to one.

        Returns:
            None if these readers cannot keep the lanes.

        Raises:
            StateMismatchError: The state tells nothing of this rank.
        """
        stage, keeps = state.stage, self._keeps(state.stage)
        if not state.begun:
            return self.start(state.epoch, stage.lanes if keeps and not self.any_ranks else None)
        if not keeps:
            return None
        same = (stage.ranks, stage.shares[-1].even) == (self.ranks, self.even)
        same = same and self.adaptive == state.adaptive
        if same and (state.in_step or self.adaptive or not self.in_step):
            return state.of_rank(self.rank)
        if not evenly or not state.in_step or self.adaptive:
            return None
        shares = (*stage.shares, Share(state.taken, self.ranks, self.even))
        lanes = self.ranks if self.any_ranks else stage.lanes
        shared = replace(stage, shares=shares, lanes=lanes)
        return State(state.epoch, (*state.stages[:-1], shared), self.rank)

    def _keeps(self, stage: Stage) -> bool:
        """Return True if the lanes of a stage can be read as they are."""
        fits = self.any_ranks or stage.lanes % (self.ranks * self.workers) == 0
        return fits and stage.batch_size == self.batch_size and self.lanes in (None, stage.lanes)


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks, in any order, to one that a job of any size can load."""
    if not states:
        raise StateMismatchError("there are no states to merge")
    states = [check_state(state) for state in states]
    epoch = min(state["epoch"] for state in states)
    first = next(state for state in states if state["epoch"] == epoch)
    states = [_at_its_end(state, first) for state in states]
    rank, *shares = first["ranks"]
    ranks = shares[-1][1]
    if len(states) == 1 and (ranks == 1 or rank == _ALL):
        return dict(first)
    same = ("epoch", "batch_size", "before")
    splits = {state["splits"] for state in states} - {None}  # None: a rank has not begun
    for state in states:
        if (
            state["ranks"][1:] != shares
            or any(state[name] != first[name] for name in same)
            or not same_data(state["plan"], first["plan"])
            or len(splits) > 1
        ):
            raise StateMismatchError(
                "states of different jobs, or of different moments of one, cannot be merged: "
                f"{first!r} and {state!r}"
            )
    found = [state["ranks"][0] for state in states]
    if sorted(found) != list(range(ranks)):
        raise StateMismatchError(f"a state of each of {ranks} ranks is needed, not of {found}")
    by_rank = [states[found.index(rank)] for rank in range(ranks)]
    lanes: list[Any] = [None] * sum(len(state["lanes"]) for state in states)
    for rank, state in enumerate(by_rank):
        lanes[rank::ranks] = state["lanes"]
    adaptive = any(state["loose"] is not None for state in by_rank)
    loose = [window for state in by_rank for window in state["loose"] or ()]
    merged = {
        **first,
        "loose": loose if adaptive else None,
        "ranks": [_ALL, *shares],
        "steps": [state["steps"] for state in by_rank],
        "turn": [state["turn"] for state in by_rank],
        "lanes": lanes,
        "splits": next(iter(splits), None),
    }
    return _with_checksum(merged)


def _at_its_end(state: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a rank before the next epoch as one at the end of another rank's."""
    begun = state["steps"] or any(map(any, state["lanes"]))
    alone = other["ranks"][-1][1] == 1 or other["ranks"][0] == _ALL
    if state["epoch"] != other["epoch"] + 1 or begun or alone:
        return state
    ranks = [state["ranks"][0], *other["ranks"][1:]]
    if not same_data(state["plan"], other["plan"]):
        return state
    lanes = [[END, 0]] * len(other["lanes"])
    # Another number of steps, whatever it is: the ranks are not in step.
    return {**other, "ranks": ranks, "steps": other["steps"] + 1, "turn": 0, "lanes": lanes}


# --- JSON: plain values, checked


def check_state(state: object) -> dict[str, Any]:
    """Return a state as JSON has it.

    Raises:
        StateMismatchError: It is no state of this version, or it was changed since it was taken.
    """
    plain = _plain_of_this_version(state)
    _check_checksum(plain)
    return plain


def _plain_of_this_version(state: object) -> dict[str, Any]:
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"not a state of this library: {type(state).__name__}")
    plain = {name: _plain(state[name]) for name in _NAMES if name in state}
    found = plain.get("version")
    if found != VERSION:
        raise StateMismatchError(
            f"not a state of this library, or of another version of it: {found!r} "
            f"where {VERSION!r} is expected"
        )
    return plain


def _plain(value: object) -> Any:
    """Return a value as JSON has it: checkpoints make lists of tuples, and numbers of numpy."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise StateMismatchError(
            f"the state is damaged: it holds {type(value).__name__}, which no state has"
        ) from None


def _with_checksum(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, _CHECKSUM: _checksum(state)}


def _check_names(state: Mapping[str, Any]) -> None:
    missing = [name for name in _NAMES if name not in state]
    if missing:
        raise StateMismatchError(f"the state is damaged: it has no {', '.join(missing)}")


def _check_checksum(state: Mapping[str, Any]) -> None:
    """Raise a StateMismatchError unless a plain state has all names, and its checksum."""
    _check_names(state)
    if state[_CHECKSUM] != _checksum(state):
        raise StateMismatchError(
            "the state is damaged: its checksum is not that of its content, so something changed "
            "it after it was taken; load it as state_dict or merge_states returned it, or go on "
            "from an older one"
        )


def _checksum(state: Mapping[str, Any]) -> str:
    """Return the checksum of all items but the checksum."""
    plain = {name: _plain(state[name]) for name in _NAMES if name != _CHECKSUM}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stage_as_list(stage: Stage) -> list[Any]:
    """Return a stage that was given up, safe for JSON."""
    made: list[Any] = [
        stage.batch_size,
        list(map(list, stage.shares)),
        list(map(list, stage.cursors)),
        list(map(list, stage.loose)),
    ]
    return made if stage.counts is None else [*made, list(map(list, stage.counts))]


def _stage_of_list(value: Any) -> Stage:
    """Return the stage that ``_stage_as_list`` made a list of."""
    size, shares, cursors, *windows = value
    read = _cursors(cursors)
    return Stage(_count(size, 1), len(read), _shares(shares), read, *map(_loose, windows))


def _shares(value: object) -> tuple[Share, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{value!r} where ranks are expected")
    shares = []
    for taken, ranks, even in value:
        if even not in _EVEN:
            raise ValueError(f"{even!r} where one of {_EVEN} is expected")
        shares.append(Share(_count(taken), _count(ranks, 1), even))
    return tuple(shares)


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
        window = END if at[0] == END else _count(at[0])
        cursors.append(Cursor(window, 0 if window == END else _count(at[1])))
    return tuple(cursors)
