"""The process behind `warm_interpreters`: imports modules once, and forks for every script.

It is started as ``python -c 'exec(*__import__("warm_server").next_script())'``: a script that has
ended finds nothing of the server below it, and its process ends as that of any script does.
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

from fork_servers import fork_spare

MAX_ORDER_BYTES = 1 << 20
DESCRIPTORS = 4
"""number that come with an order: standard input, output and error, and a socket for news"""


def next_script() -> tuple[CodeType, dict[str, Any]]:
    """Import modules, serve, and return in each forked process: its code and globals."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the end of every process takes half a second, most of it for these modules
    order = _serve(channel)
    main = _new_main()
    code = _prepare_script(order, main)
    fork_server = fork_spare()
    if fork_server is not None:
        main, code = _new_main(), compile(fork_server, "<string>", "exec")
    return code, vars(main)


def _new_main() -> ModuleType:
    """Replace ``__main__``: what a script leaves in a frozen module would be freed too late."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    return main


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for every order, and return it in the forked process. Exit when the client has gone."""
    with selectors.DefaultSelector() as ready:
        ready.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    ready.unregister(key.fileobj)
                    _report_end(key.fd, *key.data)
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


def _report_end(process: int, pid: int, news: int) -> None:
    """Send the exit status of a process that has ended, and close its two descriptors."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # the client has closed its end
        os.write(news, json.dumps(status).encode())
    os.close(news)
    os.close(process)


def _take_over(descriptors: list[int]) -> None:
    """Lead a new session, send the number of this process, and use the standard files given."""
    os.setsid()
    os.write(descriptors[3], json.dumps(os.getpid()).encode())
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _prepare_script(order: dict[str, Any], main: ModuleType) -> CodeType:
    """Return the code of a command ``script ...``, ``-c code ...`` or ``-m module ...``.

    The environment, the working directory, ``sys.argv`` and ``sys.path`` are set for it.
    """
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
    """Run a module as ``python -m`` does."""
    runpy.run_module(name, run_name="__main__", alter_sys=True)
