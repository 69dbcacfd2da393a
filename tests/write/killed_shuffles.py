"""Shuffles that are killed.

usage: killed_shuffles.py SOURCE FOLDER events|late COUNT FORMAT new|old

Each case is a process that gets SIGKILL at every fourth of its operations on files (``events``) or
at every second of the last ones (``late``), and is then run again without a kill. With ``old`` the
target contains something before, which is overwritten. Processes are forked before any threads
exist, which is fast.

Prints a line of JSON: how many runs were killed, in which stages, and the copies that differ from a
copy that was never killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from headrace import shuffle_into

OPTIONS = {"memory_bytes": "1MiB", "file_rows": 5_000, "row_group_rows": 1_000, "seed": 4}
FIRST_LATE = 66
WATCHED = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "open"}


def main(source: str, folder: Path, how: str, count: int, kind: str, there: str) -> None:
    OPTIONS["overwrite"] = there == "old"
    whole = folder / "whole"
    assert attempt(source, whole, kind, None) == 0
    expected = digest(whole)
    kills: dict[str, int] = {}
    different: list[str] = []
    for case in range(1, count + 1):
        target = folder / f"case-{case}"
        if there == "old":
            target.mkdir()
            (target / "old.parquet").write_text("is replaced")
        event = {"events": 4 * case, "late": FIRST_LATE + 2 * case}[how]
        status = attempt(source, target, kind, event)
        if status != 0:
            assert status == signal.SIGKILL, status
            stage = stage_of(target)
            kills[stage] = kills.get(stage, 0) + 1
            if stage != "done" and target.exists() and digest(target).keys() != {"old.parquet"}:
                different.append(f"{target.name} appeared before it was complete")
            done = stage == "done" and not journal_of(target).exists()
            refused = done and there == "new"  # everything is done and is not done again
            status = attempt(source, target, kind, None)
            assert status == (1 if refused else 0), (case, stage, status)
            if refused and journal_of(target).parent.exists():  # an empty directory may stay
                journal_of(target).parent.rmdir()
        if digest(target) != expected:
            different.append(target.name)
        if [path.name for path in folder.iterdir() if path.name.startswith(".")]:
            different.append(f"{target.name} left something behind")
    print(json.dumps({"kills": kills, "different": different}))


def attempt(source: str, target: Path, kind: str, event: int | None) -> int:
    """Run a shuffle in a process; return the signal or the status that it ended with."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            if event is not None:
                kill_at_event(event, str(target.parent))
            shuffle_into(source, target, target_format=kind, **OPTIONS)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, ended = os.waitpid(process, 0)
    return os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended)


def kill_at_event(number: int, folder: str) -> None:
    """Kill this process right before its n-th operation on files in the folder."""
    count = 0

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if name in WATCHED and folder in str(arguments[0]):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def journal_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.headrace-work") / "headrace.jsonl"


def stage_of(target: Path) -> str:
    journal = journal_of(target)
    lines = journal.read_text() if journal.exists() else ""
    if (target / "_headrace_copy.json").exists():
        return "done"
    if '"writing"' in lines:
        return "writing"
    return "sorting" if '"sorting"' in lines else "beginning"


def digest(folder: Path) -> dict[str, str]:
    """Return the digests of all files, and the marker without the id of the run."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name.startswith("_headrace"):
            marker = json.loads(path.read_text())
            found[path.name] = str({k: v for k, v in marker.items() if k != "run"})
        elif path.is_file():
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
