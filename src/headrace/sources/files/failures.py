"""Turning what decoders raise into errors that name the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.errors import AccessDeniedError, FileChangedError, HeadraceError, ReadError

__all__ = ["DATA_ERRORS", "may_be_skipped", "naming"]

DATA_ERRORS = (
    HeadraceError,
    ValueError,
    OSError,
    EOFError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
)
"""Errors that a decoder raises because of a value, rather than because it is wrong itself."""


def may_be_skipped(error: ReadError) -> bool:
    """Return True if ``on_error="skip"`` leaves out data with this error.

    That is for data which is broken or cannot be had. Where all of it is denied, or is no longer
    what was planned, going on would be training on next to nothing, or on something else.
    """
    return not isinstance(error, AccessDeniedError | FileChangedError)


@contextmanager
def naming(place: object, *also: type[Exception]) -> Iterator[None]:
    """Raise what pyarrow, the system or ``also`` raise inside as a ReadError of ``place``.

    Running out of memory stays what it is: it is not the file's fault.
    """
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except (pa.ArrowException, OSError, *also) as error:
        raise ReadError(f"{place}: {str(error) or type(error).__name__}") from error
