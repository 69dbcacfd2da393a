"""Run one of the examples, record each of its steps, and end it in mid-epoch if asked to.

    python integrations/run_example.py NAME FOLDER [--die-at STEP]

The examples must be on the path. With ``--die-at``, rank 1 kills itself after that step, but not
again after a restart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from torch import distributed as dist


@dataclass
class Notes:
    """Called by an example after every step; writes one file for each rank and life of the job."""

    folder: Path
    die_at: int | None
    _file: TextIO | None = field(default=None, repr=False)

    def __call__(self, step: int, batch: dict[str, Any], loss: float) -> None:
        rank = dist.get_rank()
        died = self.folder / "died"
        if self._file is None:
            life = "second" if died.exists() else "first"
            self._file = (self.folder / f"{life}-{rank}.jsonl").open("a")
        line = {"step": step, "ids": batch["id"].tolist(), "loss": loss}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if rank == 1 and step == self.die_at and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die-at", type=int)
    options = parser.parse_args()
    train = importlib.import_module(options.name).train
    folder = options.folder
    notes = Notes(folder, options.die_at)
    train(folder / "data", folder / "checkpoints", epochs=2, on_step=notes)


if __name__ == "__main__":
    main()
