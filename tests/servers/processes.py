"""Servers that run in separate processes, which end with the process that started them."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

START_PATIENCE_S = 240.0
TESTS = Path(__file__).parents[1]
# The pipe that the shell reads from closes when this process ends, even if it is killed. A server
# that ends by itself ends the shell too, so that its exit is noticed.
GUARD = '{ "$@"; echo "ended with status $?"; kill -9 0; } & cat >/dev/null; kill -9 0'


class ServerFailure(RuntimeError):
    """A server did not start, or does not answer; the message holds its output."""


class ServerProcess:
    """A command in a process group of its own, with its output in a file."""

    def __init__(self, name: str, command: list[str], *, environment: dict[str, str] | None = None):
        self.name = name
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, name, *command],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def wait_until_answers(self, port: int, path: str = "/") -> None:
        """Wait until an HTTP request to the port is answered, with any status."""
        deadline = time.monotonic() + START_PATIENCE_S
        while not answers(port, path):
            if self._process.poll() is not None:
                raise self.failure("ended before it answered")
            if time.monotonic() > deadline:
                raise self.failure(f"did not answer within {START_PATIENCE_S:g} s")
            time.sleep(0.05)

    def failure(self, problem: str) -> ServerFailure:
        self.stop()
        return ServerFailure(f"{self.name} {problem}. Its output:\n{self.output()}")

    def output(self) -> str:
        if self._output.closed:
            return self._final_output
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        if not self._output.closed:
            self._final_output = self.output()
            self._output.close()


def start_module(module: str, *options: str) -> ServerProcess:
    """Start a module of this folder as a process."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", module, *options]
    return ServerProcess(module, command, environment={"PYTHONPATH": path})


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(
    port: int,
    method: str,
    target: str,
    *,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 120.0,
) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a new connection; return status, headers in lower case, and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, target, body=body, headers=headers or {})
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, fields, answer.read()
    finally:
        connection.close()


def ask_well(
    port: int, method: str, target: str, **request: object
) -> tuple[dict[str, str], bytes]:
    """Like `ask`, but raise an error for a refusal; return headers and body."""
    status, headers, body = ask(port, method, target, **request)
    if status >= 300:
        raise ServerFailure(f"{method} {target} was answered with {status}: {body[:500]!r}")
    return headers, body


def answers(port: int, path: str = "/") -> bool:
    """Return True if an HTTP request is answered, with any status."""
    try:
        ask(port, "GET", path, timeout_s=5)
    except (OSError, http.client.HTTPException):
        return False
    return True


def executable(name: str) -> str:
    """Return the path of a command of the environment that the tests run in."""
    path = Path(sys.prefix) / "bin" / name
    if not path.is_file():
        raise ServerFailure(f"{path} is missing; `make setup` installs it")
    return str(path)
