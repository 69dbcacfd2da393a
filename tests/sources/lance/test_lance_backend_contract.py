"""The contract of backends over Lance tables, in a process of its own.

Lance must not run in a process off which others are forked later, as those of other tests are.
"""

from __future__ import annotations

from pathlib import Path

from warm_interpreters import run_warm


def test_lance_tables_keep_the_contract() -> None:
    there = Path(__file__).with_name("lance_contract.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    done = run_warm("-m", "pytest", *options, there)
    assert done.returncode == 0, done.stdout + done.stderr
