"""Writing frames of videos in a separate process: Lance runs in it, and other tests fork here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_videos_are_written_to_lance() -> None:
    there = Path(__file__).with_name("video_writing_in_lance.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(there)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
