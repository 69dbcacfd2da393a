"""Start worker processes from a fork server of the library's own.

A server is a process that has imported torch and headrace and does nothing else; workers are forks
of it. They inherit no threads, locks or native clients of the trainer, and start as fast as forks.
Functions of a script or a notebook travel by value (cloudpickle), so that workers never import the
script: it needs no ``if __name__ == "__main__":``, and what it does at module level happens once.
"""

from __future__ import annotations

import io
import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from multiprocessing import context, forkserver, popen_forkserver, process, spawn, util
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import cloudpickle

__all__ = ["WorkerContext", "dumps"]

_PRELOADED = ["headrace", "torch", "cloudpickle"]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes by value, and tensors, locks and queues by handle.

    The table must be an attribute of the class: cloudpickle's C code ignores one of the instance,
    and descriptors would arrive with wrong numbers.
    """

    dispatch_table: ClassVar[Any] = ChainMap(
        ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        cloudpickle.Pickler.dispatch_table,
    )


def dumps(value: object, buffers: Callable[[Any], bool] | None = None) -> memoryview:
    """Pickle a value so that a worker, or the trainer, can load it with ``pickle.loads``.

    Args:
        value: What to send.
        buffers: Called with each large buffer, which then travels out of band; see
            ``pickle.Pickler``.
    """
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers).dump(value)
    return stream.getbuffer()


class _Popen(popen_forkserver.Popen):
    """Starts a process from the library's server."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        prepared = spawn.get_preparation_data(process_obj._name)
        for name in ("init_main_from_name", "init_main_from_path"):
            prepared.pop(name, None)  # the script is not imported
        context.set_spawning_popen(self)
        try:
            data = bytes(dumps(_WithEnvironment(dict(os.environ), prepared)))
            data += bytes(dumps(process_obj))
        finally:
            context.set_spawning_popen(None)
        self.sentinel, writing = _server().connect_to_new_process(self._fds)
        # The worker watches the other end of this pipe to see whether the trainer lives.
        kept = os.dup(writing)
        self.finalizer = util.Finalize(self, _close, (kept, self.sentinel))
        with open(writing, "wb") as stream:
            stream.write(data)
        self.pid = forkserver.read_signed(self.sentinel)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class _WithEnvironment:
    """Preparation data that, when it is loaded, first takes over the trainer's environment."""

    def __init__(self, environment: Mapping[str, str], prepared: Mapping[str, Any]) -> None:
        self._sent = environment, prepared

    def __reduce__(self) -> tuple[Any, ...]:
        return _prepared, self._sent


def _prepared(environment: Mapping[str, str], prepared: Mapping[str, Any]) -> Mapping[str, Any]:
    os.environ.clear()
    os.environ.update(environment)
    return prepared


class _WorkerProcess(process.BaseProcess):
    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)


class WorkerContext(context.ForkServerContext):
    """The multiprocessing context of worker processes."""

    Process = _WorkerProcess  # type: ignore[assignment]


_servers: dict[int, forkserver.ForkServer] = {}
"""The server of this process, by its id: a forked child starts one of its own."""


def _server() -> forkserver.ForkServer:
    pid = os.getpid()
    if pid not in _servers:
        server = forkserver.ForkServer()
        server.set_forkserver_preload(_PRELOADED)
        _servers[pid] = server
    return _servers[pid]
