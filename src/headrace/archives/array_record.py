"""ArrayRecord files as they are read here: by number, one record after the other, on one thread.

The package's own ways to read many records use a pool of threads that a forked child does not
have, and cost more: ``read([i])`` looks at every group of the file. ``seek`` and ``read`` with no
parallelism cost the same wherever the record is, and work in whatever process they are in.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from headrace.archives.reading_process import RecordServer, must_not_read, own_server
from headrace.archives.record_server import OTHER_FILE
from headrace.errors import FileChangedError, MissingExtraError, OptionError, ReadError
from headrace.storage.store import changed, vanished

__all__ = [
    "Identity",
    "ReaderOptions",
    "Readers",
    "ServedReader",
    "look",
    "native",
    "open_reader",
    "read_at_once",
    "read_records",
    "read_run",
]

ReaderOptions = str | Mapping[str, Any]
Identity = tuple[int, str]
"""the size of a file, and when it was changed"""

_OURS = {"readahead_buffer_size": "0", "max_parallelism": "0"}
_BUFFER_BYTES = 16 << 10
_MOST_IDLE = 64


def native() -> ModuleType:
    """The reader and writer of the array-record package."""
    try:
        from array_record.python import array_record_module
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "array_record":
            raise
        raise MissingExtraError.for_extra("array-record", "array-record") from error
    module: ModuleType = array_record_module
    return module


def open_reader(path: str, shown: str, options: str, identity: Identity | None = None) -> Any:
    """A reader of a file on this machine, which is called ``shown`` where it is not its own name.

    A file that is missing or damaged opens like any other: the reader has to be asked.
    """
    if must_not_read():
        return ServedReader(path, options, identity)
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


def look(
    server: RecordServer, files: Sequence[tuple[str, str]], options: str
) -> list[tuple[int, int] | ReadError]:
    """The number of records and the size of groups of files, each a path and what it is called.

    Of a file that cannot be read there is what to raise.
    """
    looked = server.look([path for path, _ in files], options, _BUFFER_BYTES)
    return [
        (count, group_size(written)) if reason is None else unreadable(path, shown, reason)
        for (path, shown), (count, written, reason) in zip(files, looked, strict=True)
    ]


def group_size(writer_options: str | None) -> int:
    """How many records are compressed, and so decoded, together; 1 where the file does not say."""
    found = re.search(r"\bgroup_size:(\d+)", writer_options or "")
    return int(found[1]) if found else 1


class ServedReader:
    """A reader in another process, for one that cannot read by itself.

    It holds nothing open, so the other process looks whether the file still has its ``identity``.
    """

    def __init__(
        self,
        path: str,
        options: str,
        identity: Identity | None,
        server: RecordServer | None = None,
    ) -> None:
        self._path, self._options, self._identity = path, options, identity
        self._server = own_server() if server is None else server

    def records(self, numbers: Sequence[int], shown: str) -> list[bytes]:
        """Records of these numbers, in order."""
        found, place, reason = self._server.read(
            self._path, self._options, _BUFFER_BYTES, self._identity, numbers
        )
        if place == OTHER_FILE:
            there = os.path.exists(self._path)
            raise FileChangedError(changed(shown) if there else vanished(shown))
        if found is None:
            raise _broken(shown, numbers[place], reason)
        return found

    def close(self) -> None:
        """Nothing is held here."""


@dataclass(slots=True)
class _Idle:
    """Readers that nobody reads from, by path; those used last are at the end."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    by_path: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0


class Readers:
    """Readers of many files, each lent to one thread at a time; a bounded number stays open.

    After a fork a child opens its own: what it inherited shares a place in the file.
    """

    def __init__(self, options: ReaderOptions | None = None) -> None:
        self.options = _option_string(options)
        self._idle = _Idle()
        _all_readers.add(self)

    def taken(self, path: str) -> Any | None:
        """A reader of a file, if there is one that nobody has."""
        idle = self._idle
        with idle.lock:
            held = idle.by_path.get(path)
            if not held:
                return None
            idle.count -= 1
            return held.pop()

    def give_back(self, path: str, reader: Any) -> None:
        """Let others have a reader. One that failed is not given back: it fails ever after."""
        idle = self._idle
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

    def forget(self) -> None:
        """In a forked child: leave what was inherited alone, which not even closing it would."""
        _inherited.append(self._idle)
        self._idle = _Idle()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options = state["options"]
        self._idle = _Idle()
        _all_readers.add(self)


_all_readers: weakref.WeakSet[Readers] = weakref.WeakSet()
_inherited: list[_Idle] = []


def _in_child() -> None:
    for readers in list(_all_readers):
        readers.forget()


os.register_at_fork(after_in_child=_in_child)


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
    if isinstance(reader, ServedReader):
        return reader.records(numbers, shown)
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
    if isinstance(reader, ServedReader):
        return reader.records(range(start, start + length), shown)
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
    if isinstance(reader, ServedReader):
        return read_run(reader, start, length, shown)
    try:
        records: list[bytes] = reader.read(start, start + length)
    except (RuntimeError, IndexError) as error:
        where = f"{shown}: records {start} to {start + length}"
        raise ReadError(f"{where} cannot be read: {error}") from error
    return records


def _broken(shown: str, number: int, reason: object) -> ReadError:
    return ReadError(f"{shown}: record {number} cannot be read: {reason}")
