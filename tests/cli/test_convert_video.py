"""``headrace convert --to video-frames``, run in separate processes."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from warm_interpreters import run_warm

from headrace.cli import main

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
    result = run_warm("-m", "headrace", "convert", videos, target, *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"10 frames of 1 video: {target}\n"
    assert "writing 100%" in result.stderr
    read = run_warm("-c", READ, target)
    assert read.stdout == "5 (2, 12, 16, 3) a clip_000002-000003\n", read.stderr


def test_a_damaged_video_is_one_line_or_left_out(videos: Path, tmp_path: Path) -> None:
    (videos / "broken.mkv").write_text("no video")
    command = ["-m", "headrace", "convert", videos, tmp_path / "frames.lance"]
    result = run_warm(*command, "--to", "video-frames")
    assert result.returncode == 2
    (message,) = [
        line for line in result.stderr.splitlines() if line.startswith("headrace convert:")
    ]
    assert "broken.mkv cannot be read as a video" in message
    result = run_warm(*command, "--to", "video-frames", "--on-error", "skip")
    assert result.returncode == 0, result.stderr
    assert "20 frames of 1 video, 1 skipped" in result.stdout
    assert f"skipped: {videos / 'broken.mkv'}" in result.stderr


def test_videos_have_no_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path), str(tmp_path / "out"), "--to", "video-frames", "--columns", "a"]
    assert main(["convert", *arguments]) == 2
    assert "has no keyword columns" in capsys.readouterr().err
