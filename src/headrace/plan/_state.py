"""States: the positions of loaders and samplers in an epoch, and their JSON.

An epoch is read by one plan, unless the number of lanes or the size of batches changes on the way:
then the plan is given up, and what is left is planned anew. All ranks together take the batches of
a plan in one global sequence. A ``Cursor`` (window, row) says how far one of its lanes has come.

A ``State`` holds these for one rank, or for all of them (``merge_states``), and the state in which
an earlier plan was given up. ``as_json`` writes it with a ``Fingerprint`` of its data and order,
and ``from_json`` reads it. ``headrace.plan._resume`` makes the plan of a state, and finds the
cursors of other readers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.errors import StateMismatchError
from headrace.model import START, Cursor

logger = logging.getLogger(__name__)

VERSION = 6
"""The version of the JSON of a state."""
END = -1
"""The window of a cursor behind the last window of its lane."""
DONE = -1
"""The row of a loose window of which all rows were delivered."""
_ALL = -1
"""The rank of a state of all ranks, in JSON."""


class WindowRow(NamedTuple):
    """A window of a lane, and how many of its rows were delivered; ``DONE`` for all of them.

    In ``State.counts`` it is how many rows the window has.
    """

    lane: int
    window: int
    row: int


# --- the data and order that a state belongs to


class Data(NamedTuple):
    """The data and order of a state, as its JSON has them.

    Attributes:
        files: A digest of the paths, sizes, and etags or times of change of the files.
        content: A digest of the paths, sizes and contents of local files; None for other files,
            whose etags say as much.
        filters: A digest of the filters.
        order: All that decides the order beside files, filters and seed.
        seed: The seed of all permutations.
        version: The ids of the snapshot and of the schema of a table.
        splits: A digest of the splits that a strategy of the user's own has made for the epoch;
            None for other strategies, and before the first batch.
    """

    files: str
    content: str | None
    filters: str
    order: str
    seed: int
    version: tuple[int, int] | None
    splits: str | None

    def is_same(self, other: Data) -> bool:
        """Return True if both are of the same data and order."""
        same_files = self.files == other.files or self.content == other.content is not None
        splits = {self.splits, other.splits} - {None}  # None: a rank has not begun
        return same_files and self[2:-1] == other[2:-1] and len(splits) < 2


_NAMES: Mapping[str, str] = {
    "version": "the snapshots of the table, or its schemas,",
    "files": "the files (their paths, sizes or content)",
    "filters": "filters",
    "order": "shuffle, split_bytes, split_rows, split_strategy, mix or interleave (of a sampler: "
    "its kind, rows, buckets or options)",
    "seed": "the seed (shuffle_seed)",
}
"""The parts of a fingerprint that must be the same, as errors name them."""


def _no_content() -> None:
    return None


def _no_splits(epoch: int, lanes: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The data and order of a loader, with which those of a state are compared.

    Attributes:
        files, filters, order, seed, version: As in ``Data``.
        content: Returns the digest of the contents of local files. Called only when a state is
            taken, or when ``files`` differ: it reads the files.
        splits: Returns the digest of the splits that a strategy of the user's own makes for an
            epoch and a number of lanes.
    """

    files: str
    filters: str
    order: str
    seed: int
    version: tuple[int, int] | None = None
    content: Callable[[], str | None] = field(default=_no_content, compare=False, repr=False)
    splits: Callable[[int, int], str | None] = field(default=_no_splits, compare=False, repr=False)

    def of(self, state: State) -> Data:
        """Return the data and order as the JSON of a state has them."""
        splits = self.splits(state.epoch, state.first_lanes) if state.begun else None
        content = self.content()
        return Data(self.files, content, self.filters, self.order, self.seed, self.version, splits)

    def check(self, state: State) -> None:
        """Raise a StateMismatchError that names what is different in a state that was loaded.

        Local files whose times of change differ are the same if their content is.
        """
        theirs = state.data
        assert theirs is not None
        for name, words in _NAMES.items():
            found, mine = getattr(theirs, name), getattr(self, name)
            if found == mine:
                continue
            if name == "files" and theirs.content is not None and theirs.content == self.content():
                logger.info(
                    "the files were written again since the state was taken; their content is the "
                    "same"
                )
                continue
            raise StateMismatchError(
                f"the state was taken with other data or options: {words} differ "
                f"({found!r} in the state, {mine!r} here)"
            )
        if not state.begun or theirs.splits is None:  # None: a rank without batches was the first
            return
        epoch, lanes = state.epoch, state.first_lanes
        splits = self.splits(epoch, lanes)
        if splits != theirs.splits:
            raise StateMismatchError(
                "the state was taken with other data or options: split_strategy made other splits "
                f"for epoch {epoch} and {lanes} lanes ({theirs.splits!r} in the state, {splits!r} "
                "here); it must have the same parameters, and make the same splits whenever it is "
                "asked"
            )


