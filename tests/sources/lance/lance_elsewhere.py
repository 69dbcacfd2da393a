"""A process that uses Lance for the tests: theirs forks workers for other tests, and must not."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import pyarrow as pa

LENGTH = struct.Struct("<Q")


class Elsewhere:
    """Calls functions of modules there; what they raise is raised here."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import lance_elsewhere; lance_elsewhere.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(self._process.stdin, (function, args, options))
        worked, result = _received(self._process.stdout)
        if worked:
            return result
        raise result

    def write(self, uri: Any, rows: pa.Table, **options: Any) -> None:
        self.call(_write, str(uri), rows, **options)

    def change(self, uri: Any, method: str, *args: Any) -> None:
        """Call a method of the dataset that changes it, such as ``delete``."""
        self.call(_change, str(uri), method, *args)

    def backend(self, uri: Any, **options: Any) -> ThereBackend:
        """A backend there: it is made and asked in that process."""
        return ThereBackend(self, str(uri), options)

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class ThereBackend:
    """Its methods and attributes are those of a ``LanceBackend``; iterators come as lists."""

    def __init__(self, elsewhere: Elsewhere, uri: str, options: Mapping[str, Any]) -> None:
        self._elsewhere = elsewhere
        self._made = pickle.dumps((uri, dict(options), id(self)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._elsewhere.call(
            _ask_backend, self._made, name, args, options
        )


def serve() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            function, args, options = _received(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = True, function(*args, **options)
        except Exception as error:
            answer = False, error
        _send(replies, answer)


def _send(pipe: BinaryIO, what: object) -> None:
    data = pickle.dumps(what)
    pipe.write(LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _received(pipe: BinaryIO) -> Any:
    header = pipe.read(LENGTH.size)
    if len(header) < LENGTH.size:
        raise EOFError("the process that uses Lance has ended")
    return pickle.loads(pipe.read(LENGTH.unpack(header)[0]))


_backends: dict[bytes, Any] = {}


def _ask_backend(made: bytes, name: str, args: Any, options: Any) -> Any:
    from headrace.sources.lance.backend import LanceBackend

    if made not in _backends:
        uri, own, _ = pickle.loads(made)
        _backends[made] = LanceBackend(uri, **own)
    asked = getattr(_backends[made], name)
    answer = asked(*args, **options) if callable(asked) else asked
    return list(answer) if hasattr(answer, "__next__") else answer


def _write(uri: str, rows: pa.Table, **options: Any) -> None:
    import lance

    lance.write_dataset(rows, uri, **options)


def _change(uri: str, method: str, *args: Any) -> None:
    import lance

    asked: Any = lance.dataset(uri)
    for name in method.split("."):
        asked = getattr(asked, name)
    asked(*args)
