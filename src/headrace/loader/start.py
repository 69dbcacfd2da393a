"""Start worker processes from a fork server of the library's own.

A server is a process that has imported torch and headrace and does nothing else; workers are forks
of it. They inherit no threads, locks or native clients of the trainer, and start as fast as forks.
Functions of a script or a notebook travel by value (cloudpickle), so that workers never import the
script. So it needs no ``if __name__ == "__main__":``, and its module level runs only once.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import ChainMap
from collections.abc import Mapping
from multiprocessing import (
    context,
    forkserver,
    popen_forkserver,
    process,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import torch

from headrace.convert.packing import Call
from headrace.convert.shared import shared_bytes
from headrace.process import PerProcess

_PRELOADED = ["torch", "headrace.loader", "cloudpickle"]


class _StartPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes by value, and tensors, locks and queues by handle.

    The table must be an attribute of the class: the C code of cloudpickle ignores an attribute of
    the instance, and descriptors would arrive with wrong numbers.
    """

    dispatch_table: ClassVar[Any] = ChainMap(
        ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        cloudpickle.Pickler.dispatch_table,
    )


def dumps_for_worker(value: object) -> memoryview:
    """Pickle a value for ``pickle.loads`` in a worker that is being started."""
    stream = io.BytesIO()
    _StartPickler(stream, protocol=5).dump(value)
    return stream.getbuffer()


class Sealed:
    """A value that is sent to a worker by any start method, and arrives as itself.

    It is pickled by value into shared memory. Without that, a parent would block forever if it
    wrote more into the pipe of a spawned process than the pipe holds, and the process died before
    it read (without a ``__main__`` guard, for example). It must be kept until the process has
    started.
    """

    def __init__(self, value: object) -> None:
        self._value = value
        self._memory: list[torch.Tensor] = []

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = np.frombuffer(dumps_for_worker(self._value), np.uint8)
        memory = shared_bytes(len(pickled))
        memory.numpy()[:] = pickled
        self._memory.append(memory)
        return _opened, (memory,)


def _opened(memory: torch.Tensor) -> Any:
    pickled: Any = memory.numpy()  # numpy 1 does not declare that it is a buffer
    return pickle.loads(pickled)


class _Popen(popen_forkserver.Popen):
    """Starts a process from the library's server."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        prepared = spawn.get_preparation_data(process_obj._name)
        for name in ("init_main_from_name", "init_main_from_path"):
            prepared.pop(name, None)  # the script is not imported
        context.set_spawning_popen(self)
        try:
            data = bytes(dumps_for_worker(Call(_prepared, (dict(os.environ), prepared))))
            data += bytes(dumps_for_worker(process_obj))
        finally:
            context.set_spawning_popen(None)
        self.sentinel, writing = _server.get().connect_to_new_process(self._fds)
        # The worker watches the other end of this pipe to see whether the trainer lives.
        kept = os.dup(writing)
        self.finalizer = util.Finalize(self, _close, (kept, self.sentinel))
        with open(writing, "wb") as stream:
            stream.write(data)
        self.pid = forkserver.read_signed(self.sentinel)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _prepared(environment: Mapping[str, str], prepared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Apply the trainer's environment before anything else is loaded."""
    _Server.started_this_process = True
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


class _Server(forkserver.ForkServer):
    """A server that the processes which it started use for their own workers, too.

    A rank of an audit needs no server of its own, which would take seconds to import torch again.
    """

    started_this_process = False
    _forkserver_address: str | None
    _forkserver_alive_fd: int | None

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload(_PRELOADED)

    def ensure_running(self) -> None:
        if not self.started_this_process:
            super().ensure_running()
            return
        above: Any = forkserver._forkserver
        self._forkserver_address = above._forkserver_address
        self._forkserver_alive_fd = above._forkserver_alive_fd
        resource_tracker.ensure_running()


_server = PerProcess(_Server)
"""Fork server of this process; a forked child starts its own."""
