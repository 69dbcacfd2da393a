"""A process that runs Lance for one that cannot, or had better not."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headrace.tables.lance import forks, native
from headrace.tables.lance.native import ERROR, FRAME, TABLE, Failed

__all__ = ["LanceProcess", "Where", "own_process"]

Where = tuple[str, int | str | None, dict[str, str] | None]
"""uri, version and options of a dataset, as Lance is given them"""

_SLOW = (
    "this process was forked off one that has used Lance, which does not survive that: another "
    "process reads for it, which is slower; start workers with "
    'multiprocessing_context="forkserver"'
)


class LanceProcess:
    """Answers one question at a time, whichever thread asks. Ends with the process that asks.

    It is started anew and not forked, and reads from a pipe that closes when the other end is gone,
    however that came about. Options go through the pipe: others could see a command line.
    """

    def __init__(self) -> None:
        where = [os.path.abspath(one) for one in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-P", native.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(where)},
        )
        self._lock = threading.Lock()

    def ask(self, where: Where, method: str, *arguments: Any) -> Any:
        """What a method of ``native.Handle`` gives."""
        request = pickle.dumps((where, method, arguments))
        with self._lock:
            try:
                kind, reply = self._answered(request)
            except (BrokenPipeError, EOFError):
                code = self._process.wait()
                raise Failed(f"the process that ran Lance ended with code {code}") from None
            except BaseException:  # an answer that nobody took would be that to the next question
                self._end()
                raise
        if kind == ERROR:
            raise Failed(reply.decode())
        if kind == TABLE:
            with pa.ipc.open_stream(pa.py_buffer(reply)) as reader:
                return reader.read_all()
        return pickle.loads(reply)

    def _answered(self, request: bytes) -> tuple[int, bytes]:
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None
        assert received is not None
        sent.write(FRAME.pack(0, len(request)))
        sent.write(request)
        sent.flush()
        header = received.read(FRAME.size)
        if len(header) < FRAME.size:
            raise EOFError
        kind, length = FRAME.unpack(header)
        reply = received.read(length)
        if len(reply) < length:
            raise EOFError
        return kind, reply

    @property
    def is_running(self) -> bool:
        """Whether it can be asked anything."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; it would not see its pipe close if a child was forked meanwhile, and has it."""
        self._end()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> LanceProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_own: tuple[int, LanceProcess] | None = None


def own_process() -> LanceProcess:
    """The one that runs Lance for this process for as long as it lives; says what that costs."""
    global _own
    with forks.lock:
        if _own is None or _own[0] != os.getpid():
            warnings.warn(_SLOW, RuntimeWarning, stacklevel=2)
        elif _own[1].is_running:
            return _own[1]
        _own = os.getpid(), LanceProcess()
        atexit.register(_own[1].close)
        return _own[1]
