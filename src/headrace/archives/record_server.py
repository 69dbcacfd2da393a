"""Reads records in a process that has never been forked. Run as a script, with no other imports.

Started as ``python record_server.py LIBRARY`` it answers requests until its input ends. Each is a
length and a pickle; each answer a length, a pickle, and the bytes of records that it speaks of.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

__all__ = ["LENGTH", "OTHER_FILE", "exchange"]

LENGTH = struct.Struct("<Q")
OTHER_FILE = -1
"""in place of a record: the file is no longer the one that was meant"""
_LOOKING_THREADS = 16
_MOST_OPEN = 64


class Library:
    """The package's reader, loaded from its file."""

    def __init__(self, path: str) -> None:
        spec = importlib.util.spec_from_file_location("array_record_module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._make = module.ArrayRecordReader
        self._open: dict[tuple[Any, ...], Any] = {}
        """by what was asked for; those used last are at the end"""

    def look(self, paths: Sequence[str], options: str, buffer_bytes: int) -> Any:
        """Of each file: records and the writer's options, or why it cannot be read."""

        def one(path: str) -> tuple[int, str | None, str | None]:
            reader = self._make(path, options, file_reader_buffer_size=buffer_bytes)
            if reader.ok():
                return reader.num_records(), reader.writer_options_string(), None
            try:
                reader.close()
            except RuntimeError as error:
                return 0, None, str(error)
            return 0, None, ""

        if len(paths) == 1:
            return [one(paths[0])], ()
        from concurrent.futures import ThreadPoolExecutor  # here: it takes as long as one file does

        with ThreadPoolExecutor(_LOOKING_THREADS) as pool:
            return list(pool.map(one, paths)), ()

    def read(
        self,
        path: str,
        options: str,
        buffer_bytes: int,
        identity: tuple[int, str] | None,
        numbers: Sequence[int],
    ) -> Any:
        """Records; the one that cannot be read, and why, where there is such a one.

        With an ``identity`` (the size, and the time of change in hexadecimal nanoseconds) records
        are those of that file, and of no other that has its path by now.
        """
        key = path, options, buffer_bytes, identity
        reader = self._open.pop(key, None)
        if reader is None:
            reader = self._make(path, options, file_reader_buffer_size=buffer_bytes)
            if identity is not None and identity != _identity(path):
                return (None, OTHER_FILE, ""), ()
        records: list[bytes] = []
        try:
            for number in numbers:
                reader.seek(number)
                records.append(reader.read())
        except (RuntimeError, IndexError) as error:
            return (None, len(records), str(error)), ()
        self._open[key] = reader
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return ([len(record) for record in records], 0, ""), records


def _identity(path: str) -> tuple[int, str] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, f"{found.st_mtime_ns:x}"


def exchange(stream: IO[bytes], message: Any, bodies: Sequence[bytes] = ()) -> None:
    """Send a message, and bytes behind it."""
    data = pickle.dumps(message)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.writelines(bodies)
    stream.flush()


def _requests(stream: IO[bytes]) -> Iterator[Any]:
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        yield pickle.loads(stream.read(LENGTH.unpack(head)[0]))


def _serve(library: Library) -> None:
    for name, *arguments in _requests(sys.stdin.buffer):
        try:
            answer, bodies = getattr(library, name)(*arguments)
        except ValueError as error:  # of options that are wrong
            answer, bodies = str(error), ()
        exchange(sys.stdout.buffer, answer, bodies)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when it is no longer needed
    _serve(Library(sys.argv[1]))
