"""Which process reads records: this one, or one that is started for it.

The array-record package starts threads when it reads or writes, and what they wait for lies on
their stacks. A forked child has no such threads, and soon others where their stacks were: reading
then hangs, or crashes. So

* to look at files, another process reads: this one may want to fork later;
* a child that was forked by a process that had loaded the package has its records read by a
  process of its own, which was not forked.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from headrace.archives import record_server
from headrace.archives.record_server import LENGTH, exchange
from headrace.errors import MissingExtraError, OptionError, ReadError

__all__ = ["RecordServer", "must_not_read", "own_server"]

_MODULE = "array_record.python.array_record_module"


class RecordServer:
    """A process that reads records. It ends with the block, or with the process that started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", record_server.__file__, _library()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> RecordServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Its pipes are not read to their end: a child that was forked meanwhile has them open."""
        self._end()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def look(self, paths: Sequence[str], options: str, buffer_bytes: int) -> list[Any]:
        """Of each file the number of records, the writer's options, and why it cannot be read."""
        found = self._ask("look", list(paths), options, buffer_bytes)[0]
        if isinstance(found, str):
            raise OptionError(f"reader_options: {found}")
        looked: list[Any] = found
        return looked

    def read(
        self,
        path: str,
        options: str,
        buffer_bytes: int,
        identity: tuple[int, str] | None,
        numbers: Sequence[int],
    ) -> tuple[list[bytes] | None, int, str]:
        """Records; or None, the place of the one that cannot be read, and why."""
        (lengths, place, reason), records = self._ask(
            "read", path, options, buffer_bytes, identity, list(numbers)
        )
        return (None if lengths is None else records), place, reason

    def _ask(self, *request: Any) -> tuple[Any, list[bytes]]:
        replies = self._process.stdout
        requests = self._process.stdin
        assert replies is not None
        assert requests is not None
        with self._lock:
            try:
                exchange(requests, request)
                answer = pickle.loads(_exactly(replies, LENGTH.unpack(_exactly(replies, 8))[0]))
                lengths = answer[0] if request[0] == "read" else None
                return answer, [_exactly(replies, length) for length in lengths or ()]
            except (BrokenPipeError, EOFError):
                code = self._process.wait()
                raise ReadError(
                    f"the process that reads records ended (exit code {code})"
                ) from None
            except BaseException:  # an answer that nobody took would be that to the next question
                self._end()
                raise

    @property
    def is_running(self) -> bool:
        """Whether it can be asked anything."""
        return self._process.poll() is None

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _exactly(stream: Any, count: int) -> bytes:
    data: bytes = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _library() -> str:
    """Where the package's library is; looking for it does not load it."""
    try:
        found = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise MissingExtraError.for_extra("array-record", "array-record")
    return found.origin


# --- what a fork leaves behind

_forked_with_it = False
_servers: dict[int, RecordServer] = {}
_servers_lock = threading.Lock()


def must_not_read() -> bool:
    """Whether the process that forked this one had loaded the package, and so may have used it."""
    return _forked_with_it


def own_server() -> RecordServer:
    """The process that reads for this one, as long as it lives."""
    with _servers_lock:
        process = os.getpid()
        known = _servers.get(process)
        if known is None or not known.is_running:
            known = _servers[process] = RecordServer()
        return known


def _in_child() -> None:
    global _forked_with_it, _servers_lock
    _forked_with_it = _forked_with_it or _MODULE in sys.modules
    _servers_lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
