"""Whether what lies in front of a payload is its header: a tar of the same size may be another."""

from __future__ import annotations

import numpy as np

from penstock.archives.tar.headers import (
    BLOCK,
    MEMBER_KINDS,
    HeaderError,
    decoded,
    header_name,
    header_size,
)
from penstock.archives.tar.index import TarIndex
from penstock.errors import StaleIndexError
from penstock.model import DataFileInfo
from penstock.storage import LocalStore

__all__ = ["check_header", "check_some_headers"]

_LOOKED_AT = 8
_LONGEST_NAME = 100
_LARGEST_OCTAL = 8 << 30
"""names and sizes beyond these stand in an extended header, further in front"""


def check_some_headers(file: DataFileInfo, index: TarIndex) -> None:
    """Look at the headers of a few members of a tar of this machine, the last one among them."""
    if not len(index):
        return
    some = np.unique(np.linspace(0, len(index) - 1, _LOOKED_AT).astype(np.int64))
    with LocalStore().open(file) as opened:
        for member in some.tolist():
            block = opened.read_at(BLOCK, int(index.offsets[member]) - BLOCK)
            check_header(file.path, index, member, block)


def check_header(path: str, index: TarIndex, member: int, block: bytes) -> None:
    """Refuse an index if a block is not the header of the member that it has there."""
    if not _fits(block, index.name(member), int(index.sizes[member])):
        raise StaleIndexError(
            f"{path}: there is no header of {index.name(member)!r} before byte "
            f"{int(index.offsets[member]):,}: the index is not that of this tar; make it anew "
            "with: penstock index"
        )


def _fits(block: bytes, name: str, size: int) -> bool:
    try:
        said = header_size(block) if len(block) == BLOCK else -1
    except HeaderError:
        return False
    if (said != size and size < _LARGEST_OCTAL) or block[156] not in MEMBER_KINDS:
        return False
    if len(name) > _LONGEST_NAME or not name.isascii():
        return True
    return _base(name) == _base(decoded(header_name(block)))


def _base(name: str) -> str:
    """Folders are left out, for some indices do not have those that all members share."""
    return name.rpartition("/")[2]
