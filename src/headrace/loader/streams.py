"""What is read from its first window to its last: a lane, or what is taken of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.model import FileList
from headrace.plan import Lane, Piece, Reading, lane_pieces, window_pieces
from headrace.stream import Cursor

__all__ = ["Chosen", "LaneStart", "Stream"]


@dataclass(frozen=True, slots=True)
class LaneStart:
    """A lane of an epoch, and where in it to begin."""

    lane: Lane
    cursor: Cursor = (0, 0)
    jobs_ahead: int | None = None

    @property
    def index(self) -> int:
        """The lane's number, by which its runs are asked for."""
        return self.lane.index

    def pieces(self, files: FileList, reading: Reading) -> Iterator[Piece]:
        """What is to be read, in order."""
        return lane_pieces(files, self.lane, reading, self.cursor)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some windows of a lane, from the first row of each."""

    lane: Lane
    windows: tuple[int, ...]
    cursor: Cursor = (-1, 0)
    jobs_ahead: int | None = None

    @property
    def index(self) -> int:
        """The lane's number."""
        return self.lane.index

    def pieces(self, files: FileList, reading: Reading) -> Iterator[Piece]:
        """Return what is to be read, in order."""
        for place, window in enumerate(self.windows):
            position = place / len(self.windows)
            yield from window_pieces(files, self.lane, window, reading, skip=0, position=position)


class Stream(Protocol):
    """Windows that are delivered one after the other: a lane, or what is taken of several."""

    @property
    def index(self) -> int: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def jobs_ahead(self) -> int | None:
        """Pieces that may be begun at a time; None: as many as do good."""
        ...

    def pieces(self, files: FileList, reading: Reading) -> Iterator[Piece]: ...
