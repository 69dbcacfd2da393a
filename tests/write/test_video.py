"""Writing frames of videos in a separate process: Lance runs in it, and other tests fork here."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_interpreters import run_warm


@pytest.mark.slow
def test_videos_are_written_to_lance() -> None:
    there = Path(__file__).with_name("video_writing_in_lance.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = run_warm("-m", "pytest", *options, there)
    assert done.returncode == 0, done.stdout + done.stderr
