"""Refusing to write into what is being read."""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.errors import OptionError
from headrace.storage.access import protocol_of

__all__ = ["refuse_overlap"]


def refuse_overlap(files: Iterable[str], locations: Iterable[str], target: str) -> None:
    """Raise an OptionError if the target holds files of the source, or is in its directory."""
    goal = _comparable(target)
    for path in files:
        if _inside(_comparable(path), goal):
            raise OptionError(
                f"the source file {path} is inside the target {target}; choose another target"
            )
    for location in locations:
        place = _comparable(location)
        if (protocol_of(location) or os.path.isdir(place)) and _inside(goal, place):
            raise OptionError(
                f"the target {target} is inside the source {location}, which would then hold "
                "every row twice; choose another target"
            )


def _comparable(location: str) -> str:
    return location.rstrip("/") if protocol_of(location) else os.path.realpath(location)


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
