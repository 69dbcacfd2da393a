"""Run scripts in processes of their own that need not import torch and headrace first.

These imports take two seconds of a core, and most scripts of the tests take less. A server
(`warm_server`) has imported them, has done nothing else, and forks for every script. Threads,
workers, signals and the exit are the same as in any interpreter, and the first fork server that a
script starts is a fork, too (`fork_servers`). Imports, options of the interpreter and the start
of a process are not the same: tests of these use a `ColdProcess`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from hung_processes import end_with_stacks
from warm_client import send_order

PRELOADED = (
    "headrace.loader",
    "headrace.testing",
    "numpy.random",
    "pyarrow.parquet",
    "pytest",
    "torch.distributed",
)
"""what scripts and their workers would import: a worker that runs a function of a test module
imports pytest with it, and every worker of torch imports numpy.random"""
# Each worker that reads a table would import this for half a second of a core. Not pypaimon: a test
# process that was forked from one that had imported it never ended.
if find_spec("pyiceberg") is not None:
    PRELOADED += ("headrace.sources.iceberg.table",)
TRAINING = (*PRELOADED, "torch._dynamo")
"""what scripts that train import, too: the first optimizer of a process takes a second of a core"""
SHARED_SERVERS = "HEADRACE_TESTS_WARM_SERVERS"
"""name of the environment variable with the names of the servers that test processes share"""
PATIENCE_S = 300.0
NOTE_CHARS = 30_000
HERE = str(Path(__file__).parent)
PATHS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


class WarmProcess:
    """A running script: ``script ...``, ``-c code ...`` or ``-m module ...``, with its arguments.

    It leads a session of its own. Its output goes to files, so it never waits for a reader. If it
    hangs, the error shows the stacks of all threads, its own and those of its children.
    """

    def __init__(
        self,
        *command: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        preloaded: tuple[str, ...] = PRELOADED,
    ) -> None:
        self.command = list(map(str, command))
        self.returncode: int | None = None
        self._preloaded = preloaded
        self._stdout: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        reading, writing = os.pipe()
        self.stdin = os.fdopen(writing, "w")
        environment = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
        self.pid = self._start(reading, environment, str(cwd or Path.cwd()))
        os.close(reading)

    def poll(self) -> int | None:
        """Return the exit status, or None while the script runs.

        It is negative if a signal has ended the script: minus the number of the signal.
        """
        return self._wait(0)

    def first_line(self) -> str:
        """Wait for the first line of standard output, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while "\n" not in self._text(self._stdout) and self._wait(0.02) is None:
            if time.monotonic() > deadline:
                raise hung(self, timeout_s=PATIENCE_S)
        return self._text(self._stdout).partition("\n")[0]

    def send_signal(self, number: int) -> None:
        """Send a signal to the script and to its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def finish(
        self, text: str = "", *, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Write a text to standard input, close it, and wait until the script has ended.

        Raises:
            subprocess.TimeoutExpired: The script ran longer than ``timeout_s``, and was killed.
        """
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(text)
            self.stdin.close()
        if self._wait(timeout_s) is None:
            raise hung(self, timeout_s=timeout_s)
        stdout, stderr = self._text(self._stdout), self._text(self._stderr)
        return subprocess.CompletedProcess(self.command, self.returncode, stdout, stderr)

    def close(self) -> None:
        """Kill the script and its children if it still runs."""
        if self._wait(0) is None:
            self.send_signal(signal.SIGKILL)
            self._wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for file in (self.stdin, self._stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def _start(self, stdin: int, environment: Mapping[str, str], folder: str) -> int:
        """Start the script, and return the number of its process."""
        files = [stdin, self._stdout.fileno(), self._stderr.fileno()]
        order = {
            "command": self.command,
            "environment": dict(environment),
            "folder": folder,
            "fork_servers": 1,
        }
        self._news = send_order(server_of(self._preloaded), order, files)
        self._news.settimeout(PATIENCE_S)
        pid: int = json.loads(self._news.recv(100))
        return pid

    def _wait(self, timeout_s: float) -> int | None:
        """Wait for the end, and return the exit status, or None if the time is over."""
        if self.returncode is None:
            with selectors.DefaultSelector() as ended:
                ended.register(self._news, selectors.EVENT_READ)
                if ended.select(timeout_s):
                    self.returncode = json.loads(self._news.recv(100))
                    self._news.close()
        return self.returncode

    @staticmethod
    def _text(file: IO[bytes]) -> str:
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


class ColdProcess(WarmProcess):
    """A script in a new interpreter, as users start theirs."""

    def _start(self, stdin: int, environment: Mapping[str, str], folder: str) -> int:
        self._process = subprocess.Popen(
            [sys.executable, *self.command],
            stdin=stdin,
            stdout=self._stdout,
            stderr=self._stderr,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        return self._process.pid

    def _wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.returncode = self._process.wait(timeout_s)
        return self.returncode


def run_warm(
    *command: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = PATIENCE_S,
    preloaded: tuple[str, ...] = PRELOADED,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, like ``subprocess.run``."""
    with WarmProcess(*command, env=env, cwd=cwd, preloaded=preloaded) as process:
        return process.finish(timeout_s=timeout_s)


def write_executable(folder: Path) -> Path:
    """Write a program for ``sys.executable``, and return its path.

    It runs ``-c code`` in a process that a server forks: for code under test that starts
    interpreters of its own. A signal ends the program, and not the process that it stands for.
    """
    path = folder / "warm-python"
    client = [sys.executable, "-I", "-S", f"{HERE}/warm_client.py", server_of(PRELOADED)]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    path.chmod(0o755)
    return path


def hung(*processes: WarmProcess, timeout_s: float) -> subprocess.TimeoutExpired:
    """Kill processes that hang, and return the error to raise.

    It shows what they have printed, and the stacks of all of them.
    """
    running = [process for process in processes if process.poll() is None]
    end_with_stacks((process.pid, process._stderr.fileno()) for process in running)
    error = subprocess.TimeoutExpired(processes[0].command, timeout_s)
    files = [file for process in processes for file in (process._stdout, process._stderr)]
    lines = "\n".join(map(WarmProcess._text, files)).splitlines()
    shown = [line for line in lines if not line.startswith("Extension modules: ")]
    error.add_note("\n".join(shown)[-NOTE_CHARS:])
    return error


def assert_interrupted(ended: subprocess.CompletedProcess[str], seconds: float, case: str) -> None:
    """Fail unless an interrupt has ended a script soon, and as it ends any script."""
    assert seconds < 60, case
    assert ended.returncode == -signal.SIGINT, case
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt", case
    assert "Exception ignored" not in ended.stderr, case


class _Server:
    """A `warm_server` that has imported some modules, and runs as long as this process."""

    def __init__(self, preloaded: tuple[str, ...]) -> None:
        self.name = f"warm-interpreters-{uuid.uuid4()}"
        ended, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{self.name}")
            listener.listen()
            start = 'exec(*__import__("warm_server").next_script())'
            self._process = subprocess.Popen(
                [sys.executable, "-c", start, str(listener.fileno()), str(ended), *preloaded],
                pass_fds=[listener.fileno(), ended],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([HERE, *PATHS]),
                    "PYTHONFAULTHANDLER": "1",
                },
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        os.close(ended)

    def stop(self) -> None:
        os.close(self._alive)
        self._process.wait()


_servers: dict[tuple[str, ...], _Server] = {}
_starting = threading.Lock()


def share_servers() -> str:
    """Let the processes of pytest-xdist use servers of this process, and return theirs."""
    servers = {" ".join(modules): server_of(modules) for modules in (PRELOADED, TRAINING)}
    os.environ[SHARED_SERVERS] = json.dumps(servers)
    return server_of(PRELOADED)


def server_of(preloaded: tuple[str, ...]) -> str:
    """Return the name of a server that has imported these modules, or will for its first client.

    The processes of pytest-xdist share those of the process that has started them.
    """
    shared: dict[str, str] = json.loads(os.environ.get(SHARED_SERVERS, "{}"))
    if name := shared.get(" ".join(preloaded)):
        return name
    with _starting:
        if preloaded not in _servers:
            _servers[preloaded] = _Server(preloaded)
            atexit.register(_servers[preloaded].stop)
        return _servers[preloaded].name
