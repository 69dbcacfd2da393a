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
import select
import selectors
import signal
import socket
import sys
from types import CodeType, ModuleType
from typing import Any

from fork_servers import fork_spare

MAX_ORDER_BYTES = 1 << 20
STANDARD_FILES = 3


def next_script() -> tuple[CodeType, dict[str, Any]]:
    """Import modules, serve, and return in each forked process: its code and globals.

    The arguments are two descriptors and modules. Clients connect to the first one, and the
    server ends when the other end of the second one is closed. It imports nothing before the
    first client connects.
    """
    listener = socket.socket(fileno=int(sys.argv[1]))
    alive = int(sys.argv[2])
    if alive in select.select([listener, alive], [], [])[0]:
        sys.exit()
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the end of every process takes half a second, most of it for these modules
    order = _serve(listener, alive)
    main = _new_main()
    code = _prepare_script(order, main)
    for _ in range(order["fork_servers"]):
        fork_server = fork_spare()
        if fork_server is not None:
            return compile(fork_server, "<string>", "exec"), vars(_new_main())
    return code, vars(main)


def _new_main() -> ModuleType:
    """Replace ``__main__``: what a script leaves in a frozen module would be freed too late."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    return main


def _serve(listener: socket.socket, alive: int) -> dict[str, Any]:
    """Fork for every client that connects, and return what it orders in the forked process."""
    clients: dict[int, tuple[int, socket.socket]] = {}
    """the process and the connection of each client, by the descriptor of the process"""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(alive, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd == alive:
                    sys.exit()
                if key.fd != listener.fileno():
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    _report_end(*clients.pop(key.fd))
                    continue
                client = listener.accept()[0]
                order, files, _, _ = socket.recv_fds(client, MAX_ORDER_BYTES, STANDARD_FILES)
                pid = os.fork()
                if pid == 0:
                    _close(listener, alive, clients)
                    _take_over(client, files)
                    return json.loads(order)
                process = os.pidfd_open(pid)
                clients[process] = (pid, client)
                ready.register(process, selectors.EVENT_READ)
                for file in files:
                    os.close(file)


def _close(
    listener: socket.socket, alive: int, clients: dict[int, tuple[int, socket.socket]]
) -> None:
    """Close all that is the server's in a process that is a script's."""
    listener.close()
    os.close(alive)
    for process, (_, client) in clients.items():
        os.close(process)
        client.close()


def _report_end(pid: int, client: socket.socket) -> None:
    """Send the exit status of a process that has ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with client, contextlib.suppress(BrokenPipeError):  # the client has closed its end
        client.send(json.dumps(status).encode())


def _take_over(client: socket.socket, files: list[int]) -> None:
    """Lead a new session, send the number of this process, and use the standard files given."""
    os.setsid()
    with client:
        client.send(json.dumps(os.getpid()).encode())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
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
