"""Local files that appear in one step and whole, and locks between processes.

Every file of the library that another process may read while it is written goes through
``atomic_write``; every lock between processes is a ``file_lock``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

__all__ = ["atomic_write", "file_lock", "flush_directory", "remove_partial"]

_PARTIAL = ".partial"
_POLL_S = 0.01


def file_lock(path: str | os.PathLike[str], *, wait: bool = True) -> BaseFileLock:
    """Return a lock that processes of a machine hold one at a time, as a context manager.

    The lock ends with the process that holds it, also if that is killed. A child that is forked
    meanwhile does not hold it.

    Args:
        path: The file that is locked. It is made if it does not exist, and stays.
        wait: Wait for the lock. If False, entering raises BlockingIOError while it is held.
    """
    kind = FileLock if wait else _ImpatientLock
    return kind(path, mode=0o600, poll_interval=_POLL_S, thread_local=False)


class _ImpatientLock(FileLock):
    def __enter__(self) -> _ImpatientLock:
        try:
            self.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(f"{self.lock_file} is locked by another process") from None
        return self


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; after the block the file there takes the place of ``path``.

    It is on the disk before it does, and keeps the mode of the file that it replaces. If the block
    raises, the file that was there stays. A process that is killed leaves a file that ends in
    ``.partial``, which the next writer of ``path`` overwrites. Writers of one path wait for each
    other.

    Args:
        path: The file to write. Of a symbolic link the file that it names is replaced.

    Raises:
        OSError: Its folder does not exist, or cannot be written to.

    Example:
        >>> from pathlib import Path
        >>> folder = getfixture("tmp_path")
        >>> with atomic_write(folder / "index.bin") as partial:
        ...     _ = partial.write_bytes(b"content")
        >>> [file.name for file in folder.iterdir()]
        ['index.bin']
    """
    target, partial, lock = _names(path)
    os.stat(target.parent)  # or the lock would make a folder that does not exist
    with file_lock(lock):
        try:
            partial.unlink(missing_ok=True)
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                partial.chmod(target.stat().st_mode & 0o7777)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
            # Others that wait for this file notice that it is gone, and make a new one.
            lock.unlink(missing_ok=True)
    flush_directory(target.parent)


def remove_partial(path: str | os.PathLike[str]) -> None:
    """Remove what a killed process left of ``atomic_write(path)``; a live writer is left alone."""
    _, partial, lock = _names(path)
    if os.path.exists(partial) or os.path.exists(lock):
        with suppress(OSError), file_lock(lock, wait=False):
            partial.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def flush_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory last through a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _names(path: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Return a file, the file that is written in its stead, and the lock of both."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + _PARTIAL)
    return target, partial, target.with_name(f".{target.name}.lock")
