"""Processes that answer for this one: a question that was interrupted costs its own answer only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from warm_interpreters import WarmProcess

from headrace import ReadError
from headrace.archives import reading_process
from headrace.archives.reading_process import RecordServer
from headrace.tables.lance.native import Failed
from headrace.tables.lance.process import LanceProcess


def interrupted(process: int, ask: Callable[[], Any]) -> None:
    """Ask what is not answered before the question is given up."""
    os.kill(process, signal.SIGSTOP)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask()
    finally:
        signal.signal(signal.SIGALRM, before)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def test_records_of_one_question_are_not_those_of_the_next(tmp_path: Path) -> None:
    with RecordServer() as server:
        assert server.look([], "", 1 << 14) == []
        none = [str(tmp_path / "none")]
        interrupted(server._process.pid, lambda: server.look(none, "", 1 << 14))
        with pytest.raises(ReadError, match="ended"):
            server.look([], "", 1 << 14)


def test_another_process_takes_the_place_of_one_that_has_ended() -> None:
    server = reading_process.own_server()
    try:
        interrupted(server._process.pid, lambda: server.look([], "", 1 << 14))
        other = reading_process.own_server()
        assert other is not server
        assert other.look([], "", 1 << 14) == []
        other.__exit__(None, None, None)
    finally:
        server.__exit__(None, None, None)
        del reading_process._servers[os.getpid()]


def test_an_answer_of_lance_is_not_that_to_the_next_question(tmp_path: Path) -> None:
    where = str(tmp_path / "none.lance"), None, None
    with LanceProcess() as process:
        interrupted(process._process.pid, lambda: process.ask(where, "found"))
        with pytest.raises(Failed, match="ended"):
            process.ask(where, "versions")


FORKED_MEANWHILE = """
import os, signal, time
from headrace.tables.lance.process import LanceProcess

began = time.monotonic()
with LanceProcess():
    child = os.fork()
    if child == 0:
        signal.pause()
print(time.monotonic() - began < 8)
os.kill(child, signal.SIGKILL)
"""


def test_a_child_that_was_forked_meanwhile_does_not_hold_up_its_end() -> None:
    with WarmProcess("-c", FORKED_MEANWHILE) as process:
        ended = process.finish(timeout_s=60)
    assert (ended.returncode, ended.stdout) == (0, "True\n")
