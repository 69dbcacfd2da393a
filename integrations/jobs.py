"""Jobs of real processes over a folder of rows, and checks of the steps that they record."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent

ROWS = 1_050
STEPS = 17  # of each of two ranks: 16 full batches, and one of the two that share the last 26 rows
SAVED_AT = 20  # the examples save every five steps: here, three steps into the second epoch
DIE_AT = 23
TIMEOUT_S = 480  # a job that hangs is ended; on a busy machine Ray alone takes minutes to start
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # Another ninja than that of the environment would compile DeepSpeed's extension again.
    "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
    "DS_ACCELERATOR": "cpu",
    "TORCH_EXTENSIONS_DIR": str(BIN.parent / "torch_extensions"),
    # After a minute Ray would give its workers up and start them anew, again and again.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "PYTHONPATH": os.pathsep.join(
        [str(HERE.parent / "examples"), os.environ.get("PYTHONPATH", "")]
    ),
}


@dataclass(frozen=True)
class Job:
    """A folder with data, checkpoints and the records of every rank."""

    folder: Path

    def run(self, *command: object, fails: bool = False, **environment: str) -> str:
        """Run a command and all its children to the end, and return its output."""
        log = self.folder / "log.txt"
        with log.open("w") as file:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT | environment,
            )
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"not at its end after {TIMEOUT_S} s:\n{log.read_text()[-4000:]}")
            finally:
                end_tree(process)
        output = log.read_text()
        assert (code != 0) == fails, output[-6000:]
        return output

    def torchrun(self, example: str, *, ranks: int = 2, die_at: int | None = None) -> str:
        """Run an example under torchrun; with ``die_at`` it must fail."""
        last = [] if die_at is None else ["--die-at", die_at]
        output = self.run(
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", HERE / "run_example.py", example, self.folder, *last),
            fails=die_at is not None,
        )
        assert die_at is None or (self.folder / "died").exists(), output[-6000:]
        return output

    def notes(self, life: str, *, ranks: int = 2) -> list[list[dict[str, Any]]]:
        """Return the records of each rank, one for each of its steps."""
        files = [self.folder / f"{life}-{rank}.jsonl" for rank in range(ranks)]
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of a command and its children; those of torchrun have their own sessions."""
    try:
        left = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        left = []
    process.kill()
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def check_lives(job: Job, *, saved_at: int = SAVED_AT) -> None:
    """Check that two ranks, which died after ``DIE_AT`` steps, lost and repeated no row.

    The steps after the checkpoint ``saved_at`` must come again with the same rows, and those before
    it must not.
    """
    first, second = job.notes("first"), job.notes("second")
    assert len(first[1]) == DIE_AT
    for before, after in zip(first, second, strict=True):
        assert [note["step"] for note in before] == list(range(1, len(before) + 1))
        assert [note["step"] for note in after] == list(range(saved_at + 1, 2 * STEPS + 1))
        again = [note["ids"] for note in before[saved_at:]]
        assert len(again) >= DIE_AT - saved_at - 1
        assert again == [note["ids"] for note in after[: len(again)]]
    lived = [before[:saved_at] + after for before, after in zip(first, second, strict=True)]
    notes = list(chain.from_iterable(lived))
    check_epoch([note for note in notes if note["step"] <= STEPS])
    check_epoch([note for note in notes if note["step"] > STEPS])
    losses = [note["loss"] for note in first[0]]
    assert sum(losses[-5:]) < sum(losses[:5])


def check_epoch(notes: list[dict[str, Any]]) -> None:
    """Check that every row came exactly once."""
    assert Counter(row for note in notes for row in note["ids"]) == Counter(range(ROWS))


def free_port() -> str:
    """Return a free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
