"""What a state refers to: data and options that must be the same when it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import StateMismatchError

__all__ = ["Fingerprint", "same_data"]

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
