"""What a state refers to: data and options that must be the same when it is loaded."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import StateMismatchError
from penstock.model import FileList

__all__ = ["Fingerprint"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a position is a position in."""

    files: str
    filters: str
    order: str
    seed: int

    @classmethod
    def of(
        cls, files: FileList, roots: Sequence[str], *, filters: object, order: str, seed: int
    ) -> Fingerprint:
        """Files count by their path below the roots, size, and etag or time of change."""
        digest = hashlib.sha256()
        for path, size, etag in zip(files.paths, files.sizes.tolist(), files.etags, strict=True):
            digest.update(f"{_below(path, roots)}\0{size}\0{etag}\n".encode())
        # Not its text, which leaves out the middle of a long list.
        known = "" if filters is None else hashlib.sha256(pickle.dumps(filters)).hexdigest()[:8]
        return cls(digest.hexdigest()[:12], known, order, seed)

    def as_list(self) -> list[Any]:
        """The parts in their order."""
        return [getattr(self, name) for name in self.__slots__]

    def check(self, other: object) -> None:
        """Raise a StateMismatchError that says what is different."""
        if not isinstance(other, list | tuple) or len(other) != len(self.__slots__):
            raise StateMismatchError(f"the state is damaged: plan is {other!r}")
        meaning = {
            "files": "the files (their paths, sizes or times of change)",
            "filters": "filters",
            "order": "shuffle, split_bytes, split_rows, split_strategy, mix or interleave",
            "seed": "shuffle_seed",
        }
        for (name, what), theirs in zip(meaning.items(), other, strict=True):
            mine = getattr(self, name)
            if theirs != mine:
                raise StateMismatchError(
                    f"the state was taken with other data or options: {what} differ "
                    f"({theirs!r} in the state, {mine!r} here)"
                )


def _below(path: str, roots: Sequence[str]) -> str:
    inside = [root for root in roots if path.startswith(root)]
    return path[len(max(inside, key=len, default="")) :]
