"""What a state refers to: data and options that must be the same when it is loaded."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import StateMismatchError
from headrace.model import FileList

__all__ = ["Fingerprint"]

_PARTS = ("files", "filters", "order", "seed", "version")
"""those that a state lists, in order"""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a position is a position in."""

    files: str
    filters: str
    order: str
    seed: int
    version: tuple[int, int] | None
    """of a table: its snapshot and schema"""
    splits_digest: Callable[[int, int], str | None] = field(compare=False, repr=False)
    """returns a digest of the splits that a strategy of the user's own makes for an epoch and a
    number of lanes; None for the strategies of the library"""

    @classmethod
    def of(
        cls,
        files: FileList,
        roots: Sequence[str],
        *,
        filters: object,
        order: str,
        seed: int,
        version: tuple[int, int] | None = None,
        splits_digest: Callable[[int, int], str | None],
    ) -> Fingerprint:
        """Files count by their path below the roots, size, and etag or time of change."""
        digest = hashlib.sha256()
        for path, size, etag in zip(files.paths, files.sizes.tolist(), files.etags, strict=True):
            digest.update(f"{_below(path, roots)}\0{size}\0{etag}\n".encode())
        if version is not None:  # of a file of a table there may be other rows left by now
            digest.update(files.counts.tobytes())
        # Not its text, which leaves out the middle of a long list.
        known = "" if filters is None else hashlib.sha256(pickle.dumps(filters)).hexdigest()[:8]
        return cls(digest.hexdigest()[:12], known, order, seed, version, splits_digest)

    def as_list(self) -> list[Any]:
        """The parts in their order."""
        version = None if self.version is None else list(self.version)
        return [self.files, self.filters, self.order, self.seed, version]

    @staticmethod
    def version_of(state: object) -> tuple[int, int] | None:
        """The version of a table that a state was taken of, if it is one and says so."""
        plan = state.get("plan") if isinstance(state, Mapping) else None
        if not isinstance(plan, list | tuple) or len(plan) != len(_PARTS):
            return None
        version = plan[-1]
        if not isinstance(version, list | tuple) or [type(one) for one in version] != [int, int]:
            return None
        return version[0], version[1]

    @staticmethod
    def order_in(state: object) -> object:
        """Return the description of the order in a state, if it has one."""
        plan = state.get("plan") if isinstance(state, Mapping) else None
        if not isinstance(plan, list | tuple) or len(plan) != len(_PARTS):
            return None
        return plan[_PARTS.index("order")]

    def check(self, other: object) -> None:
        """Raise a StateMismatchError that says what is different."""
        if not isinstance(other, list | tuple) or len(other) != len(_PARTS):
            raise StateMismatchError(f"the state is damaged: plan is {other!r}")
        meaning = {
            "version": "the snapshots of the table, or its schemas,",
            "files": "the files (their paths, sizes or times of change)",
            "filters": "filters",
            "order": "shuffle, split_bytes, split_rows, split_strategy, mix or interleave",
            "seed": "shuffle_seed",
        }
        mine_by_name = dict(zip(_PARTS, self.as_list(), strict=True))
        theirs_by_name = dict(zip(_PARTS, other, strict=True))
        for name, what in meaning.items():
            mine, theirs = mine_by_name[name], theirs_by_name[name]
            if theirs != mine:
                raise StateMismatchError(
                    f"the state was taken with other data or options: {what} differ "
                    f"({theirs!r} in the state, {mine!r} here)"
                )

    def check_splits(self, other: object, epoch: int, lanes: int) -> None:
        """Raise a StateMismatchError if a strategy of the user's own makes other splits now."""
        mine = self.splits_digest(epoch, lanes)
        if mine != other:
            raise StateMismatchError(
                "the state was taken with other data or options: split_strategy made other splits "
                f"for epoch {epoch} and {lanes} lanes ({other!r} in the state, {mine!r} here); it "
                "must have the same parameters, and make the same splits whenever it is asked"
            )


def _below(path: str, roots: Sequence[str]) -> str:
    inside = [root for root in roots if path.startswith(root)]
    return path[len(max(inside, key=len, default="")) :]
