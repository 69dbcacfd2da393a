"""Videos to frames: which frames are kept, their size, and the errors of damaged videos."""

from __future__ import annotations

import wave
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from video_files import STEP, TELLS_ROTATION, cut_off, damage, make_video, picture, turn

from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.storage import Access
from headrace.write import write_video_frames
from headrace.write._video import find_videos
from headrace.write._video_decode import Encoding, Sampling, VideoFile, encoded_frames


def greens(path: Path, sampling: Sampling) -> list[int]:
    """Return the numbers of the frames that are kept of a video."""
    with closing(VideoFile.open(str(path), str(path))) as video:
        kept = [frame.to_ndarray(format="rgb24") for frame in sampling.chosen(video.frames())]
    return [round(float(image[..., 1].mean()) / STEP) for image in kept]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), range(40)),
        (Sampling(every=7), range(0, 40, 7)),
        (Sampling(fps=5), range(0, 40, 2)),
        (Sampling(fps=3), [0, 4, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37]),
        (Sampling(fps=1000), range(40)),
    ],
    ids=["all", "every 7th", "5 a second", "3 a second", "more than there are"],
)
def test_frames_are_chosen(tmp_path: Path, sampling: Sampling, expected: list[int]) -> None:
    assert greens(make_video(tmp_path / "a.mkv", codec="ffv1"), sampling) == list(expected)


@pytest.mark.parametrize("codec", ["webp", "jpeg"])
def test_frames_are_encoded_in_order(tmp_path: Path, codec: str) -> None:
    path = make_video(tmp_path / "a.mp4", red=60)
    with closing(VideoFile.open(str(path), str(path))) as video:
        chosen = Sampling().chosen(video.frames())
        encoded = list(encoded_frames(chosen, Encoding(codec=codec), 24, 32))
    images = [Image.open(BytesIO(data)) for data in encoded]
    assert {image.format for image in images} == {codec.upper()}
    for number, image in enumerate(images):
        off = np.asarray(image.convert("RGB")).astype(int) - picture(number, red=60)
        assert np.abs(off).mean() < 6, number


def test_the_shorter_side_gets_the_size_and_the_other_follows() -> None:
    assert Encoding(size=12).dimensions(24, 32) == (12, 16)
    assert Encoding(size=12).dimensions(1920, 1080) == (21, 12)
    assert Encoding(size=48).dimensions(24, 32) == (48, 64)
    assert Encoding().dimensions(24, 32) == (24, 32)


@pytest.mark.skipif(not TELLS_ROTATION, reason="old PyAV does not tell rotation")
def test_frames_are_stored_the_right_way_up(tmp_path: Path) -> None:
    path = turn(make_video(tmp_path / "a.mp4", red=60))
    with closing(VideoFile.open(str(path), str(path))) as video:
        encoded = list(encoded_frames(Sampling().chosen(video.frames()), Encoding(), 32, 24))
    assert len(encoded) == 40
    for number, data in enumerate(encoded):
        image = np.asarray(Image.open(BytesIO(data)).convert("RGB")).astype(int)
        expected = np.rot90(picture(number, red=60), -1)
        assert image.shape == expected.shape
        assert np.abs(image - expected).mean() < 6, number


@pytest.mark.parametrize(
    "wrong",
    [
        {"codec": "png"},
        {"quality": 0},
        {"size": 0},
        {"every": 0},
        {"fps": -1},
        {"every": 2, "fps": 3},
    ],
    ids=" and ".join,
)
def test_options_that_are_none_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    make_video(tmp_path / "a.mp4", 2)
    with pytest.raises(OptionError, match=" and ".join(wrong)):
        write_video_frames(tmp_path / "a.mp4", tmp_path / "frames.lance", **wrong)


def sound(path: Path) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    return path


def text(path: Path) -> Path:
    path.write_text("no video")
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: damage(make_video(p / "v.mp4"), 0.33, 0.5), r"v\.mp4 is damaged at 2\.000 s"),
        (lambda p: cut_off(make_video(p / "v.mp4"), 0.5), r"v\.mp4 cannot be read as a video"),
        (
            lambda p: cut_off(make_video(p / "v.mkv", 60), 0.5),
            r"v\.mkv is damaged at \d\.\d+ s: the rest of 6\.000 s is missing",
        ),
        (lambda p: sound(p / "v.wav"), r"v\.wav contains no video stream"),
        (lambda p: text(p / "v.mp4"), r"v\.mp4 cannot be read as a video"),
    ],
    ids=["in the middle", "without an index", "cut off", "sound", "text"],
)
def test_what_is_wrong_with_a_video_is_said_with_its_place(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(ReadError, match=message):
        greens(path, Sampling())


def test_videos_of_directories_are_found_and_have_keys_of_their_own(tmp_path: Path) -> None:
    for name in ("x/one.mp4", "x/one.mkv", "y/two.MP4", "y/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"-")
    found = find_videos(tmp_path, Access())
    assert [video.key for video in found] == ["x/one.mkv", "x/one.mp4", "y/two"]
    assert [video.video_id for video in found] == [0, 1, 2]
    assert [one.key for one in find_videos(tmp_path / "y/notes.txt", Access())] == ["notes"]


def test_a_directory_without_videos_is_told_of(tmp_path: Path) -> None:
    text(tmp_path / "notes.txt")
    with pytest.raises(NothingFoundError, match=r"no video in .*\.mp4"):
        find_videos(tmp_path, Access())


def test_archives_of_videos_are_no_videos(tmp_path: Path) -> None:
    (tmp_path / "clips.tar").write_bytes(b"-")
    with pytest.raises(OptionError, match=r"clips\.tar is an archive.*unpack it"):
        find_videos([tmp_path / "clips.tar"], Access())
