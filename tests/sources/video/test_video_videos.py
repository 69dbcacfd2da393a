"""Windows by arithmetic, and the videos that they are of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, OptionError, ReadError, SchemaError
from headrace.sources.video.videos import (
    VIDEO_SCHEMA,
    Videos,
    WindowOptions,
    Windows,
    check_frames,
    derived,
    videos_of_list,
)


def videos_of(counts: list[int]) -> Videos:
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
    sizes = np.full(len(counts), 8)
    return Videos(np.arange(len(counts)), starts, pa.table({"key": []}), sizes, sizes)


def listed(counts: list[int], options: WindowOptions) -> list[tuple[int, list[int]]]:
    """Video and frames of each window, one after the other."""
    found = []
    for video, frames in enumerate(counts):
        start = 0
        while start + options.span <= frames and frames >= (options.min_video_frames or 0):
            found.append((video, [start + n * options.stride for n in range(options.length)]))
            start += options.hop
    return found


OPTIONS = st.builds(
    WindowOptions,
    length=st.integers(1, 5),
    skip=st.integers(0, 3),
    hop=st.integers(1, 6),
    min_video_frames=st.none() | st.integers(0, 20),
)
COUNTS = st.lists(st.integers(0, 30), max_size=8)


@given(COUNTS, OPTIONS)
def test_windows_are_those_that_one_would_list(counts: list[int], options: WindowOptions) -> None:
    expected = listed(counts, options)
    windows = Windows(videos_of(counts), options)
    assert len(windows) == len(expected)
    videos, begins = windows.located(np.arange(len(expected)))
    places = windows.places(begins)
    assert [(v, p) for v, p in zip(videos.tolist(), places.tolist(), strict=True)] == expected


def test_a_million_videos_are_arithmetic() -> None:
    windows = Windows(videos_of([120] * 1_000_000), WindowOptions(length=16, hop=4))
    assert len(windows) == 27 * 1_000_000
    videos, begins = windows.located(np.array([0, 27, len(windows) - 1]))
    assert (videos.tolist(), begins.tolist()) == ([0, 1, 999_999], [0, 0, 104])


@pytest.mark.parametrize(
    ("name", "value"),
    [("length", 0), ("length", 2.0), ("skip", -1), ("hop", 0), ("hop", True)],
)
def test_options_that_are_none_are_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError, match="must be an int"):
        WindowOptions(**{name: value})  # type: ignore[arg-type]


def listed_table(**changed: list[object]) -> pa.Table:
    columns = {
        "video_id": [7, 8],
        "key": ["a", "b"],
        "path": ["a.mp4", "b.mp4"],
        "checksum": ["", ""],
        "frames": [3, 4],
        "height": [24, 24],
        "width": [32, 32],
        "first_row": [0, 3],
        "metadata": ["{}", "{}"],
    }
    return pa.table(columns | changed, schema=VIDEO_SCHEMA)


def test_a_list_of_videos_may_be_in_any_order() -> None:
    table = listed_table().take([1, 0])
    videos = videos_of_list(table, 7, "frames.lance")
    assert videos.ids.tolist() == [7, 8]
    assert videos.starts.tolist() == [0, 3, 7]
    assert videos.details["key"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_a_video_without_frames_stands_anywhere_in_a_list(order: list[int]) -> None:
    none = listed_table(video_id=[9, 10], frames=[0, 0], first_row=[3, 3]).slice(0, 1)
    table = pa.concat_tables([listed_table(), none]).take(order)
    videos = videos_of_list(table, 7, "frames.lance")
    assert videos.ids.tolist() == [7, 9, 8]
    assert videos.starts.tolist() == [0, 3, 3, 7]


def test_a_list_need_not_know_where_videos_come_from() -> None:
    nothing = [None, None]
    table = listed_table(key=[None, "b"], path=nothing, checksum=nothing, metadata=nothing)
    assert videos_of_list(table, 7, "frames.lance").details.to_pylist() == [
        {"key": "7", "path": "", "checksum": "", "metadata": "{}"},
        {"key": "b", "path": "", "checksum": "", "metadata": "{}"},
    ]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (listed_table(frames=[3, 5]), "8 frames, and there are 7 rows"),
        (listed_table(first_row=[0, 4]), "video 8 has 4 frames from row 4 on.* end at row 3"),
        (listed_table(frames=[-3, 4]), "video 7 has -3 frames"),
        (listed_table(video_id=[7, 7]), "names a video_id twice"),
        (listed_table(height=[24, None]), "height is null"),
        (listed_table().drop_columns(["width"]), "no column 'width'"),
    ],
    ids=["count", "first row", "negative", "id twice", "null", "column"],
)
def test_a_list_that_disagrees_with_the_rows_is_refused(table: pa.Table, told: str) -> None:
    with pytest.raises(HeadraceError, match=told) as caught:
        videos_of_list(table, 7, "frames.lance")
    assert isinstance(caught.value, ReadError | SchemaError)
    assert "frames.lance" in str(caught.value)


def ids(pairs: list[tuple[int | None, int]]) -> pa.Table:
    video_ids, numbers = zip(*pairs, strict=True)
    columns = {"video_id": pa.array(video_ids, pa.int64()), "frame_idx": pa.array(numbers)}
    return pa.table(columns)


def test_videos_are_found_by_their_rows() -> None:
    videos = derived(ids([(5, 0), (5, 1), (2, 0), (2, 1), (2, 2)]))
    assert videos.ids.tolist() == [5, 2]
    assert videos.starts.tolist() == [0, 2, 5]
    assert videos.rows is None
    assert videos.numbers is None
    assert videos.details["key"].to_pylist() == ["5", "2"]


def test_frames_that_lie_anywhere_are_brought_into_order() -> None:
    videos = derived(ids([(1, 4), (0, 0), (1, 2), (0, 1)]))
    assert videos.ids.tolist() == [0, 1]
    assert videos.rows is not None
    assert videos.rows.tolist() == [1, 3, 2, 0]
    assert videos.frame_numbers(np.array([1, 1]), np.array([0, 1])).tolist() == [2, 4]


def test_a_frame_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ReadError, match="rows 0 and 2 are both frame 4 of video 1"):
        derived(ids([(1, 4), (0, 0), (1, 4)]))


def test_a_frame_of_no_video_is_refused() -> None:
    with pytest.raises(ReadError, match="video_id is null in row 1"):
        derived(ids([(1, 4), (None, 5)]))


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.uint8())])
def test_frames_that_are_no_bytes_are_refused(kind: pa.DataType) -> None:
    schema = pa.schema({"video_id": pa.int64(), "frame_idx": pa.int64(), "bytes": kind})
    with pytest.raises(SchemaError, match=r"frames\.lance has .*bytes \("):
        check_frames(schema, "frames.lance")
