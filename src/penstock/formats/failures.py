"""Turning what decoders raise into errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import PenstockError, ReadError

__all__ = ["naming"]


@contextmanager
def naming(place: object, *also: type[Exception]) -> Iterator[None]:
    """Raise what pyarrow, the system or ``also`` raise inside as a ReadError of ``place``.

    Running out of memory stays what it is: it is not the file's fault.
    """
    try:
        yield
    except (PenstockError, MemoryError):
        raise
    except (pa.ArrowException, OSError, *also) as error:
        raise ReadError(f"{place}: {str(error) or type(error).__name__}") from error
