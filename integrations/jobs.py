"""Jobs of real processes over a folder of rows, and what their notes must say."""

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
BATCH = 32
STEPS = 16  # 33 batches are odd for two ranks: the last, short one is left out
SAVED_AT = 20  # the examples save every five steps: here, four steps into the second epoch
DIE_AT = 23
ROWS_PER_EPOCH = 2 * STEPS * BATCH
TIMEOUT_S = 240
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # Another ninja than that of the environment would compile DeepSpeed's extension again.
    "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
    "DS_ACCELERATOR": "cpu",
    "TORCH_EXTENSIONS_DIR": str(BIN.parent / "torch_extensions"),
    "PYTHONPATH": os.pathsep.join(
        [str(HERE.parent / "examples"), os.environ.get("PYTHONPATH", "")]
    ),
}


@dataclass(frozen=True)
class Job:
    """A folder with data, checkpoints and the notes of every rank."""

    folder: Path

    def run(self, *command: object, fails: bool = False, **environment: str) -> str:
        """Run a command to its end, with all its children; what it printed."""
        log = self.folder / "log.txt"
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT | environment,
            )
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"not at its end after {TIMEOUT_S} s:\n{log.read_text()[-4000:]}")
            finally:
                end_tree(process)
        said = log.read_text()
        assert (code != 0) == fails, said[-6000:]
        return said

    def torchrun(self, example: str, *, ranks: int = 2, die_at: int | None = None) -> str:
        """Run an example under torchrun; with ``die_at`` it must fail."""
        last = [] if die_at is None else ["--die-at", die_at]
        said = self.run(
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", HERE / "run_example.py", example, self.folder, *last),
            fails=die_at is not None,
        )
        assert die_at is None or (self.folder / "died").exists(), said[-6000:]
        return said

    def notes(self, life: str, *, ranks: int = 2) -> list[list[dict[str, Any]]]:
        """What each rank noted after each of its steps."""
        files = [self.folder / f"{life}-{rank}.jsonl" for rank in range(ranks)]
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a command and its children; torchrun's have sessions of their own."""
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
    """Two ranks that died after ``DIE_AT`` and went on from ``saved_at`` lost and repeated nothing.

    The rows of the steps after the checkpoint are those that a dead model had seen: they must come
    again, the same in the same steps, and those before it must not.
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
    assert losses[-1] < losses[0]


def check_epoch(notes: list[dict[str, Any]]) -> None:
    """All rows but those of the tail, each once."""
    times = Counter(row for note in notes for row in note["ids"])
    assert set(times.values()) == {1}
    assert len(times) == ROWS_PER_EPOCH
    assert set(times) <= set(range(ROWS))


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
