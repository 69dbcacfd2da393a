"""The locations to which copies are written, and the errors of writing there."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, OptionError, WriteError
from headrace.storage import file_lock, named_locations, protocol_of

PathLike = str | os.PathLike[str]

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def target_location(target: PathLike) -> str:
    """Return a target as an absolute path or a URL, without a slash at its end."""
    (location,) = named_locations(target, as_they_are=False)
    try:
        location.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{location!r} is not UTF-8, which the libraries that write files require; choose "
            "another target"
        ) from None
    return location.rstrip("/") or location


def work_directory(given: PathLike | None, location: str) -> Path:
    """Return the folder for the journal and unfinished files of a copy.

    It is beside a local target, under a hidden name, or else in the cache folder.
    """
    if given is not None:
        return Path(os.path.abspath(os.path.expanduser(given)))
    if not protocol_of(location):
        real = Path(os.path.realpath(location))
        return real.with_name(f".{real.name}.headrace-work")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(location.encode()).hexdigest()[:16]
    return Path(cache, "headrace", "copies", name)


@contextmanager
def writing(place: object, *failures: type[Exception]) -> Iterator[None]:
    """Raise errors of pyarrow and of the system as a WriteError that names ``place``.

    Running out of memory stays a MemoryError.

    Args:
        place: What is written.
        *failures: The errors of the library that writes. They are not shown as the cause, since
            they may hold credentials.
    """
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except (pa.ArrowException, OSError, *failures) as error:
        raise write_error(place, error) from None if failures else error


def write_error(place: object, error: object) -> WriteError:
    """Return an error that says what cannot be written, and how to continue."""
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    return WriteError(
        f"{place} cannot be written: {str(error) or type(error).__name__}; "
        f"{'free some space' if full else 'correct that'} and run the same command again: it "
        "continues where it stopped"
    )


def not_empty(location: object, change: str = "replace everything in it") -> OptionError:
    """Return the error for a target that holds data; ``change`` is what overwriting does."""
    return OptionError(
        f"{location} is not empty; choose another target, or give overwrite=True to {change}"
    )


def locked(directory: Path, name: str) -> Any:
    """Make a directory and lock a file in it, so that no other process works there."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = file_lock(directory / name, wait=False)
        try:
            lock.__enter__()
        except TimeoutError:
            raise WriteError(
                f"another process is working in {directory}; wait until it has finished"
            ) from None
        return lock
