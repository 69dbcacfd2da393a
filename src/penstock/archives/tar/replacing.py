"""Files that appear, or change, in one step and whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from penstock.errors import WriteError

__all__ = ["replaced_file"]


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes this path when it is on the disk, with the mode of the old.

    Until then, and if anything is raised, what was there stays.
    """
    target = os.path.realpath(path)
    aside = f"{target}.{secrets.token_hex(6)}.partial"
    try:
        with open(aside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            os.chmod(aside, os.stat(target).st_mode & 0o7777)
        os.replace(aside, target)
    except OSError as failed:
        raise WriteError(f"{os.fspath(path)} cannot be written: {failed}") from failed
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)
