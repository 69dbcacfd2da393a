"""Scripts end in warm interpreters as they do in fresh ones, and see nothing of each other."""

from __future__ import annotations

import signal
import subprocess

import pytest
from warm_interpreters import ColdProcess, WarmProcess, run_warm

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


@pytest.mark.parametrize("start", [ColdProcess, WarmProcess])
def test_what_happens_at_the_end(start: type[WarmProcess]) -> None:
    with start("-c", LATE, "a", 1) as process:
        done = process.finish("told")
    assert (done.returncode, done.stdout) == (7, "['-c', 'a', '1'] __main__ told\n")
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
