"""Turn errors of decoders into errors that name the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.errors import AccessDeniedError, FileChangedError, HeadraceError, ReadError

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
"""Errors that a decoder raises because of a value, and not because of a mistake in the decoder."""


def may_be_skipped(error: ReadError) -> bool:
    """Return True if ``on_error="skip"`` leaves out data with this error.

    This holds for data which is broken or missing. If all data is denied, or has changed since it
    was planned, training would go on with next to nothing, or with something else.
    """
    return not isinstance(error, AccessDeniedError | FileChangedError)


@contextmanager
def naming(place: object, *also: type[Exception]) -> Iterator[None]:
    """Raise errors of pyarrow, of the system or of ``also`` in the context as a ReadError.

    A MemoryError is not changed, because the file is not its cause.
    """
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except (pa.ArrowException, OSError, *also) as error:
        raise ReadError(f"{place}: {str(error) or type(error).__name__}") from error
