"""The readers of the array-record package: opened, shared by threads, asked for records.

Records are read one after the other, on the thread that asks. The package's own ways to read many
records use a pool of threads, and cost more: ``read([i])`` looks at every group of the file.
``seek`` and ``read`` without parallelism cost the same wherever the record is.

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
    "native",
    "open_reader",
    "read_at_once",
    "read_records",
    "read_run",
    "record_counts",
]

ReaderOptions = str | Mapping[str, Any]

_LIBRARY = NativeLibrary("array-record")
_DEFAULTS = {"readahead_buffer_size": "0", "max_parallelism": "0"}
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


def open_reader(path: str, name: str, options: str) -> Any:
    """Open a file on this machine.

    The package opens missing and damaged files without an error: the reader has to be asked.

    Args:
        path: The file.
        name: What the file is called in errors: its URL, where ``path`` is a copy.
        options: Options of the package's reader.

    Raises:
        OptionError: The package does not know an option.
        ReadError: The file is missing, cut off or damaged.
    """
    try:
        reader = native().ArrayRecordReader(path, options, file_reader_buffer_size=_BUFFER_BYTES)
    except ValueError as error:
        raise OptionError(f"reader_options: {error}") from error
    if reader.ok():
        return reader
    reason = ""
    try:
        reader.close()
    except RuntimeError as error:
        reason = f" ({str(error).replace(path, name)})" if str(error) else ""
    if not os.path.exists(path):
        raise ReadError(f"{name} does not exist")
    raise ReadError(
        f"{name} is no whole ArrayRecord file{reason}; if it was one, it is cut off or damaged: "
        "write or copy it again"
    )


def record_counts(path: str, name: str, options: str) -> tuple[int, int]:
    """Return the number of records of a file, and how many of them are compressed together."""
    reader = open_reader(path, name, options)
    group = re.search(r"\bgroup_size:(\d+)", reader.writer_options_string() or "")
    counts = reader.num_records(), int(group[1]) if group else 1
    reader.close()
    return counts


@dataclass(slots=True)
class _Idle:
    """Readers that no thread uses, by path; those used last are at the end."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    by_path: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0


class Readers:
    """Readers of many files, each lent to one thread at a time; a bounded number stays open."""

    def __init__(self, options: ReaderOptions | None = None) -> None:
        self.options = _option_string(options)
        self._idle = PerProcess(_Idle)

    def borrow(self, path: str) -> Any | None:
        """Return a reader of a file that no other thread uses; None if there is none."""
        idle = self._idle.get()
        with idle.lock:
            held = idle.by_path.get(path)
            if not held:
                return None
            idle.count -= 1
            return held.pop()

    def give_back(self, path: str, reader: Any) -> None:
        """Keep a reader for the next use. Drop one that failed instead: all its reads fail."""
        idle = self._idle.get()
        with idle.lock:
            held = idle.by_path.pop(path, [])
            held.append(reader)
            idle.by_path[path] = held
            idle.count += 1
            if idle.count <= _MOST_IDLE:
                return
            oldest = next(path for path, readers in idle.by_path.items() if readers)
            unused = idle.by_path[oldest].pop(0)
            if not idle.by_path[oldest]:
                del idle.by_path[oldest]
            idle.count -= 1
        unused.close()


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
    chosen = {**_DEFAULTS, **{str(name): str(value) for name, value in given.items()}}
    return ",".join(f"{name}:{value}" for name, value in chosen.items())


def read_records(reader: Any, numbers: Sequence[int], name: str) -> list[bytes]:
    """Return the records of these numbers, in order; rising numbers cost least."""
    records: list[bytes] = []
    seek, read, keep = reader.seek, reader.read, records.append
    try:
        for number in numbers:
            seek(number)
            keep(read())
    except (RuntimeError, IndexError) as error:
        raise _unreadable(name, numbers[len(records)], error) from error
    return records


def read_run(reader: Any, start: int, length: int, name: str) -> list[bytes]:
    """Return consecutive records."""
    records: list[bytes] = []
    read, keep = reader.read, records.append
    try:
        reader.seek(start)
        for _ in range(length):
            keep(read())
    except (RuntimeError, IndexError) as error:
        raise _unreadable(name, start + len(records), error) from error
    return records


def read_at_once(reader: Any, start: int, length: int, name: str) -> list[bytes]:
    """Return consecutive records by one call, which decodes groups in the package's threads."""
    try:
        records: list[bytes] = reader.read(start, start + length)
    except (RuntimeError, IndexError) as error:
        raise ReadError(
            f"{name}: records {start} to {start + length} cannot be read: {error}"
        ) from error
    return records


def _unreadable(name: str, number: int, reason: object) -> ReadError:
    return ReadError(f"{name}: record {number} cannot be read: {reason}")
