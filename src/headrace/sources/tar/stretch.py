"""Members that follow each other in a tar, and whether their headers are right."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.sources.tar.headers import (
    BLOCK,
    decoded,
    first_broken,
    header_names,
    header_rows,
)

__all__ = ["BrokenTar", "Headers", "Stretch", "checked"]


class BrokenTar(Exception):
    """A tar cannot be walked over any further; what it has before that is good."""

    def __init__(self, reason: str, at: int, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at
        self.refused = refused
        """the tar may be whole, but holds what cannot be indexed"""


@dataclass(slots=True)
class Stretch:
    """Members that follow each other in a tar, as columns."""

    names: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    """the first bytes of payloads, as far as they came with the header; only where wanted"""
    digests: list[str] = field(default_factory=list)
    """only where members are hashed"""
    has_end: bool = True
    """the tar does not end here without a mark"""

    def cut(self, count: int) -> None:
        for column in (self.names, self.offsets, self.sizes, self.heads, self.digests):
            del column[count:]


@dataclass(slots=True)
class Headers:
    """The headers of a stretch, which are checked all at once."""

    of_members: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """of the others"""
    named: dict[int, bytes] = field(default_factory=dict)
    """members whose names do not stand in their headers"""


def checked(stretch: Stretch, headers: Headers, tar_size: int) -> BrokenTar | None:
    """Name the members; cut off what comes after a header that is not right, or breaks off."""
    rows = header_rows(headers.of_members)
    broken = _first_wrong(rows, stretch, headers)
    if broken is not None:
        stretch.cut(bisect_left(stretch.offsets, broken.at))
    stretch.names = header_names(rows[: len(stretch.offsets)])
    for member, name in headers.named.items():
        if member < len(stretch.names):
            stretch.names[member] = name
    if stretch.offsets and stretch.offsets[-1] + stretch.sizes[-1] > tar_size:
        last, at = decoded(stretch.names[-1]), stretch.offsets[-1]
        stretch.cut(len(stretch.offsets) - 1)
        broken = BrokenTar(f"it breaks off in member {last!r}", at)
    return broken


def _first_wrong(
    rows: npt.NDArray[np.uint8], stretch: Stretch, headers: Headers
) -> BrokenTar | None:
    member, other = first_broken(rows), first_broken(header_rows(headers.others))
    places = [] if member is None else [stretch.offsets[member] - BLOCK]
    if other is not None:
        places.append(headers.places[other])
    if not places:
        return None
    return BrokenTar("the header there does not have its checksum", min(places))
