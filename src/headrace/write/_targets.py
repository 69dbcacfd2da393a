"""Targets of copies: what one is, its options, and the kinds by name.

A target takes numbered parts that no reader sees, and shows all of them in one step. Parts are
written by any process; the step can be repeated after a kill.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import HeadraceError, OptionError, WriteError
from headrace.options import CopyOptions
from headrace.storage import Options, named_locations, protocol_of

PathLike = str | os.PathLike[str]
Receipt = dict[str, Any]
"""The facts of a part that a target needs for its commit: JSON, with the number of ``rows``."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The options of a target.

    Attributes:
        location: An absolute path or a URL, without a slash at the end.
        work_dir: A directory of this machine for what is on its way.
        overwrite: True if what is there may be replaced.
        compression: The name of a compression; None for the target's own choice.
        storage_options: Credentials and the like.
    """

    location: str
    work_dir: Path
    overwrite: bool = False
    compression: str | None = None
    storage_options: Options = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, target: PathLike, options: CopyOptions, compression: str | None = None
    ) -> TargetOptions:
        """Return the options of a target as a user names it."""
        location = target_location(target)
        return cls(
            location=location,
            work_dir=work_directory(options["work_dir"], location),
            overwrite=options["overwrite"],
            compression=compression,
            storage_options=options["target_options"] or {},
        )


class TargetWriter(Protocol):
    """Takes a copy in numbered parts, and shows all of it at once, or nothing.

    Making one writes nothing. It pickles: parts are written by any process. Work that was
    interrupted is continued by another process, with another writer for the same place.
    """

    def refuse(self, schema: Any) -> None:
        """Raise an OptionError if the target holds data that must not be lost.

        Also if such columns cannot be written there. It is called before anything is read.
        """
        ...

    def write(self, part: int, parts: int | None, schema: Any, groups: Any) -> Receipt:
        """Write a part, which lasts when this returns; one that is there already is replaced.

        Args:
            part: The number of the part.
            parts: The number of all parts, where that is known.
            schema: The columns.
            groups: An iterator of tables. Each is a row group, or whatever is read as one.
        """
        ...

    def holds(self, receipt: Receipt, run: str) -> bool:
        """Return True if a part that this run wrote is still there, shown already or not."""
        ...

    def commit(self, schema: Any, receipts: Sequence[Receipt], facts: Mapping[str, Any]) -> None:
        """Show all parts. Called again after a kill, it finishes or finds that it has finished.

        ``facts`` describe the copy; its ``run`` is unlike that of any other.
        """
        ...


# Locations, and errors.


def target_location(target: PathLike) -> str:
    """Return a target as an absolute path or a URL, without a slash at its end."""
    (location,) = named_locations(target, as_they_are=False)
    try:
        location.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{location!r} is not UTF-8, which the libraries that write files ask for; choose "
            "another target"
        ) from None
    return location.rstrip("/") or location


def work_directory(given: PathLike | None, location: str) -> Path:
    """Return where a copy keeps its journal and what is on its way.

    It lies beside a local target, under a hidden name, and else where caches are kept.
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
    """Return an error that says what cannot be written, and how to go on."""
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    return WriteError(
        f"{place} cannot be written: {str(error) or type(error).__name__}; "
        f"{'make room' if full else 'mend that'} and run the same again: it continues where it "
        "stopped"
    )


def not_empty(location: object, change: str = "replace all that is in it") -> OptionError:
    """Return the error of a target that holds data; ``overwrite=True`` would do ``change``."""
    return OptionError(
        f"{location} is not empty; choose another target, or give overwrite=True to {change}"
    )


# Targets by name.

Maker = Callable[[TargetOptions], TargetWriter]

_TARGETS: dict[str, str | Maker] = {
    "parquet": "headrace.write._folders:parquet_files",
    "arrow": "headrace.write._folders:arrow_files",
    "lance": "headrace.write._lance:LanceTable",
    "paimon": "headrace.write._paimon:PaimonTarget",
}
_ENDINGS = {".lance": "lance", ".arrow": "arrow", ".parquet": "parquet"}


def register_target(name: str, maker: str | Maker) -> None:
    """Make a kind of target known; ``maker`` may be ``"module:function"``, imported when used."""
    _TARGETS[name] = maker


def target_kind(kind: str | None, location: str) -> str:
    """Return a kind of target; None means what the location ends in, or else Parquet."""
    if kind is None:
        return next((k for ending, k in _ENDINGS.items() if location.endswith(ending)), "parquet")
    if kind not in _TARGETS:
        raise OptionError(f"target_format must be one of {', '.join(_TARGETS)}, not {kind!r}")
    return kind


def make_target(kind: str, options: TargetOptions) -> TargetWriter:
    """Return the target of a kind."""
    maker = _TARGETS[kind]
    if isinstance(maker, str):
        module, _, name = maker.partition(":")
        found: Maker = getattr(import_module(module), name)
        return found(options)
    return maker(options)
