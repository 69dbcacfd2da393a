"""Turning what writing raises into errors that name the place and the way to go on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.errors import HeadraceError, WriteError

__all__ = ["writing"]

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(place: object) -> Iterator[None]:
    """Raise what pyarrow or the system raise inside as a WriteError of ``place``.

    Running out of memory stays what it is.
    """
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except (pa.ArrowException, OSError) as error:
        said = str(error) or type(error).__name__
        room = isinstance(error, OSError) and error.errno in _NO_ROOM
        cure = "make room" if room else "mend that"
        raise WriteError(
            f"{place} cannot be written: {said}; {cure} and run the same again: it goes on "
            "where it stopped"
        ) from error
