"""ArrayRecord files as they are read here: by number, one record after the other, on one thread.

The package's own ways to read many records use a pool of threads, and cost more: ``read([i])``
looks at every group of the file. ``seek`` and ``read`` with no parallelism cost the same wherever
the record is.

With any options the package has a thread of its own as soon as it has decompressed something, and
that thread waits on a mutex with a condition on its stack. A forked child has other threads where
that stack was, and crashes when it decompresses. So children of a process that has used the package
refuse to use it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from headrace.errors import MissingExtraError, OptionError, ReadError
from headrace.process import PerProcess
from headrace.storage.native import NativeLibrary

__all__ = [
    "ReaderOptions",
    "Readers",
    "look",
    "native",
    "open_reader",
    "read_at_once",
    "read_records",
    "read_run",
]

ReaderOptions = str | Mapping[str, Any]

_LIBRARY = NativeLibrary("array-record")
_OURS = {"readahead_buffer_size": "0", "max_parallelism": "0"}
_BUFFER_BYTES = 16 << 10
_MOST_IDLE = 64


def native() -> ModuleType:
    """Return the reader and writer of the array-record package, for use in this process.

    Raises:
        MissingExtraError: The package is not installed.
        WorkerError: The process was forked from one that has used the package.
    """
    try:
        from array_record.python import array_record_module
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "array_record":
            raise
        raise MissingExtraError.for_extra("array-record", "array-record") from error
    _LIBRARY.use()
    module: ModuleType = array_record_module
    return module


def open_reader(path: str, shown: str, options: str) -> Any:
    """A reader of a file on this machine, which is called ``shown`` where it is not its own name.

    A file that is missing or damaged opens like any other: the reader has to be asked.
    """
    try:
        reader = native().ArrayRecordReader(path, options, file_reader_buffer_size=_BUFFER_BYTES)
    except ValueError as error:
        raise OptionError(f"reader_options: {error}") from error
    if reader.ok():
        return reader
    try:
        reader.close()
    except RuntimeError as error:
        raise unreadable(path, shown, str(error)) from None
    raise unreadable(path, shown, "")


def unreadable(path: str, shown: str, reason: str) -> ReadError:
    """What to say of a file that no record can be read of."""
    if not os.path.exists(path):
        return ReadError(f"{shown} does not exist")
    why = f" ({reason.replace(path, shown)})" if reason else ""
    return ReadError(
        f"{shown} is no whole ArrayRecord file{why}; if it was one, it is cut off or damaged: "
        "write or copy it again"
    )


def look(path: str, shown: str, options: str) -> tuple[int, int] | ReadError:
    """Return the number of records of a file and the size of its groups.

    For a file that cannot be read, return the error to raise.
    """
    try:
        reader = open_reader(path, shown, options)
    except ReadError as error:
        return error
    found = reader.num_records(), group_size(reader.writer_options_string())
    reader.close()
    return found


def group_size(writer_options: str | None) -> int:
    """How many records are compressed, and so decoded, together; 1 where the file does not say."""
    found = re.search(r"\bgroup_size:(\d+)", writer_options or "")
    return int(found[1]) if found else 1


@dataclass(slots=True)
class _Idle:
    """Readers that nobody reads from, by path; those used last are at the end."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    by_path: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0


class Readers:
    """Readers of many files, each lent to one thread at a time; a bounded number stays open."""

    def __init__(self, options: ReaderOptions | None = None) -> None:
        self.options = _option_string(options)
        self._idle = PerProcess(_Idle)

    def taken(self, path: str) -> Any | None:
        """A reader of a file, if there is one that nobody has."""
        idle = self._idle.get()
        with idle.lock:
            held = idle.by_path.get(path)
            if not held:
                return None
            idle.count -= 1
            return held.pop()

    def give_back(self, path: str, reader: Any) -> None:
        """Let others have a reader. One that failed is not given back: it fails ever after."""
        idle = self._idle.get()
        unused = None
        with idle.lock:
            held = idle.by_path.pop(path, [])
            held.append(reader)
            idle.by_path[path] = held
            idle.count += 1
            if idle.count > _MOST_IDLE:
                unused = _longest_unused(idle)
        if unused is not None:
            unused.close()


def _longest_unused(idle: _Idle) -> Any:
    path = next(path for path, held in idle.by_path.items() if held)
    held = idle.by_path[path]
    reader = held.pop(0)
    if not held:
        del idle.by_path[path]
    idle.count -= 1
    return reader


def _option_string(given: ReaderOptions | None) -> str:
    if given is None:
        given = {}
    if isinstance(given, str):
        parts = [part.partition(":") for part in given.split(",") if part.strip()]
        given = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(given, Mapping):
        raise OptionError(
            'reader_options must be a mapping such as {"max_parallelism": 0}, or a str such as '
            f'"max_parallelism:0", not {given!r}'
        )
    chosen = {**_OURS, **{str(name): str(value) for name, value in given.items()}}
    return ",".join(f"{name}:{value}" for name, value in chosen.items())


def read_records(reader: Any, numbers: Sequence[int], shown: str) -> list[bytes]:
    """The records of these numbers, in order; numbers that rise cost least."""
    records: list[bytes] = []
    seek, read, keep = reader.seek, reader.read, records.append
    try:
        for number in numbers:
            seek(number)
            keep(read())
    except (RuntimeError, IndexError) as error:
        raise _broken(shown, numbers[len(records)], error) from error
    return records


def read_run(reader: Any, start: int, length: int, shown: str) -> list[bytes]:
    """Records that follow each other."""
    records: list[bytes] = []
    read, keep = reader.read, records.append
    try:
        reader.seek(start)
        for _ in range(length):
            keep(read())
    except (RuntimeError, IndexError) as error:
        raise _broken(shown, start + len(records), error) from error
    return records


def read_at_once(reader: Any, start: int, length: int, shown: str) -> list[bytes]:
    """The same, read by one call: where there are threads for it, groups are decoded in them."""
    try:
        records: list[bytes] = reader.read(start, start + length)
    except (RuntimeError, IndexError) as error:
        where = f"{shown}: records {start} to {start + length}"
        raise ReadError(f"{where} cannot be read: {error}") from error
    return records


def _broken(shown: str, number: int, reason: object) -> ReadError:
    return ReadError(f"{shown}: record {number} cannot be read: {reason}")
