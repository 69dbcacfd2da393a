"""A program that ends in the middle of reading ends at once, with its own exit status."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from headrace.stream import _readahead as readahead

PROGRAM = """
import importlib.util, sys, time

# The module alone: it needs nothing of the package, and torch takes seconds to import.
spec = importlib.util.spec_from_file_location("readahead", {module!r})
readahead = sys.modules["readahead"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(readahead)
Job, ReadAhead = readahead.Job, readahead.ReadAhead

def work(spec):
    for block in range(100_000):
        {pause}
        yield b"x" * 1000

reading = ReadAhead(
    iter([Job(lane, lane, 50_000) for lane in range(3)]),
    work, size_of=len, budget_bytes=200_000, threads=3,
)
sources = [reading.blocks(lane) for lane in range(3)]
for source in sources:
    next(source)
print("reading", flush=True)
{end}
"""


def run(pause: str, end: str) -> tuple[int, float, str]:
    """Return the exit status, the seconds from the first block to the end, and standard error."""
    program = PROGRAM.format(module=readahead.__file__, pause=pause, end=end)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        began = time.monotonic()
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
        return process.returncode, time.monotonic() - began, errors


@pytest.mark.parametrize(
    ("pause", "end", "status"),
    [
        ("pass", "pass", 0),
        ("time.sleep(0.3)", "pass", 0),
        ("pass", "sys.exit(7)", 7),
        ("pass", "del reading, sources", 0),
        ("pass", "raise KeyboardInterrupt", 130),
    ],
)
def test_ends_in_mid_iteration(pause: str, end: str, status: int) -> None:
    for _ in range(10):
        returned, seconds, errors = run(pause, end)
        assert returned in (status, -2 if status == 130 else status), errors
        assert seconds < 60  # reading all would take hours
        assert "Fatal" not in errors
        assert status == 130 or errors == ""
