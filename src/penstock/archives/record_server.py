"""Reads records in a process that has never been forked. Run as a script, with no other imports.

Started as ``python record_server.py LIBRARY`` it answers requests until its input ends. Each is a
length and a pickle; each answer a length, a pickle, and the bytes of records that it speaks of.
"""

from __future__ import annotations

import importlib.util
import pickle
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

__all__ = ["LENGTH", "exchange"]

LENGTH = struct.Struct("<Q")
_LOOKING_THREADS = 16


class Library:
    """The package's reader, loaded from its file."""

    def __init__(self, path: str) -> None:
        spec = importlib.util.spec_from_file_location("array_record_module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._make = module.ArrayRecordReader
        self._open: dict[tuple[str, str, int], Any] = {}

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
            return 0, None, "it does not say why"

        with ThreadPoolExecutor(_LOOKING_THREADS) as pool:
            return list(pool.map(one, paths)), ()

    def read(self, path: str, options: str, buffer_bytes: int, numbers: Sequence[int]) -> Any:
        """Records; the one that cannot be read, and why, where there is such a one."""
        key = path, options, buffer_bytes
        reader = self._open.pop(key, None)
        if reader is None:
            reader = self._make(path, options, file_reader_buffer_size=buffer_bytes)
        records: list[bytes] = []
        try:
            for number in numbers:
                reader.seek(number)
                records.append(reader.read())
        except (RuntimeError, IndexError) as error:
            return (None, len(records), str(error)), ()
        self._open = {key: reader}
        return ([len(record) for record in records], 0, ""), records


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
