"""Files that appear, or change, in one step and whole."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from headrace.errors import WriteError
from headrace.storage.file_locks import close_locked, locked

__all__ = ["clear_partial", "replaced_file", "turn_in_folder"]

_PARTIAL = ".partial"


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes this path when it is on the disk, with the mode of the old.

    Until then, and if anything is raised, what was there stays. A kill leaves one file that ends
    in ``.partial``, which the next to write to this path takes over.
    """
    target = os.path.realpath(path)
    try:
        with _partial(target) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError):
                    os.chmod(file.name, os.stat(target).st_mode & 0o7777)
                os.replace(file.name, target)
            except BaseException:  # as long as the lock is held: behind it the name is another's
                os.unlink(file.name)
                raise
    except OSError as failed:
        raise WriteError(f"{os.fspath(path)} cannot be written: {failed}") from failed


def _partial(target: str) -> BinaryIO:
    """An empty file beside a target that nobody else writes to."""
    while True:
        file = open(target + _PARTIAL, "ab")  # noqa: SIM115  # whoever writes to it closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # not every network file system has locks
            file.close()
            return open(f"{target}.{secrets.token_hex(6)}{_PARTIAL}", "xb")
        if _is_at(file, target + _PARTIAL):
            file.truncate(0)
            return file
        file.close()  # whoever had the lock before has put it into its place


def _is_at(file: BinaryIO, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def clear_partial(path: str | os.PathLike[str]) -> None:
    """Remove what a killed process left beside a file that it was to replace."""
    aside = os.path.realpath(path) + _PARTIAL
    how = fcntl.LOCK_EX | fcntl.LOCK_NB
    with suppress(OSError), open(aside, "rb") as file, locked(file, how):
        if _is_at(file, aside):
            os.unlink(aside)


@contextmanager
def turn_in_folder(folder: str) -> Iterator[None]:
    """Wait until nobody else changes indices in this folder; where it cannot be locked, do not."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system locks folders
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        close_locked(opened)
