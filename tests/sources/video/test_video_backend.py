"""Windows of frames in Lance data sets, in a process of their own.

Lance must not run in a process off which others are forked later, as those of other tests are.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_interpreters import run_warm


@pytest.mark.parametrize("module", ["video_frames_in_lance.py", "video_lists_in_lance.py"])
def test_windows_of_frames_in_lance(module: str) -> None:
    there = Path(__file__).with_name(module)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    done = run_warm("-m", "pytest", *options, there)
    assert done.returncode == 0, done.stdout + done.stderr
