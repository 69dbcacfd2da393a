"""The videos to which the frames of a data set belong, and windows over their frames.

Videos are named by a list beside the frames, or found by reading the ids of all rows. The list is a
Lance table that the schema of the frames names, or the file ``_metadata.json`` that stable-datasets
writes. The frames of a video follow each other in the order of their numbers, which count from 0.
Windows are computed by arithmetic, without a list of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.convert.images import decode_image
from headrace.errors import NothingFoundError, ReadError, SchemaError, naming
from headrace.model import Int64Array
from headrace.options import whole_number
from headrace.sources.lance.backend import LanceBackend
from headrace.storage import Access, Options, find_files

VIDEOS_KEY = b"headrace.videos"
"""Key in the metadata of the frames' schema; its value is the path of the list of videos."""
VIDEO_ID, FRAME_IDX, FRAME_BYTES = "video_id", "frame_idx", "bytes"

FRAME_SCHEMA = pa.schema(
    [
        pa.field(VIDEO_ID, pa.int64(), nullable=False),
        pa.field(FRAME_IDX, pa.int32(), nullable=False),
        pa.field(FRAME_BYTES, pa.large_binary(), nullable=False),
    ]
)
VIDEO_SCHEMA = pa.schema(
    [
        ("video_id", pa.int64()),
        ("key", pa.string()),
        ("path", pa.string()),
        ("checksum", pa.string()),
        ("frames", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("first_row", pa.int64()),
        ("metadata", pa.string()),
    ]
)
_NUMBERS = ("video_id", "frames", "first_row", "height", "width")
"""Columns of the list that must not be null."""
_DETAILS = ["key", "path", "checksum", "metadata"]
_JSON_NAME = "_metadata.json"
_JSON_LAYOUT = "lance-video-frames"
_JSON_KEYS = {
    "video_id": "id",
    "frames": "T",
    "height": "H",
    "width": "W",
    "first_row": "start_row",
}
"""Names of stable-datasets for columns of the list, if they differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Videos:
    """The videos of a data set, in the order of their frames.

    Attributes:
        ids: The id of each video.
        starts: Index of the first frame of each video among all frames, and the number of all
            frames.
        details: Key, path, checksum and metadata of each video.
        heights: The height of each video.
        widths: The width of each video.
        rows: The row of each frame, if frames are not in the order of videos and time.
        numbers: The ``frame_idx`` of each frame, if those of a video do not count from 0.
        list_version: The version of the list that names the videos, if it is a Lance table.
    """

    ids: Int64Array
    starts: Int64Array
    details: pa.Table
    heights: Int64Array
    widths: Int64Array
    rows: Int64Array | None = None
    numbers: Int64Array | None = None
    list_version: int | None = None

    @property
    def frames(self) -> Int64Array:
        """Number of frames of each video."""
        counts: Int64Array = np.diff(self.starts)
        return counts

    def frame_numbers(self, videos: Int64Array, places: Int64Array) -> Int64Array:
        """Return the ``frame_idx`` of frames at some places of some videos."""
        if self.numbers is None:
            return places
        numbers: Int64Array = self.numbers[self.starts[videos] + places]
        return numbers

    def of_frames(self, frames: Int64Array) -> Int64Array:
        """Return the index of the video of each frame, by the index of the frame."""
        videos: Int64Array = np.searchsorted(self.starts, frames, side="right") - 1
        return videos


def load_videos(frames: LanceBackend, options: Options | None, list_version: int | None) -> Videos:
    """Return the videos that a list beside the frames names, or else those found in the rows.

    In the second case the ids of all rows are read, and the size of all videos is that of the first
    frame.
    """
    check_frames(frames.schema, frames.uri)
    name = (frames.schema.metadata or {}).get(VIDEOS_KEY)
    if name is None:
        table = _table_of_json(frames.uri, options)
        if table is None:
            return _found_by_rows(frames)
        return videos_of_list(table, frames.num_rows, frames.uri)
    try:
        where = f"{frames.uri}/{name.decode()}"
        listed = LanceBackend(where, version=list_version, storage_options=options)
        table = listed.slice(0, listed.num_rows)
    except (NothingFoundError, ReadError) as error:
        raise ReadError(f"the list of videos of {frames.uri} cannot be read: {error}") from error
    videos = videos_of_list(table, frames.num_rows, frames.uri)
    return replace(videos, list_version=listed.version)


def check_frames(schema: pa.Schema, uri: str) -> None:
    """Raise a SchemaError if rows of this schema are not frames."""
    kinds = {field.name: field.type for field in schema}
    numbers = (kinds.get(name, pa.null()) for name in (VIDEO_ID, FRAME_IDX))
    encoded = kinds.get(FRAME_BYTES, pa.null())
    has_bytes = pt.is_binary(encoded) or pt.is_large_binary(encoded)
    if not has_bytes or not all(map(pt.is_integer, numbers)):
        raise SchemaError(
            f"{uri} has {', '.join(f'{name} ({kind})' for name, kind in kinds.items())}: rows of "
            f"video frames have {VIDEO_ID} and {FRAME_IDX} (integers) and {FRAME_BYTES} (binary)"
        )


# --- a list beside the frames


def _table_of_json(uri: str, options: Options | None) -> pa.Table | None:
    """Return the list of videos that stable-datasets has written beside the frames, if any.

    The other values of an example, such as its label, are the metadata of its video.
    """
    where = f"{uri.rstrip('/')}/{_JSON_NAME}"
    try:
        listing = find_files(where, Access(storage_options=options or {}))
    except NothingFoundError:
        return None
    (found,) = listing.files
    with listing.store.open(found) as source:
        text = source.read()
    with naming(f"{where} is not a list of videos", ValueError):
        document = json.loads(text)
        if not isinstance(document, Mapping) or document.get("layout") != _JSON_LAYOUT:
            return None
        videos = document.get("videos")
        if not isinstance(videos, list) or not all(isinstance(one, Mapping) for one in videos):
            raise ValueError("it has no list of videos")
        return pa.Table.from_pylist([_video(one) for one in videos], VIDEO_SCHEMA)


def _video(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the list for an entry of the file."""
    row = {name: entry.get(_JSON_KEYS.get(name, name)) for name in VIDEO_SCHEMA.names}
    for name in _NUMBERS:
        if not isinstance(row[name], int):
            raise ValueError(f"a video has {row[name]!r} for {_JSON_KEYS[name]!r}")
    row["key"] = None if row["key"] is None else str(row["key"])
    row["metadata"] = json.dumps(row["metadata"] or {})
    return row


def videos_of_list(table: pa.Table, rows: int, uri: str) -> Videos:
    """Return the videos that a list names, which must account for all ``rows`` frames."""

    def disagrees(how: str) -> ReadError:
        return ReadError(
            f"the list of videos of {uri} disagrees with its rows: {how}; write the data set "
            f"again, or take {VIDEOS_KEY.decode()} out of the metadata of its schema, or "
            f"{_JSON_NAME} away, to have videos found by their rows"
        )

    missing = [name for name in VIDEO_SCHEMA.names if name not in table.schema.names]
    if missing:
        raise SchemaError(f"the list of videos of {uri} has no column {missing[0]!r}")
    in_order = [("first_row", "ascending"), ("frames", "ascending")]  # a video may have no frame
    table = table.select(VIDEO_SCHEMA.names).cast(VIDEO_SCHEMA).sort_by(in_order)
    for name in _NUMBERS:
        if table[name].null_count:
            raise disagrees(f"{name} is null in {table[name].null_count} places")
    ids, frames, firsts, heights, widths = (
        table[name].to_numpy().astype(np.int64, copy=False) for name in _NUMBERS
    )
    starts = np.concatenate([[0], np.cumsum(frames, dtype=np.int64)])
    wrong = np.flatnonzero((frames < 0) | (firsts != starts[:-1]))
    if len(wrong):
        at = int(wrong[0])
        raise disagrees(
            f"video {ids[at]} has {frames[at]} frames from row {firsts[at]} on, and the videos "
            f"before it end at row {starts[at]}"
        )
    if starts[-1] != rows:
        raise disagrees(f"its videos have {starts[-1]} frames, and there are {rows} rows")
    if len(np.unique(ids)) < len(ids):
        raise disagrees("it names a video_id twice")
    keys = pc.coalesce(table["key"], table["video_id"].cast(pa.string()))
    rest = [pc.fill_null(table[name], "") for name in ("path", "checksum")]
    details = pa.table([keys, *rest, pc.fill_null(table["metadata"], "{}")], _DETAILS)
    return Videos(ids, starts, details, heights, widths)


# --- without a list


def _found_by_rows(frames: LanceBackend) -> Videos:
    if not frames.num_rows:
        return derived(pa.table({VIDEO_ID: [], FRAME_IDX: []}))
    videos = derived(frames.slice(0, frames.num_rows, columns=[VIDEO_ID, FRAME_IDX]))
    first = frames.get_row(0, columns=[FRAME_BYTES])[FRAME_BYTES]
    try:
        height, width, _ = decode_image(first or b"", channels_first=False).shape
    except ReadError as error:
        raise ReadError(
            f"{frames.uri}: row 0 does not tell the size of frames: {error}; delete it, or write "
            "a list of videos"
        ) from error
    size = np.ones(len(videos.ids), np.int64)
    return replace(videos, heights=height * size, widths=width * size)


def derived(rows_of_ids: pa.Table) -> Videos:
    """Return the videos found in the ids of all rows, without their sizes."""
    ids, numbers = (_ids(rows_of_ids[name], name) for name in (VIDEO_ID, FRAME_IDX))
    rows = None
    ahead, behind = slice(1, None), slice(None, -1)
    forward = (ids[ahead] == ids[behind]) & (numbers[ahead] > numbers[behind])
    begins = np.concatenate([[True], ~forward])[: len(ids)]
    if len(np.unique(ids[begins])) < np.count_nonzero(begins):
        rows = np.lexsort((numbers, ids))
        ids, numbers = ids[rows], numbers[rows]
        begins = np.concatenate([[True], ids[ahead] != ids[behind]])
        twice = np.flatnonzero(~begins[ahead] & (numbers[ahead] == numbers[behind]))
        if len(twice):
            at = int(twice[0])
            raise ReadError(
                f"rows {rows[at]} and {rows[at + 1]} are both frame {numbers[at]} of video "
                f"{ids[at]}; delete one of them"
            )
    firsts = np.flatnonzero(begins)
    starts = np.append(firsts, len(ids)).astype(np.int64)
    counted = np.array_equal(np.arange(len(ids)) - np.repeat(firsts, np.diff(starts)), numbers)
    keys = [str(one) for one in ids[firsts].tolist()]
    values = (keys, [""] * len(keys), [""] * len(keys), ["{}"] * len(keys))
    details = pa.table([pa.array(one, pa.string()) for one in values], _DETAILS)
    unknown = np.zeros(len(firsts), np.int64)
    return Videos(
        ids[firsts],
        starts,
        details,
        heights=unknown,
        widths=unknown,
        rows=rows,
        numbers=None if counted else numbers,
    )


def _ids(column: pa.ChunkedArray, name: str) -> Int64Array:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null())[0])
        raise ReadError(f"{name} is null in row {row}: every frame needs one")
    ids: Int64Array = column.to_numpy().astype(np.int64, copy=False)
    return ids


