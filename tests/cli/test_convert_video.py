"""``headrace convert --to video-frames``, in processes of its own."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from warm_interpreters import run_warm

READ = """
import sys
from headrace.sources.video.backend import VideoFramesBackend
windows = VideoFramesBackend(sys.argv[1], window_length=2, hop_size=2)
print(len(windows), windows.get_row(0)["video"].shape, windows.segment_filename(1))
"""


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    directory = tmp_path / "videos"
    directory.mkdir()
    with av.open(str(directory / "a clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for number in range(20):
            image = np.full((24, 32, 3), number * 10, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return directory


def test_videos_are_converted(videos: Path, tmp_path: Path) -> None:
    target = tmp_path / "frames.lance"
    options = ["--to", "video-frames", "--size", "12", "--fps", "5", "--codec", "jpeg"]
    done = run_warm("-m", "headrace", "convert", videos, target, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"10 frames of 1 video: {target}\n"
    assert "converting 100%" in done.stderr
    read = run_warm("-c", READ, target)
    assert read.stdout == "5 (2, 12, 16, 3) a clip_000002-000003\n", read.stderr


def test_a_damaged_video_is_one_line_or_left_out(videos: Path, tmp_path: Path) -> None:
    (videos / "broken.mkv").write_text("no video")
    command = ["-m", "headrace", "convert", videos, tmp_path / "frames.lance"]
    done = run_warm(*command, "--to", "video-frames")
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("headrace convert:")]
    assert "broken.mkv is no video that can be read" in said
    done = run_warm(*command, "--to", "video-frames", "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    assert "20 frames of 1 video, 1 skipped" in done.stdout
    assert f"skipped: {videos / 'broken.mkv'}" in done.stderr
