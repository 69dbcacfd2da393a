"""Copies into tars, ArrayRecord files or Parquet files that are killed.

usage: killed_copies.py SOURCE FOLDER STEP tar|record|rows

Each case is a process that gets SIGKILL at its n-th operation on files, for every STEP-th n until a
run succeeds, and is then run again without a kill. Prints a line of JSON: how many runs were killed
and resumed, and the errors found afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from headrace.errors import OptionError
from headrace.write import copy_rows, write_array_record, write_tar

WRITE: dict[str, Callable[[str, Path], object]] = {
    "tar": lambda source, target: write_tar(source, target, shard_bytes="20KiB"),
    "record": write_array_record,
    "rows": lambda source, target: copy_rows(source, target, file_rows=150, row_group_rows=40),
}
REFUSED = 3
"""the status of a run that finds all work done"""
WATCHED = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "open"}


def main(source: str, folder: Path, step: int, form: str) -> None:
    assert attempt(source, folder / "whole", None, form) == 0
    expected = contents(folder / "whole")
    killed, wrong, resumed = 0, [], 0
    event = 1
    while True:
        target = folder / f"case-{event}"
        status = attempt(source, target, event, form)
        if status == 0:
            break
        assert status == signal.SIGKILL, status
        killed += 1
        visible = target.exists()
        if visible and contents(target) != expected:
            wrong.append(f"{target.name} appeared before it was complete")
        journal = folder / f".{target.name}.headrace-work/headrace.jsonl"
        resumed += journal.exists() and len(journal.read_text().splitlines()) > 1
        forgotten = visible and not journal.exists()
        status = attempt(source, target, None, form)
        if status != (REFUSED if forgotten else 0):
            wrong.append(f"{target.name} exited with {status}")
        if contents(target) != expected:
            wrong.append(f"{target.name} has other contents")
        if not forgotten and list(folder.glob(f".{target.name}.*")):
            wrong.append(f"{target.name} left something behind")
        event += step
    print(json.dumps({"killed": killed, "resumed": resumed, "wrong": wrong}))


def attempt(source: str, target: Path, event: int | None, form: str) -> int:
    """Run a copy in a process; return the signal or the status that it ended with."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return os.WTERMSIG(status) or os.WEXITSTATUS(status)
    status = 1
    try:
        if event is not None:
            sys.addaudithook(killing(str(target.parent), event))
        WRITE[form](source, target)
        status = 0
    except OptionError:
        status = REFUSED
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def killing(folder: str, event: int) -> Callable[[str, tuple[object, ...]], None]:
    """Return an audit hook that kills this process right before its n-th operation on a folder."""
    left = [event]

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        if name in WATCHED and arguments and str(arguments[0]).startswith(folder):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files but the marker, which contains the id of the run."""
    if folder.is_file():
        return {"": folder.read_bytes()}
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("_"))
    return {path.name: path.read_bytes() for path in files}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
