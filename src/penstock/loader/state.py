"""Where a loader is: a few integers a lane, and what they refer to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import StateMismatchError
from penstock.model import FileList
from penstock.stream import Cursor

__all__ = ["Fingerprint", "Position"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a position is a position in."""

    files: str
    filters: str
    order: str
    batch_size: int
    seed: int

    @classmethod
    def of(
        cls,
        files: FileList,
        roots: Sequence[str],
        *,
        filters: object,
        order: str,
        batch_size: int,
        seed: int,
    ) -> Fingerprint:
        """Files count by their path below the roots, size, and etag or time of change."""
        digest = hashlib.sha256()
        for path, size, etag in zip(files.paths, files.sizes.tolist(), files.etags, strict=True):
            digest.update(f"{_below(path, roots)}\0{size}\0{etag}\n".encode())
        known = "" if filters is None else hashlib.sha256(str(filters).encode()).hexdigest()[:8]
        return cls(digest.hexdigest()[:12], known, order, batch_size, seed)

    def as_dict(self) -> dict[str, Any]:
        """The parts by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def check(self, other: Mapping[str, Any]) -> None:
        """Raise a StateMismatchError that says what is different."""
        meaning = {
            "files": "the files (their paths, sizes or times of change)",
            "filters": "filters",
            "order": "shuffle, split_bytes, split_rows, split_strategy or mix",
            "batch_size": "batch_size",
            "seed": "shuffle_seed",
        }
        for name, mine in self.as_dict().items():
            if other.get(name) != mine:
                raise StateMismatchError(
                    f"the state was taken with other data or options: {meaning[name]} differ "
                    f"({other.get(name)!r} in the state, {mine!r} here)"
                )


def _below(path: str, roots: Sequence[str]) -> str:
    inside = [root for root in roots if path.startswith(root)]
    return path[len(max(inside, key=len, default="")) :]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an epoch: every lane's cursor, and whose turn it is."""

    epoch: int
    turn: int
    cursors: tuple[Cursor, ...]

    @classmethod
    def start(cls, epoch: int, lanes: int) -> Position:
        """The first batch of an epoch."""
        return cls(epoch, 0, ((0, 0),) * lanes)

    def as_state(self, fingerprint: Fingerprint) -> dict[str, Any]:
        """JSON-safe, and all that is needed to go on in a new process."""
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "turn": self.turn,
            "lanes": [list(cursor) for cursor in self.cursors],
            "plan": fingerprint.as_dict(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], fingerprint: Fingerprint) -> Position:
        """The place that a state describes, if it is one in this data and this order."""
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
            raise StateMismatchError(
                f"not a state of this library, or of another version of it: {found!r} "
                f"where {VERSION!r} is expected"
            )
        plan, lanes = state.get("plan"), state.get("lanes")
        if not isinstance(plan, Mapping) or not isinstance(lanes, list | tuple) or not lanes:
            raise StateMismatchError(f"the state is damaged: plan is {plan!r}, lanes are {lanes!r}")
        fingerprint.check(plan)
        for name in ("epoch", "turn"):
            if not _is_count(state.get(name)):
                raise StateMismatchError(f"the state is damaged: {name} is {state.get(name)!r}")
        for cursor in lanes:
            if not _is_cursor(cursor):
                raise StateMismatchError(f"the state is damaged: a lane is at {cursor!r}")
        cursors = tuple((window, row) for window, row in lanes)
        return cls(state["epoch"], state["turn"], cursors)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_cursor(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_count, value))
