"""Lists of videos beside their frames: run by ``test_video_backend.py`` in a process of its own."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from video_rows import frames, video_list, write

from headrace.errors import ReadError
from headrace.sources.video.backend import VideoFramesBackend
from headrace.sources.video.videos import VIDEOS_KEY

COUNTS = [40, 7, 0, 25, 3]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return write(tmp_path, frames(COUNTS), video_list(COUNTS))


def test_a_list_that_disagrees_is_refused(tmp_path: Path) -> None:
    listed = video_list([*COUNTS, 2])
    backend = VideoFramesBackend(write(tmp_path, frames(COUNTS), listed))
    with pytest.raises(ReadError, match=r"disagrees with its rows.*77 frames.*75 rows"):
        len(backend)


def test_a_list_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    rows = frames(COUNTS).replace_schema_metadata({VIDEOS_KEY: "lost.lance"})
    lance.write_dataset(rows, tmp_path / "frames.lance")
    with pytest.raises(ReadError, match=r"the list of videos of .*lost\.lance"):
        len(VideoFramesBackend(tmp_path / "frames.lance"))


def test_a_list_is_given_to_rows_that_have_none(tmp_path: Path) -> None:
    uri = write(tmp_path, frames(COUNTS), None)
    lance.write_dataset(video_list(COUNTS), f"{uri}/videos.lance")
    lance.dataset(uri).update_schema_metadata({VIDEOS_KEY.decode(): "videos.lance"})
    assert VideoFramesBackend(uri).segment_info(0).key == "clip/0"


def test_the_list_outlives_a_clean_up_of_lance(uri: str) -> None:
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert len(VideoFramesBackend(uri)) == sum(COUNTS)


def test_metadata_that_is_no_json_is_told_with_its_video(tmp_path: Path) -> None:
    listed = video_list([3, 3]).set_column(8, "metadata", pa.array(["{}", "{oops"]))
    backend = VideoFramesBackend(write(tmp_path, frames([3, 3]), listed))
    assert backend.segment_info(0).metadata == {}
    with pytest.raises(ReadError, match="metadata of 'clip/1' is not JSON"):
        backend.segment_info(3)


def test_copies_read_the_list_that_was_read_first(uri: str) -> None:
    backend = VideoFramesBackend(uri)
    before = backend.take([0, -1], columns=["key", "start_frame"])
    pickled = pickle.dumps(backend)
    renamed = video_list(COUNTS).set_column(1, "key", pa.array(["other"] * len(COUNTS)))
    lance.write_dataset(renamed, f"{uri}/videos.lance", mode="overwrite")
    copy = pickle.loads(pickle.dumps(pickle.loads(pickled)))
    assert copy.take([0, -1], columns=["key", "start_frame"]).equals(before)
    assert VideoFramesBackend(uri).get_row(0, columns=["key"]) == {"key": "other"}


def stable_metadata(counts: list[int], **more: object) -> str:
    """Return what stable-datasets writes beside frames."""
    videos = [
        {
            "id": number,
            "key": number if number else "first",
            "path": f"/videos/{number}.mp4",
            "checksum": None,
            "T": count,
            "H": 6,
            "W": 8,
            "start_row": sum(counts[:number]),
            "metadata": {"label": 10 * number, "split": "train"},
        }
        for number, count in enumerate(counts)
    ]
    return json.dumps({"format": "lance", "layout": "lance-video-frames", "videos": videos, **more})


def test_the_list_of_stable_datasets(tmp_path: Path) -> None:
    uri = write(tmp_path, frames(COUNTS), None)
    (Path(uri) / "_metadata.json").write_text(stable_metadata(COUNTS))
    backend = pickle.loads(pickle.dumps(VideoFramesBackend(uri, window_length=4)))
    info = backend.segment_info(0)
    assert (info.key, info.path, info.checksum) == ("first", "/videos/0.mp4", "")
    assert info.metadata == {"label": 0, "split": "train"}
    last = backend.take([-1], columns=["key", "video_id", "metadata"]).to_pylist()[0]
    assert (last["key"], last["video_id"]) == ("3", 3)
    assert json.loads(last["metadata"]) == {"label": 30, "split": "train"}


@pytest.mark.parametrize("text", ['{"layout": "lance-rows"}', "[]"])
def test_metadata_of_other_things(tmp_path: Path, text: str) -> None:
    uri = write(tmp_path, frames([3, 3]), None)
    (Path(uri) / "_metadata.json").write_text(text)
    assert VideoFramesBackend(uri).segment_info(3).key == "1"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not a list of videos"),
        (stable_metadata([3, 3], videos=None), "no list of videos"),
        (stable_metadata([3, 3], videos=[{"id": 0}]), "a video has None for 'T'"),
        (stable_metadata([3, 4]), "7 frames, and there are 6 rows"),
    ],
)
def test_metadata_that_is_damaged(tmp_path: Path, text: str, match: str) -> None:
    uri = write(tmp_path, frames([3, 3]), None)
    (Path(uri) / "_metadata.json").write_text(text)
    with pytest.raises(ReadError, match=match):
        len(VideoFramesBackend(uri))
