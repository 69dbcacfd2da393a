"""Tests that ``test_video.py`` runs in a separate process."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from video_files import HEIGHT, TELLS_ROTATION, WIDTH, cut_off, damage, make_video, picture, turn

from headrace.errors import OptionError, ReadError, StateMismatchError, WriteError
from headrace.sources.video.backend import VideoFramesBackend
from headrace.sources.video.videos import VIDEO_SCHEMA, VIDEOS_KEY
from headrace.write._video import VideoFramesReport, write_video_frames

SMALL = 4000
"""bytes of a fragment, so that each video is its own part"""


def write(videos: Path, target: Path, **options: Any) -> VideoFramesReport:
    chosen = {"codec": "jpeg", "fragment_bytes": SMALL} | options
    return write_video_frames(videos, target, **chosen)


def rows(target: Path) -> pa.Table:
    return lance.dataset(target).to_table()


def listed(target: Path) -> pa.Table:
    dataset = lance.dataset(target)
    return lance.dataset(target / dataset.schema.metadata[VIDEOS_KEY].decode()).to_table()


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Write three videos in different folders and formats."""
    directory = tmp_path / "videos"
    make_video(directory / "a.mp4", 3, red=10)
    make_video(directory / "b.mkv", 60, red=90, codec="libx264")
    make_video(directory / "c/d.avi", 5, red=170)
    return directory


def test_frames_and_the_list_of_videos(videos: Path, tmp_path: Path) -> None:
    target = tmp_path / "frames.lance"
    shares: list[float] = []
    report = write(
        videos,
        target,
        metadata={"c/d": {"label": 3}},
        progress=lambda stage, share: shares.append(share),
    )
    assert (report.videos, report.frames, report.skipped) == (3, 68, ())
    table = rows(target)
    assert table["video_id"].to_pylist() == [0] * 3 + [1] * 60 + [2] * 5
    assert table["frame_idx"].to_pylist() == [*range(3), *range(60), *range(5)]
    found = listed(target)
    assert found.schema.equals(VIDEO_SCHEMA)
    assert found["key"].to_pylist() == ["a", "b", "c/d"]
    assert found["first_row"].to_pylist() == [0, 3, 63]
    assert found["frames"].to_pylist() == [3, 60, 5]
    assert set(found["height"].to_pylist()) == {HEIGHT}
    data = (videos / "b.mkv").read_bytes()
    assert found["checksum"][1].as_py() == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert found["path"][1].as_py() == str(videos / "b.mkv")
    about = json.loads(found["metadata"][2].as_py())
    assert (about["label"], about["source_fps"], about["source_width"]) == (3, 10.0, WIDTH)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert not (tmp_path / ".frames.lance.headrace-work").exists()


def test_windows_of_what_was_written(videos: Path, tmp_path: Path) -> None:
    write(videos, tmp_path / "frames.lance")
    backend = VideoFramesBackend(tmp_path / "frames.lance", window_length=3, hop_size=3)
    assert len(backend) == 1 + 20 + 1
    for window, (frame, red) in {0: (0, 10), 5: (12, 90), 21: (0, 170)}.items():
        found = backend.get_row(window)["video"].astype(int)
        expected = [picture(frame + step, red=red) for step in range(3)]
        assert np.abs(found - np.array(expected)).mean() < 8


def test_rows_do_not_depend_on_fragments(videos: Path, tmp_path: Path) -> None:
    """Write a long video, which is stored in several fragments."""
    make_video(videos / "long.mp4", 250, height=240, width=320, noise=40)
    write(videos, tmp_path / "small.lance", quality=100, size=600)
    write(videos, tmp_path / "large.lance", quality=100, size=600, fragment_bytes="1GiB")
    assert len(lance.dataset(tmp_path / "small.lance").get_fragments()) > 4
    assert rows(tmp_path / "small.lance").equals(rows(tmp_path / "large.lance"))
    assert len(lance.dataset(tmp_path / "large.lance").get_fragments()) == 1
    assert listed(tmp_path / "small.lance").equals(listed(tmp_path / "large.lance"))


