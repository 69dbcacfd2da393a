"""Every error this library raises on purpose.

    HeadraceError
    ├── OptionError (ValueError)            an argument is wrong, or two contradict
    │   └── UnknownOptionError (TypeError)  the keyword does not exist
    ├── NothingFoundError (FileNotFoundError)   a location holds no data file
    ├── SchemaError (ValueError)            columns or types that do not fit together
    ├── PlanError (ValueError)              a strategy loses or repeats rows
    ├── ReadError (OSError)                 a file cannot be read
    │   ├── FileChangedError                it is not the file that was discovered
    │   ├── StaleIndexError                 an index does not match its archive, or is damaged
    │   └── AccessDeniedError (PermissionError)   a store denies access
    ├── WriteError (OSError)                something cannot be written
    ├── ConversionError (ValueError)        a value has no place in the output type
    ├── DeviceMemoryError (MemoryError)     the device has no room for what is read ahead
    ├── StateMismatchError (ValueError)     a state of other data or other options
    ├── RankMismatchError (RuntimeError)    ranks of one job do not read the same data
    ├── WorkerError (RuntimeError)          a worker process died, or cannot be sent its work
    └── MissingExtraError (ImportError)     an optional dependency is not installed

and one warning, SkippedDataWarning, for what is left out because that was asked for.

A message says what happened, where, and what to do. Every error carries its
message as its only positional argument, so that it crosses process borders.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

__all__ = [
    "AccessDeniedError",
    "ConversionError",
    "DeviceMemoryError",
    "FileChangedError",
    "HeadraceError",
    "MissingExtraError",
    "NothingFoundError",
    "OptionError",
    "PlanError",
    "RankMismatchError",
    "ReadError",
    "SchemaError",
    "SkippedDataWarning",
    "StaleIndexError",
    "StateMismatchError",
    "UnknownOptionError",
    "WorkerError",
    "WriteError",
]


class HeadraceError(Exception):
    """The base class of all errors of this library."""


class OptionError(HeadraceError, ValueError):
    """An argument has a wrong type or value, or contradicts another."""


class UnknownOptionError(OptionError, TypeError):
    """A keyword does not exist; the message names similar ones."""


class NothingFoundError(HeadraceError, FileNotFoundError):
    """A path, directory or glob matches no data file."""


class SchemaError(HeadraceError, ValueError):
    """A column is missing or ambiguous, or types cannot be brought together."""


class PlanError(HeadraceError, ValueError):
    """A split strategy loses, repeats or invents rows."""


class ReadError(HeadraceError, OSError):
    """A file cannot be read; the message names the file, the rows and the cause."""


class FileChangedError(ReadError):
    """A file changed or vanished after it was discovered."""


class StaleIndexError(ReadError):
    """An index does not fit the archive that it is of; reading by it would give wrong bytes."""


class AccessDeniedError(ReadError, PermissionError):
    """A store denies access, or there are no credentials for it."""


class WriteError(HeadraceError, OSError):
    """Data cannot be written; the message names the place and the cause, and how to go on."""


class ConversionError(HeadraceError, ValueError):
    """A value cannot be represented in the output type of its column."""


class DeviceMemoryError(HeadraceError, MemoryError):
    """The device has no room for the rows that are read ahead."""


class StateMismatchError(HeadraceError, ValueError):
    """A state was taken on other data or with other options."""


class RankMismatchError(HeadraceError, RuntimeError):
    """The ranks of a job see different files, or were given different options."""


class WorkerError(HeadraceError, RuntimeError):
    """A worker process died, or what it runs cannot be sent to it."""


class MissingExtraError(HeadraceError, ImportError):
    """An optional dependency is missing; the message holds the install command."""

    @classmethod
    def for_extra(cls, extra: str, module: str) -> MissingExtraError:
        """Return the error for ``module``, which the extra ``extra`` installs."""
        return cls(f'{module} is not installed; run: pip install "headrace[{extra}]"')


class SkippedDataWarning(UserWarning):
    """A file, chunk or row could not be read and was left out (``on_error="skip"``)."""


def near_names(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return a remark on what may have been meant by a wrong name, for the end of a message.

    Args:
        name: The wrong name.
        known: The existing names.
        otherwise: The remark if no name is near; by default some of the names that there are.
    """
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    if otherwise is not None:
        return otherwise
    shown = ", ".join(map(repr, names[:20]))
    return f"there are {shown}{', …' if len(names) > 20 else ''}"


def no_column(name: str, known: Iterable[str]) -> SchemaError:
    """Return the error for a column that is not among the known ones."""
    return SchemaError(f"there is no column {name!r}; {near_names(name, known)}")


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
