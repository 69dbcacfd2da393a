"""Where a copy goes, where it is made ready, and who is told how far it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from headrace.storage.access import protocol_of
from headrace.storage.listing import named_locations

__all__ = ["PathLike", "Progress", "nobody", "target_location", "work_directory"]

PathLike = str | os.PathLike[str]

Progress = Callable[[str, float], None]
"""called with what is being done, and how much of it is, from 0 to 1"""


def nobody(stage: str, share: float) -> None:
    """Is told of the progress if no one wants to know."""


def target_location(target: PathLike) -> str:
    """A target as it is called from here on."""
    (location,) = named_locations(target, as_they_are=False)
    return location.rstrip("/") or location


def work_directory(given: PathLike | None, location: str, kind: str) -> Path:
    """Beside a target on this machine, under a hidden name, else where caches are kept."""
    if given is not None:
        return Path(os.path.abspath(os.path.expanduser(given)))
    if not protocol_of(location):
        real = Path(os.path.realpath(location))
        return real.with_name(f".{real.name}.headrace-work")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(location.encode()).hexdigest()[:16]
    return Path(cache, "headrace", kind, name)
