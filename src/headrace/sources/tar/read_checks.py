"""Whether members that are read from a tar of this machine lie where its index says.

When an index is loaded only a few headers are compared with it. The header of each other member
is compared when the member is first read. As long as a tar is open it does not change: then once
is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from headrace.errors import StaleIndexError
from headrace.model import DataFileInfo
from headrace.sources.tar.headers import BLOCK
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.spot_checks import check_all_headers, first_misfit, refuse_member
from headrace.storage import LocalStore

if TYPE_CHECKING:
    from headrace.sources.tar.payloads import MappedTar

__all__ = ["check_headers", "check_places", "starts_of", "unchecked"]

_FEW = 8
"""members that are looked up one by one"""
_refused: WeakKeyDictionary[TarIndex, bool] = WeakKeyDictionary()
"""indices that have members which their tars do not have"""


def unchecked(index: TarIndex, members: Sequence[int]) -> list[int]:
    """Return those of some members whose headers were not compared with the index yet."""
    if len(members) <= _FEW:
        is_unchecked = index.unchecked.item
        return [member for member in members if is_unchecked(member)]
    wanted = np.asarray(members)
    left: list[int] = wanted[index.unchecked[wanted]].tolist()
    return left


def starts_of(index: TarIndex, members: list[int]) -> list[int]:
    """Return where the headers of members lie."""
    if len(members) <= _FEW:
        offset_of = index.offsets.item
        return [offset_of(member) - BLOCK for member in members]
    starts: list[int] = (index.offsets[members] - BLOCK).tolist()
    return starts


def check_headers(
    tar: MappedTar,
    file: Callable[[], DataFileInfo],
    index: TarIndex,
    members: list[int],
    blocks: list[bytes],
) -> None:
    """Refuse an index if the blocks in front of members are not their headers.

    Args:
        tar: The tar.
        file: Returns the file that the tar is.
        index: The index of the tar.
        members: Members of the index.
        blocks: The block in front of the payload of each.

    Raises:
        StaleIndexError: There is the header of another member in front of one, or none.
    """
    wrong = first_misfit(index, members, blocks, lambda start, stop: _piece(tar, start, stop))
    if wrong is None:
        index.unchecked[members] = False
        return
    # A header at the beginning of a tar may name all members: only a walk over it knows.
    if index not in _refused:
        try:
            check_all_headers(LocalStore(), file(), index)
            return
        except StaleIndexError:
            _refused[index] = True
    refuse_member(file().path, index, wrong)


def check_places(
    tar: MappedTar, file: Callable[[], DataFileInfo], index: TarIndex, members: Sequence[int]
) -> None:
    """The same for members whose payloads somebody else reads."""
    left = unchecked(index, members)
    if left:
        blocks = tar.read(starts_of(index, left), [BLOCK] * len(left))
        check_headers(tar, file, index, left, blocks)


def _piece(tar: MappedTar, start: int, stop: int) -> bytes:
    return tar.read([start], [stop - start])[0]