# --- states


class RankShare(NamedTuple):
    """The ranks that share the batches of a plan, from some batch on.

    Attributes:
        taken: Number of batches that all ranks together had taken of the plan before.
        ranks: Number of ranks from then on.
        even: How the last batches were cut so that all ranks take equally many: "drop" and "pad" as
            in the option ``even``, "full" with ``drop_last``, "" if they were not cut.
    """

    taken: int = 0
    ranks: int = 1
    even: str = ""


class Pass(Protocol):
    """An iteration over the lanes of one rank."""

    def progress(
        self, lanes: Sequence[int]
    ) -> tuple[Mapping[int, Cursor], tuple[WindowRow, ...]]: ...
    @property
    def turn(self) -> int: ...
    @property
    def handed_over(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class State:
    """The position of one rank in an epoch, or of all of them.

    Attributes:
        epoch: The epoch.
        batch_size: Number of rows in a batch of its plan.
        lanes: Number of lanes of its plan.
        shares: The ranks that shared the plan, one after the other.
        rank: The rank; None if the state holds the lanes of all ranks.
        steps: Number of batches taken since the last share began, by this rank or by each rank.
        turns: Index of the lane of this rank, or of each rank, that is next.
        cursors: How far each of ``own_lanes`` has come. Empty before the first batch, and for a
            rank that goes on in place of others: its cursors follow from the number of steps.
        loose: Windows beyond the cursors of their lanes that other workers read.
        adaptive: True if workers read windows of each other; a lane then tells nothing of others.
        before: The state of all ranks in which an earlier plan of the epoch was given up; this plan
            is then that of the rest.
        counts: Lane, window and number of rows of the windows that were begun when the plan was
            given up; None where the plan knows all rows, and while it is in use.
        data: The data and order that it was loaded with, until something is read.
    """

    epoch: int
    batch_size: int
    lanes: int
    shares: tuple[RankShare, ...]
    rank: int | None
    steps: tuple[int, ...] = (0,)
    turns: tuple[int, ...] = (0,)
    cursors: tuple[Cursor, ...] = ()
    loose: tuple[WindowRow, ...] = ()
    adaptive: bool = False
    before: State | None = None
    counts: tuple[WindowRow, ...] | None = None
    data: Data | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks that share the plan now."""
        return self.shares[-1].ranks

    @property
    def plan_key(self) -> tuple[Any, ...]:
        """All that decides the plan, beside files, order and epoch."""
        return self.lanes, self.batch_size, self.shares, self.before

    @property
    def first_lanes(self) -> int:
        """Number of lanes of the first plan of the epoch."""
        return self.lanes if self.before is None else self.before.first_lanes

    @property
    def begun(self) -> bool:
        """True if any row of the epoch was delivered."""
        moved = any(map(any, self.cursors)) or any(self.steps) or self.shares[-1].taken > 0
        return moved or bool(self.loose) or self.before is not None

    @property
    def in_step(self) -> bool:
        """True if the state shows that all ranks have taken the same number of batches."""
        return len(set(self.steps)) == 1 and not self.adaptive

    @property
    def taken(self) -> int:
        """Number of batches of the plan that all ranks have taken, if they are in step."""
        return self.shares[-1].taken + self.steps[0] * self.ranks

    @property
    def own_lanes(self) -> range:
        """The lanes whose cursors this state holds."""
        if self.rank is None:
            return range(self.lanes)
        return range(self.rank, self.lanes, self.ranks)

    def cursor(self, lane: int) -> Cursor:
        """Return how far one of ``own_lanes`` has come."""
        return self.cursors[self.own_lanes.index(lane)] if self.cursors else START

    def after(self, running: Pass, repeated: int = 0) -> State:
        """Return the state of a pass that began here, and repeated ``repeated`` batches."""
        cursors, loose = running.progress(self.own_lanes)
        return replace(
            self,
            steps=(self.steps[0] + running.handed_over["batches"] + repeated,),
            turns=(running.turn,),
            cursors=tuple(map(cursors.__getitem__, self.own_lanes)),
            loose=loose,
            data=None,
        )

    def of_rank(self, rank: int) -> State:
        """Return the state of one of the ranks.

        The state of another rank stands for both: they took equally many batches, and no cursors
        are known.

        Raises:
            StateMismatchError: The state belongs to another rank, and does not determine this one.
        """
        if self.rank == rank:
            return self
        if self.rank is None:
            own = range(rank, self.lanes, self.ranks)
            return replace(
                self,
                rank=rank,
                steps=(self.steps[rank],),
                turns=(self.turns[rank],),
                cursors=self.cursors[rank :: self.ranks],
                loose=tuple(window for window in self.loose if window[0] in own),
            )
        if self.adaptive:
            raise StateMismatchError(
                f"the state is that of rank {self.rank}, and where workers take what they can "
                '(balance="adaptive") it says nothing of others: give every rank its own state, or '
                "all of them merge_states([...])"
            )
        return replace(self, rank=rank, cursors=())

    def goes_on(
        self, start: State, lanes: int | None, *, evenly: bool, in_step: bool
    ) -> State | None:
        """Return where readers go on in the plan of this state, which any others may have saved.

        If ranks and workers are as they were, a rank goes on in its own lanes. Other ranks share
        the global sequence of batches from the first one that was not taken: there the cursors are
        empty, and have to be computed from the number of batches.

        Args:
            start: The state in which these readers begin an epoch.
            lanes: Number of lanes in which they can share the batches of this plan; None if they
                cannot.
            evenly: True if the global sequence of batches is known, because the numbers of batches
                of the lanes differ by one at most.
            in_step: True if all ranks have to take the same number of batches.

        Returns:
            None if what is left has to be planned anew.

        Raises:
            StateMismatchError: The state does not determine this rank.
        """
        if not self.begun:
            return replace(start, epoch=self.epoch, lanes=lanes or start.lanes)
        if lanes is None:
            return None
        now, share = self.shares[-1], start.shares[0]
        same = now[1:] == share[1:] and self.adaptive == start.adaptive
        if same and (self.in_step or self.adaptive or not in_step):
            assert start.rank is not None
            return self.of_rank(start.rank)
        if not evenly or not self.in_step or start.adaptive:
            return None
        shares = (*self.shares, share._replace(taken=self.taken))
        return replace(start, epoch=self.epoch, lanes=lanes, shares=shares, before=self.before)

    # --- as JSON

    def as_json(self, fingerprint: Fingerprint | None = None) -> dict[str, Any]:
        """Return all that is needed to go on in a new process, safe for JSON.

        Its keys are always the same and none of its values is a dict: torch's distributed
        checkpoints load, of what was saved, the keys that a fresh loader's state has. "lanes" holds
        the cursor of each lane, "ranks" the rank and the shares of all ranks, "before" the state in
        which an earlier plan of the epoch was given up, "loose" the windows of workers that share
        lanes, and "plan" the data and order that ``Fingerprint.check`` compares.

        Args:
            fingerprint: The data and order. A state that was loaded keeps those it was loaded with.
        """
        merged, data = self.rank is None, self.data
        if data is None:
            assert fingerprint is not None
            data = fingerprint.of(self)
        state = {
            "version": VERSION,
            "epoch": self.epoch,
            "batch_size": self.batch_size,
            "steps": self.steps if merged else self.steps[0],
            "turn": self.turns if merged else self.turns[0],
            "lanes": self.cursors or [START] * len(self.own_lanes),
            "ranks": [_ALL if merged else self.rank, *self.shares],
            "before": _before_as_json(self.before),
            "loose": self.loose if self.adaptive else None,
            "plan": data[:-1],
            "splits": data.splits,
        }
        plain = {name: _plain(value) for name, value in state.items()}
        return {**plain, "checksum": _checksum(plain)}

    @classmethod
    def from_json(cls, state: object) -> State:
        """Return the state that JSON describes. ``Fingerprint.check`` compares its data.

        Raises:
            StateMismatchError: The value is not a state of this version, or was changed since it
                was taken.
        """
        plain = _checked(state)
        rank, *shares = plain["ranks"]
        merged = rank == _ALL
        cursors, loose = plain["lanes"], plain["loose"]
        files, content, filters, order, seed, version = plain["plan"]
        version = None if version is None else tuple(version)
        return cls(
            plain["epoch"],
            plain["batch_size"],
            len(cursors) * (1 if merged else shares[-1][1]),
            _tuples(RankShare, shares),
            None if merged else rank,
            tuple(plain["steps"]) if merged else (plain["steps"],),
            tuple(plain["turn"]) if merged else (plain["turn"],),
            _tuples(Cursor, cursors),
            _tuples(WindowRow, loose or ()),
            loose is not None,
            _before(plain["before"], plain["epoch"]),
            data=Data(files, content, filters, order, seed, version, plain["splits"]),
        )


def _before_as_json(state: State | None) -> list[Any]:
    """Return a state in which a plan was given up as plain values; see ``_before``."""
    if state is None:
        return []
    before = _before_as_json(state.before)
    return [state.batch_size, state.shares, state.cursors, state.loose, state.counts, before]


def _before(plain: list[Any], epoch: int) -> State | None:
    """Return the state in which a plan was given up; None of an empty list."""
    if not plain:
        return None
    size, shares, cursors, loose, counts, before = plain
    return State(
        epoch,
        size,
        len(cursors),
        _tuples(RankShare, shares),
        None,
        cursors=_tuples(Cursor, cursors),
        loose=_tuples(WindowRow, loose),
        before=_before(before, epoch),
        counts=None if counts is None else _tuples(WindowRow, counts),
    )


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks, in any order, to one that a job of any size can load.

    Args:
        states: What ``state_dict`` returned on each rank, after the same step.

    Returns:
        A state as JSON, for ``load_state_dict`` on every rank of the next job.

    Raises:
        StateMismatchError: They are not the states of all ranks of one job at one moment.

    Examples:
        Two ranks stop after a batch each, and one process goes on:

        >>> import pyarrow as pa
        >>> from headrace import ArrowDataset
        >>> table = pa.table({"x": range(8)})
        >>> def loader(**ranks):
        ...     return ArrowDataset.create_dataloader(table, batch_size=2, lanes=2, **ranks)[0]
        >>> ranks = [loader(rank=rank, world_size=2) for rank in range(2)]
        >>> [next(iter(one))["x"].tolist() for one in ranks]
        [[0, 1], [4, 5]]
        >>> alone = loader()
        >>> alone.load_state_dict(merge_states([one.state_dict() for one in ranks]))
        >>> [batch["x"].tolist() for batch in alone]
        [[2, 3], [6, 7]]
    """
    if not states:
        raise StateMismatchError("there are no states to merge")
    read = [State.from_json(state) for state in states]
    first = min(read, key=lambda state: state.epoch)
    if len(read) == 1 and (first.ranks == 1 or first.rank is None):
        return first.as_json()
    read = [_at_its_end(state, first) for state in read]
    assert first.data is not None
    for state in read:
        same = (state.epoch, state.plan_key) == (first.epoch, first.plan_key)
        if not same or state.data is None or not first.data.is_same(state.data):
            raise StateMismatchError(
                "states of different jobs, or of different moments of one, cannot be merged: "
                f"{first!r} and {state!r}"
            )
    by_rank = {state.rank: state for state in read}
    if len(read) != first.ranks or None in by_rank or len(by_rank) < len(read):
        found = [state.rank for state in read]
        raise StateMismatchError(
            f"a state of each of {first.ranks} ranks is needed, not of {found}"
        )
    ordered = [by_rank[rank] for rank in range(len(read))]
    splits = next((state.data.splits for state in read if state.data and state.data.splits), None)
    return replace(
        first,
        rank=None,
        steps=tuple(state.steps[0] for state in ordered),
        turns=tuple(state.turns[0] for state in ordered),
        cursors=tuple(ordered[lane % len(ordered)].cursor(lane) for lane in range(first.lanes)),
        loose=tuple(window for state in ordered for window in state.loose),
        adaptive=any(state.adaptive for state in ordered),
        data=first.data._replace(splits=splits),
    ).as_json()


def _at_its_end(state: State, other: State) -> State:
    """Return the state of a rank before the next epoch as one at the end of another rank's."""
    if state.epoch != other.epoch + 1 or state.begun or None in (state.rank, other.rank):
        return state
    # Any other number of steps would do: it shows that the ranks are not in step.
    ended = replace(other, rank=state.rank, steps=(other.steps[0] + 1,), turns=(0,), loose=())
    cursors = (Cursor(END),) * len(ended.own_lanes)
    return replace(ended, cursors=cursors, data=state.data)


# --- JSON: plain values, checked


_KEYS = (
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
    "checksum",
)
"""The keys of every state."""


def _checked(state: object) -> dict[str, Any]:
    """Return the items of a state as JSON has them; raise an error if they were changed."""
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"not a state of this library: {type(state).__name__}")
    plain = {name: _plain(state[name]) for name in _KEYS if name in state}
    if plain.get("version") != VERSION:
        raise StateMismatchError(
            f"not a state of this library, or of another version of it: {plain.get('version')!r} "
            f"where version {VERSION!r} is expected"
        )
    missing = [name for name in _KEYS if name not in plain]
    if missing:
        raise StateMismatchError(f"the state is damaged: it has no {', '.join(missing)}")
    if plain.pop("checksum") != _checksum(plain):
        raise StateMismatchError(
            "the state is damaged: its checksum is not that of its content, so something changed "
            "it after it was taken; load it as state_dict or merge_states returned it, or go on "
            "from an older one"
        )
    return plain


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: checkpoints make lists of tuples, and numbers of numpy."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        raise StateMismatchError(
            f"the state is damaged: it holds {type(value).__name__}, which no state has"
        ) from None


def _checksum(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


T = TypeVar("T")


def _tuples(make: Callable[..., T], values: Iterable[Sequence[Any]]) -> tuple[T, ...]:
    return tuple(starmap(make, values))
