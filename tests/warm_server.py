"""The other end of `warm_interpreters`: imports once, then forks for every script it is sent.

Started as ``python -c 'exec(*__import__("warm_server").next_script())'``: nothing of the server
is left when a script has run, and its process ends as that of any script does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing.process
import os
import runpy
import selectors
import signal
import socket
import sys
from types import CodeType, ModuleType
from typing import Any

MAX_ORDER_BYTES = 1 << 20
DESCRIPTORS = 4
"""that come with an order: standard input, output and error, and where to say how it goes"""


def next_script() -> tuple[CodeType, dict[str, Any]]:
    """Import what is asked for, serve, and return in each forked process: code and globals."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the end of every process takes half a second, most of it for these modules
    order = _serve(channel)
    # Not the one there is: it is frozen, and what is in it would go too late at the end.
    main = sys.modules["__main__"] = ModuleType("__main__")
    return _as_told(order, main), vars(main)


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Returns only in processes that are forked; without its client the server ends."""
    with selectors.DefaultSelector() as ready:
        ready.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    ready.unregister(key.fileobj)
                    _tell_end(key.fd, *key.data)
                    continue
                order, descriptors, _, _ = socket.recv_fds(channel, MAX_ORDER_BYTES, DESCRIPTORS)
                if not order:
                    sys.exit()
                pid = os.fork()
                if pid == 0:
                    ready.close()
                    channel.close()
                    _take_over(descriptors)
                    return json.loads(order)
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, descriptors[3]))
                for descriptor in descriptors[:3]:
                    os.close(descriptor)


def _tell_end(watched: int, pid: int, told: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(told, json.dumps(status).encode())
    os.close(told)
    os.close(watched)


def _take_over(descriptors: list[int]) -> None:
    os.setsid()
    os.write(descriptors[3], json.dumps(os.getpid()).encode())
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _as_told(order: dict[str, Any], main: ModuleType) -> CodeType:
    """The code of a command ``script ...``, ``-c code ...`` or ``-m module ...``."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    multiprocessing.process.ORIGINAL_DIR = order["folder"]  # children that are spawned begin there
    first, *arguments = order["command"]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    beside = order["folder"] if first.startswith("-") else os.path.dirname(first)
    sys.path[:1] = [beside, *filter(None, paths)]
    if first == "-m":
        module, *arguments = arguments
        sys.argv = [module, *arguments]
        return compile(f"__import__({__name__!r}).run_module({module!r})", "<module>", "exec")
    if first == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        return compile(code, "<string>", "exec")
    sys.argv = [first, *arguments]
    main.__file__ = first
    with open(first) as script:
        return compile(script.read(), first, "exec")


def run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
