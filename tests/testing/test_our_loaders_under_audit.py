"""This library's own loaders lose and repeat nothing in random schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_interpreters import run_warm

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_schedule_of_each_format_order_filter_and_size() -> None:
    done = run_warm(ROOT / "scripts" / "audit.py", "--schedules", 12, timeout_s=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("runs: 0 rows lost, 0 duplicated, 0 out of order\n")