# --- windows


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """The runs of frames that are samples, in numbers of frames.

    Attributes:
        length: Number of frames of a window.
        skip: Number of frames left out between two frames of a window.
        hop: Number of frames from the beginning of a window to the beginning of the next one.
        min_video_frames: Videos that have fewer frames have no windows.
    """

    length: int = 1
    skip: int = 0
    hop: int = 1
    min_video_frames: int | None = None

    def __post_init__(self) -> None:
        whole_number("window_length", self.length, 1)
        whole_number("frame_skip", self.skip, 0)
        whole_number("hop_size", self.hop, 1)
        whole_number("min_video_frames", self.min_video_frames or 0, 0)

    @property
    def stride(self) -> int:
        """Number of frames from one frame of a window to the next."""
        return self.skip + 1

    @property
    def span(self) -> int:
        """Number of frames from the first to the last one of a window."""
        return (self.length - 1) * self.stride + 1

    def __str__(self) -> str:
        return f"{self.length}x{self.stride}+{self.hop}>={self.min_video_frames or 0}"


class Windows:
    """The windows of some videos, numbered in the order of their videos and first frames.

    Frames at the end of a video that do not fill a window are left out.

    Attributes:
        videos: The videos.
        options: The options.
        starts: Index of the first window of each video, and the number of all windows.
    """

    def __init__(self, videos: Videos, options: WindowOptions) -> None:
        self.videos = videos
        self.options = options
        frames = videos.frames
        counts = (frames - options.span) // options.hop + 1
        counts[frames < max(options.span, options.min_video_frames or 0)] = 0
        self.starts: Int64Array = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def located(self, windows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the videos of windows, by their indices, and where the windows begin in them."""
        videos = np.searchsorted(self.starts, windows, side="right") - 1
        return videos, (windows - self.starts[videos]) * self.options.hop

    def places(self, begins: Int64Array) -> Int64Array:
        """Return the indices of frames in their videos, a row for each window that begins there."""
        steps = np.arange(self.options.length, dtype=np.int64) * self.options.stride
        return begins[:, None] + steps
