"""Windows of frames that any backend holds: columns, pixels, and frames that are broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from video_rows import HEIGHT, WIDTH, Sizes, encoded, frames, pixels, video_list

from headrace.access import Backend
from headrace.errors import ReadError
from headrace.model import Int64Array
from headrace.sources.arrow.backend import ArrowBackend
from headrace.sources.video._pixels import FrameForm, WindowReader
from headrace.sources.video.videos import WindowOptions, Windows, derived, videos_of_list

COUNTS = [9, 2, 0, 7]


class Recorded(ArrowBackend):
    """Notes which rows are taken, and of which columns."""

    taken: list[tuple[list[int], list[str]]]

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        self.taken.append((rows.tolist(), schema.names))
        return super()._take(rows, schema)


def reader(
    table: pa.Table,
    *,
    sizes: Sizes | None = None,
    counts: list[int] = COUNTS,
    form: FrameForm | None = None,
    listed: bool = True,
    **options: int,
) -> WindowReader:
    backend: Backend = Recorded(table=table)
    backend.taken = []  # type: ignore[attr-defined]
    if listed:
        videos = videos_of_list(video_list(counts, sizes), table.num_rows, "frames")
    else:
        sizes_of = np.full(sum(count > 0 for count in counts), 1)
        videos = replace(derived(table), heights=HEIGHT * sizes_of, widths=WIDTH * sizes_of)
    windows = Windows(videos, WindowOptions(**options))  # type: ignore[arg-type]
    return WindowReader("frames", backend, windows, form or FrameForm())


def broken(table: pa.Table, row: int, data: bytes | None) -> pa.Table:
    values = table["bytes"].to_pylist()
    values[row] = data
    fields = [field.with_nullable(True) for field in table.schema]
    return pa.table([table["video_id"], table["frame_idx"], values], schema=pa.schema(fields))


def tensors(table: pa.Table) -> np.ndarray:
    return table["video"].combine_chunks().to_numpy_ndarray()


@pytest.mark.parametrize("listed", [True, False], ids=["with a list", "without"])
def test_windows_hold_their_frames(listed: bool) -> None:
    made = reader(frames(COUNTS), listed=listed, length=3, skip=1, hop=2)
    table = made.read(np.arange(len(made.windows)), made.schema)
    starts = [(0, 0), (0, 2), (0, 4), (3, 0), (3, 2)]
    expected = [[pixels(v, start + n) for n in (0, 2, 4)] for v, start in starts]
    assert np.array_equal(tensors(table), np.array(expected))
    assert table["video_id"].to_pylist() == [0, 0, 0, 3, 3]
    assert table["start_frame"].to_pylist() == [0, 2, 4, 0, 2]
    assert table["frame_indices"].to_pylist() == [[s, s + 2, s + 4] for _, s in starts]
    assert table["key"].to_pylist()[-1] == ("clip/3" if listed else "3")
    assert table["metadata"].to_pylist()[-1] == ('{"label": 3}' if listed else "{}")


def test_frames_that_windows_share_are_taken_once_and_all_at_once() -> None:
    made = reader(frames(COUNTS), length=4, hop=1)
    table = made.read(np.array([2, 0, 1, 0]), made.schema)
    assert made.frames.taken == [([0, 1, 2, 3, 4, 5], ["video_id", "frame_idx", "bytes"])]
    assert table["start_frame"].to_pylist() == [2, 0, 1, 0]
    assert tensors(table)[:, :, 0, 0, 1].tolist() == [
        [2, 3, 4, 5],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [0, 1, 2, 3],
    ]


def test_one_thread_and_several_decode_the_same() -> None:
    counts = [200]
    made = reader(frames(counts), counts=counts, length=8, hop=5)
    expected = [[start + n for n in range(8)] for start in range(0, 193, 5)]
    for _ in range(4):  # in which both have their turn, if there are several cores
        table = made.read(np.arange(len(made.windows)), made.schema)
        assert tensors(table)[:, :, 0, 0, 1].tolist() == expected


def test_without_pixels_no_frame_is_read() -> None:
    made = reader(frames(COUNTS), length=3)
    wanted = pa.schema([made.schema.field(name) for name in ("frame_indices", "key")])
    assert made.read(np.array([1]), wanted).to_pylist() == [
        {"frame_indices": [1, 2, 3], "key": "clip/0"}
    ]
    assert made.frames.taken == []


def test_channels_come_first_where_that_is_wanted() -> None:
    made = reader(frames(COUNTS), length=2, form=FrameForm(channels_first=True))
    assert made.schema.field("video").type.shape == [2, 3, HEIGHT, WIDTH]
    found = tensors(made.read(np.array([4]), made.schema))[0]
    assert np.array_equal(found, np.array([pixels(0, n).transpose(2, 0, 1) for n in (4, 5)]))


def test_videos_of_several_sizes_are_flat_and_have_a_shape() -> None:
    sizes = {3: (4, 10)}
    made = reader(frames(COUNTS, sizes), sizes=sizes, length=2, hop=6)
    table = made.read(np.arange(len(made.windows)), made.schema)
    assert table["shape"].to_pylist()[0] == [2, HEIGHT, WIDTH, 3]
    assert table["shape"].to_pylist()[-1] == [2, 4, 10, 3]
    first = np.array(table["video"][0].as_py(), np.uint8).reshape(2, HEIGHT, WIDTH, 3)
    assert np.array_equal(first, np.array([pixels(0, 0), pixels(0, 1)]))
    last = np.array(table["video"][-1].as_py(), np.uint8).reshape(2, 4, 10, 3)
    assert np.array_equal(last, np.array([pixels(3, 0, (4, 10)), pixels(3, 1, (4, 10))]))


def test_videos_that_have_no_windows_do_not_count_for_the_size() -> None:
    sizes = {1: (4, 10)}
    made = reader(frames(COUNTS, sizes), sizes=sizes, length=5)
    assert made.schema.field("video").type.shape == [5, HEIGHT, WIDTH, 3]


def test_videos_of_several_sizes_can_be_brought_to_one() -> None:
    sizes = {3: (12, 16)}
    form = FrameForm(resize=(HEIGHT, WIDTH))
    made = reader(frames(COUNTS, sizes), sizes=sizes, length=1, hop=100, form=form)
    found = tensors(made.read(np.arange(3), made.schema))
    assert found.shape == (3, 1, HEIGHT, WIDTH, 3)
    assert np.array_equal(found[0, 0], pixels(0, 0))
    assert np.array_equal(found[2, 0, :, :, 0], np.full((HEIGHT, WIDTH), 3))


@pytest.mark.parametrize("data", [b"no image", None], ids=["bytes", "null"])
def test_a_frame_that_does_not_decode_is_named(data: bytes | None) -> None:
    made = reader(broken(frames(COUNTS), 13, data), length=2)
    with pytest.raises(ReadError, match=r"frames: frame 2 of video 3 \(clip/3\), row 13, does not"):
        made.read(np.arange(len(made.windows)), made.schema)


def test_windows_with_broken_frames_can_be_left_out() -> None:
    made = reader(broken(broken(frames(COUNTS), 3, b""), 13, b"x"), length=2, hop=2)
    told: list[str] = []
    table = made.read(np.arange(len(made.windows)), made.schema, told)
    assert table["video_id"].to_pylist() == [0, 0, 0, 1, 3, 3]
    assert table["start_frame"].to_pylist() == [0, 4, 6, 0, 0, 4]
    assert tensors(table)[:, :, 0, 0, 1].tolist() == [[s, s + 1] for s in (0, 4, 6, 0, 0, 4)]
    assert ["frame 3 of video 0" in told[0], "frame 2 of video 3" in told[1]] == [True, True]


def test_windows_of_several_sizes_with_broken_frames_can_be_left_out() -> None:
    sizes = {3: (4, 10)}
    table = broken(frames(COUNTS, sizes), 1, b"")
    made = reader(table, sizes=sizes, length=2, hop=7)
    told: list[str] = []
    found = made.read(np.arange(len(made.windows)), made.schema, told)
    assert found["shape"].to_pylist() == [[2, 6, 8, 3], [2, 6, 8, 3], [2, 4, 10, 3]]
    last = np.array(found["video"][-1].as_py(), np.uint8).reshape(2, 4, 10, 3)
    assert np.array_equal(last[1], pixels(3, 1, (4, 10)))
    assert len(told) == 1


def test_a_frame_of_another_size_than_is_noted_is_named() -> None:
    made = reader(broken(frames(COUNTS), 0, encoded(pixels(0, 0, (5, 8)))), length=2)
    with pytest.raises(ReadError, match=r"frame 0 of video 0.*\(5, 8, 3\).*resize="):
        made.read(np.array([0]), made.schema)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([2, 3, 0, 1], "row 0 should be frame 0 of video 0, and is frame 0 of video 1"),
        ([1, 0, 2, 3], "row 0 should be frame 0 of video 0, and is frame 1 of video 0"),
    ],
    ids=["video", "frame"],
)
def test_a_row_that_is_another_frame_than_the_list_says_is_named(
    rows: list[int], told: str
) -> None:
    counts = [2, 2]
    made = reader(frames(counts).take(rows), counts=counts, length=2)
    with pytest.raises(ReadError, match=told):
        made.read(np.array([0]), made.schema)


@pytest.mark.parametrize(("video", "number"), [(0, None), (None, 1)])
def test_a_frame_without_a_number_disagrees_with_its_list(
    video: int | None, number: int | None
) -> None:
    named = {"video_id": [0, video, 0], "frame_idx": [0, number, 2]}
    table = pa.table({**named, "bytes": frames([3])["bytes"]})
    made = reader(table, counts=[3])
    assert made.read(np.array([0, 2]), made.schema).num_rows == 2
    told = f"row 1 should be frame 1 of video 0, and is frame {number} of video {video}"
    with pytest.raises(ReadError, match=told):
        made.read(np.array([0, 1]), made.schema)