def test_aspect_is_kept(tmp_path: Path) -> None:
    make_video(tmp_path / "videos/wide.mp4", 4)
    make_video(tmp_path / "videos/tall.mp4", 4, height=64, width=16)
    write(tmp_path / "videos", tmp_path / "frames.lance", size=12)
    found = listed(tmp_path / "frames.lance")
    sizes = zip(found["height"].to_pylist(), found["width"].to_pylist(), strict=True)
    assert list(sizes) == [(48, 12), (12, 16)]
    shapes = VideoFramesBackend(tmp_path / "frames.lance", window_length=2).table["shape"]
    assert shapes.to_pylist() == [[2, 48, 12, 3]] * 3 + [[2, 12, 16, 3]] * 3


@pytest.mark.skipif(not TELLS_ROTATION, reason="old PyAV does not tell rotation")
def test_a_video_that_was_taken_upright_is_stored_upright(tmp_path: Path) -> None:
    turn(make_video(tmp_path / "videos/phone.mp4", 6, red=60))
    write(tmp_path / "videos", tmp_path / "frames.lance")
    row = listed(tmp_path / "frames.lance").to_pylist()[0]
    assert (row["height"], row["width"]) == (WIDTH, HEIGHT)
    assert json.loads(row["metadata"])["source_height"] == HEIGHT
    found = VideoFramesBackend(tmp_path / "frames.lance").get_row(3)["video"][0].astype(int)
    assert np.abs(found - np.rot90(picture(3, red=60), -1)).mean() < 8


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (lambda path: None, "must be a mapping, not None"),
        (lambda path: {"count": np.int64(3)}, "must be JSON"),
        ({"one": 3}, "must be a mapping, not 3"),
    ],
    ids=["nothing", "no JSON", "a number"],
)
def test_metadata_that_is_none_is_told_with_its_video(
    tmp_path: Path, metadata: Any, message: str
) -> None:
    make_video(tmp_path / "videos/one.mp4", 4)
    with pytest.raises(OptionError, match=rf"metadata of .*one\.mp4 {message}"):
        write(tmp_path / "videos", tmp_path / "frames.lance", metadata=metadata)


def killed(videos: Path, target: Path, lines: int) -> int:
    """Run a conversion that kills itself when its journal has the given number of lines."""
    code = f"""
import os, signal, sys
from pathlib import Path
from headrace.write._video import write_video_frames
journal = Path({str(target.parent / f".{target.name}.headrace-work/headrace.jsonl")!r})
def watch(stage, share):
    if journal.read_text().count("\\n") >= {lines}:
        os.kill(os.getpid(), signal.SIGKILL)
write_video_frames({str(videos)!r}, {str(target)!r}, codec="jpeg", fragment_bytes={SMALL},
                   progress=watch)
"""
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode


def test_a_kill_costs_no_row(videos: Path, tmp_path: Path) -> None:
    write(videos, tmp_path / "whole.lance")
    target = tmp_path / "frames.lance"
    assert killed(videos, target, 3) == -signal.SIGKILL
    journal = (tmp_path / ".frames.lance.headrace-work/headrace.jsonl").read_text().splitlines()
    parts = [line for line in map(json.loads, journal) if line.get("stage") == "writing"]
    assert [part["part"] for part in parts] == [0, 1]
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(target)
    report = write(videos, target)
    assert report.resumed
    assert rows(target).equals(rows(tmp_path / "whole.lance"))
    assert listed(target).equals(listed(tmp_path / "whole.lance"))
    kept = [fragment.metadata.files[0].path for fragment in lance.dataset(target).get_fragments()]
    assert parts[1]["receipt"]["fragments"][0]["files"][0]["path"] in kept


