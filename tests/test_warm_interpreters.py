"""Scripts end in warm interpreters as in fresh ones, and do not see anything of each other."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from warm_interpreters import ColdProcess, WarmProcess, hung, run_warm

LATE = """
import atexit, sys
class Late:
    def __del__(self):
        raise ValueError("too late")
atexit.register(lambda: 1 / 0)
kept = Late()
kept.itself = kept
print(sys.argv, __name__, sys.stdin.read())
sys.exit(7)
"""
HANGING = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
HANGING_WORKER = """
import multiprocessing, os, sys, time

def sleep_in_worker():
    os.write(1, b"asleep\\n")
    time.sleep(600)

def wait_for_worker():
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=sleep_in_worker)
    worker.start()
    worker.join()

if __name__ == "__main__":
    wait_for_worker()
"""
HIDDEN = """
import time

def hide():
    print("hidden", flush=True)
    time.sleep(600)

hide()
"""
FORK_SERVERS = """
import multiprocessing, os, signal, sys

def look():
    print("torch" in sys.modules, os.environ["SEEN"], __name__, flush=True)

def run_worker():
    os.environ["SEEN"] = str(int(os.environ.get("SEEN", 0)) + 1)
    worker = multiprocessing.get_context("forkserver").Process(target=look)
    worker.start()
    worker.join()

if __name__ == "__main__":
    run_worker()
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    run_worker()
"""
WATCHED = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
WATCHING = """
import os, select, time

def watch(pid):
    print("watching", flush=True)
    select.select([os.pidfd_open(pid)], [], [])
    react()

def react():
    time.sleep(600)

watch(int(input()))
"""


@pytest.mark.parametrize("start", [ColdProcess, WarmProcess])
def test_what_happens_at_the_end(start: type[WarmProcess]) -> None:
    with start("-c", LATE, "a", 1) as process:
        done = process.finish("text")
    assert (done.returncode, done.stdout) == (7, "['-c', 'a', '1'] __main__ text\n")
    assert "ZeroDivisionError" in done.stderr
    assert "too late" in done.stderr


def test_signals_and_hangs_are_seen() -> None:
    dying = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert run_warm("-c", dying).returncode == -signal.SIGSEGV
    with pytest.raises(subprocess.TimeoutExpired):
        run_warm("-c", HANGING, timeout_s=1)


def test_scripts_do_not_see_each_other() -> None:
    run_warm("-c", "x = 1; import json, os; json.x = 1; os.environ['X'] = '1'; os.chdir('/')")
    looking = "import json, os; print('x' in globals(), hasattr(json, 'x'), 'X' in os.environ)"
    assert run_warm("-c", looking).stdout == "False False False\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("start", [ColdProcess, WarmProcess])
def test_a_worker_that_hangs_shows_its_stack(
    start: type[WarmProcess], method: str, tmp_path: Path
) -> None:
    script = tmp_path / "hanging_worker.py"
    script.write_text(HANGING_WORKER)
    with start(script, method) as process:
        assert process.first_line() == "asleep"
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            process.finish(timeout_s=0.1)
        assert process.poll() == -signal.SIGABRT
    shown = "".join(caught.value.__notes__)
    assert shown.index("in wait_for_worker") < shown.index("in sleep_in_worker")


def test_the_first_fork_server_of_a_warm_script_has_imported_torch(tmp_path: Path) -> None:
    script = tmp_path / "fork_servers.py"
    script.write_text(FORK_SERVERS)
    ended = run_warm(script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "True 1 __mp_main__\nFalse 2 __mp_main__\n"


def test_a_session_of_its_own_is_no_hiding_place() -> None:
    starting = f"[sys.executable, '-c', {HIDDEN!r}], start_new_session=True"
    with ColdProcess("-c", f"import subprocess, sys; subprocess.run({starting})") as process:
        assert process.first_line() == "hidden"
        error = hung(process, timeout_s=0)
    assert "in hide" in "".join(error.__notes__)


def test_ranks_are_seen_where_they_were_and_not_what_they_did_when_others_ended() -> None:
    with WarmProcess("-c", WATCHED) as first, WarmProcess("-c", WATCHING) as second:
        second.stdin.write(f"{first.first_line()}\n")
        second.stdin.flush()
        assert second.first_line() == "watching"
        error = hung(first, second, timeout_s=0)
    shown = "".join(error.__notes__)
    assert "in watch" in shown
    assert "in react" not in shown