def test_unfinished_work_is_gone_on_with_as_it_was_or_not_at_all(
    videos: Path, tmp_path: Path
) -> None:
    target = tmp_path / "frames.lance"
    assert killed(videos, target, 2) == -signal.SIGKILL
    with pytest.raises(StateMismatchError, match="quality"):
        write(videos, target, quality=50)
    with pytest.raises(StateMismatchError, match="metadata"):
        write(videos, target, metadata={"a": {"place": "here"}})
    a = videos / "a.mp4"
    before, times = a.read_bytes(), a.stat().st_mtime_ns
    make_video(a, 4)
    with pytest.raises(StateMismatchError, match="sources"):
        write(videos, target)
    a.write_bytes(before)
    os.utime(a, ns=(times, times))
    shutil.rmtree(target)  # the lost frames are written again
    assert write(videos, target).frames == 68
    assert rows(target).num_rows == 68


def test_a_damaged_video_is_an_error_or_left_out(videos: Path, tmp_path: Path) -> None:
    cut_off(videos / "b.mkv", 0.6)
    damage(make_video(videos / "e.mp4"), 0.33, 0.5)
    target = tmp_path / "frames.lance"
    with pytest.raises(ReadError, match=r'b\.mkv is damaged at \d\.\d+ s.*on_error="skip"'):
        write(videos, target, fragment_bytes=1)
    report = write(videos, target, on_error="skip", fragment_bytes=1)
    assert report.resumed
    assert (report.videos, report.frames) == (2, 8)
    assert ["b.mkv" in report.skipped[0], "e.mp4" in report.skipped[1]] == [True, True]
    assert rows(target)["video_id"].to_pylist() == [0] * 3 + [2] * 5
    assert listed(target)["first_row"].to_pylist() == [0, 3]
    assert len(VideoFramesBackend(target, window_length=3)) == 4


def test_nothing_is_written_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("no video")
    with pytest.raises(WriteError, match=r"no video could be read.*a\.mp4"):
        write(tmp_path / "a.mp4", tmp_path / "frames.lance", on_error="skip")


def test_what_was_there_stays_as_an_older_version(videos: Path, tmp_path: Path) -> None:
    target = tmp_path / "frames.lance"
    write(videos, target)
    before = VideoFramesBackend(target, window_length=3)
    with pytest.raises(OptionError, match="overwrite"):
        write(videos / "a.mp4", target)
    write(videos / "a.mp4", target, overwrite=True)
    assert len(VideoFramesBackend(target, window_length=3)) == 1
    assert len(before) == len(VideoFramesBackend(target, window_length=3, version=1)) == 62


def test_memory_does_not_grow_with_a_video(tmp_path: Path) -> None:
    def peak_mb() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    options: dict[str, Any] = {"fragment_bytes": "2MiB", "codec": "jpeg"}
    sides = {"height": 240, "width": 320, "noise": 40}
    write(make_video(tmp_path / "short.mp4", 60, **sides), tmp_path / "short.lance", **options)
    before = peak_mb()
    long = make_video(tmp_path / "long.mp4", 700, **sides)
    report = write(long, tmp_path / "long.lance", **options)
    assert report.frames == 700  # 161 MB of pixels, stored in 15 MB
    assert peak_mb() - before < 60


def test_a_store_elsewhere_is_written_to_and_read_from(
    videos: Path, s3_server: Any, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket("video-frames")
    options = s3_server.storage_options
    for path in videos.rglob("*.*"):
        s3_server.put(bucket, f"videos/{path.relative_to(videos)}", path.read_bytes())
    target = f"s3://{bucket}/frames.lance"
    write_video_frames(
        f"s3://{bucket}/videos/",
        target,
        codec="jpeg",
        storage_options=options,
        target_options=options,
        work_dir=tmp_path / "work",
    )
    backend = VideoFramesBackend(target, window_length=3, hop_size=3, storage_options=options)
    assert len(backend) == 22
    assert backend.segment_info(21).path == f"s3://{bucket}/videos/c/d.avi"
    write(videos, tmp_path / "here.lance")
    here = VideoFramesBackend(tmp_path / "here.lance", window_length=3, hop_size=3)
    assert backend.table["video"].equals(here.table["video"])
    shutil.rmtree(tmp_path / "here.lance")
    assert os.listdir(tmp_path) == ["videos"]
