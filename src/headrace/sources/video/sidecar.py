"""Which videos the frames of a data set belong to: from a list beside them, or from the rows.

The list is a Lance table that the schema of the frames names, or the file ``_metadata.json`` that
stable-datasets writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.convert.images import decode_image
from headrace.errors import NothingFoundError, ReadError, SchemaError
from headrace.model import DataFileInfo, Int64Array
from headrace.sources.lance.backend import LanceBackend
from headrace.sources.video.windows import Videos
from headrace.storage import Access, Options, find_files

__all__ = [
    "FRAME_SCHEMA",
    "VIDEOS_KEY",
    "VIDEO_SCHEMA",
    "check_frames",
    "derived",
    "from_json",
    "from_sidecar",
    "load_videos",
]

VIDEOS_KEY = b"headrace.videos"
"""in the metadata of the frames' schema: where the list of videos is, below the data set"""
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
_JSON_NAME = "_metadata.json"
_JSON_LAYOUT = "lance-video-frames"
_JSON_KEYS = {
    "video_id": "id",
    "key": "key",
    "path": "path",
    "checksum": "checksum",
    "frames": "T",
    "height": "H",
    "width": "W",
    "first_row": "start_row",
    "metadata": "metadata",
}
"""what stable-datasets calls the columns of the list"""
_DETAILS = ["key", "path", "checksum", "metadata"]


def load_videos(frames: LanceBackend, options: Options | None, list_version: int | None) -> Videos:
    """Return the videos that a list beside the frames names, or else those that rows tell of.

    For the latter the ids of all rows are read, and the size of all videos is that of the first
    frame.
    """
    check_frames(frames.schema, frames.uri)
    name = (frames.schema.metadata or {}).get(VIDEOS_KEY)
    if name is None:
        table = _table_of_json(frames.uri, options)
        if table is None:
            return _found_by_rows(frames)
        return from_sidecar(table, frames.num_rows, frames.uri)
    try:
        where = f"{frames.uri}/{name.decode()}"
        listed = LanceBackend(where, version=list_version, storage_options=options)
        table = listed.slice(0, listed.num_rows)
    except (NothingFoundError, ReadError) as error:
        raise ReadError(f"the list of videos of {frames.uri} cannot be read: {error}") from error
    videos = from_sidecar(table, frames.num_rows, frames.uri)
    return replace(videos, list_version=listed.version)


def _table_of_json(uri: str, options: Options | None) -> pa.Table | None:
    """Return the list of videos that stable-datasets has written beside frames, if it has."""
    where = f"{uri.rstrip('/')}/{_JSON_NAME}"
    try:
        listing = find_files(where, Access(storage_options=options or {}))
    except NothingFoundError:
        return None
    (found,) = listing.files
    file = DataFileInfo(found.path, file_size=found.size, etag=found.etag)
    with listing.store.open(file) as source:
        text = source.read()
    try:
        return from_json(json.loads(text))
    except (ValueError, pa.ArrowException) as error:
        raise ReadError(f"{where} is not a list of videos: {error}") from error


def from_json(noted: object) -> pa.Table | None:
    """Return the list of videos in the metadata that stable-datasets writes.

    What an example had beside its video, such as its label, is the metadata of the video. None if
    the metadata is of something else.

    Raises:
        ValueError: A video lacks what all need.
    """
    if not isinstance(noted, Mapping) or noted.get("layout") != _JSON_LAYOUT:
        return None
    videos = noted.get("videos")
    if not isinstance(videos, list) or not all(isinstance(one, Mapping) for one in videos):
        raise ValueError("it has no list of videos")
    return pa.Table.from_pylist([_video(one) for one in videos], VIDEO_SCHEMA)


def _video(noted: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: noted.get(key) for name, key in _JSON_KEYS.items()}
    for name in ("video_id", "frames", "height", "width", "first_row"):
        if not isinstance(made[name], int):
            raise ValueError(f"a video has {made[name]!r} for {_JSON_KEYS[name]!r}")
    key = made["key"]
    return {
        **made,
        "key": key if key is None else str(key),
        "metadata": json.dumps(made["metadata"] or {}),
    }


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


def check_frames(schema: pa.Schema, uri: str) -> None:
    """Raise a SchemaError if rows of this schema are no frames."""
    missing = [name for name in FRAME_SCHEMA.names if name not in schema.names]
    if missing:
        raise SchemaError(
            f"{uri} has no column {missing[0]!r}: rows of video frames have "
            f"{', '.join(FRAME_SCHEMA.names)}, and this has {', '.join(schema.names)}"
        )
    for name in (VIDEO_ID, FRAME_IDX):
        if not pt.is_integer(schema.field(name).type):
            raise SchemaError(
                f"{uri}: the column {name!r} is {schema.field(name).type}: frames of videos are "
                "found by whole numbers; write it as int64"
            )
    encoded = schema.field(FRAME_BYTES).type
    if not (pt.is_binary(encoded) or pt.is_large_binary(encoded)):
        raise SchemaError(
            f"{uri}: the column {FRAME_BYTES!r} is {encoded}, and encoded frames are binary"
        )


def from_sidecar(table: pa.Table, rows: int, uri: str) -> Videos:
    """The videos that a list names, which has to account for every one of so many rows."""
    missing = [name for name in VIDEO_SCHEMA.names if name not in table.schema.names]
    if missing:
        raise SchemaError(f"the list of videos of {uri} has no column {missing[0]!r}")
    in_order = [("first_row", "ascending"), ("frames", "ascending")]  # a video may have no frame
    table = table.select(VIDEO_SCHEMA.names).cast(VIDEO_SCHEMA).sort_by(in_order)
    for name in ("video_id", "frames", "first_row", "height", "width"):
        if table[name].null_count:
            raise _disagrees(uri, f"{name} is null in {table[name].null_count} places")
    ids, frames, firsts = (_numbers(table, name) for name in ("video_id", "frames", "first_row"))
    starts = np.concatenate([[0], np.cumsum(frames, dtype=np.int64)])
    wrong = np.flatnonzero((frames < 0) | (firsts != starts[:-1]))
    if len(wrong):
        at = int(wrong[0])
        raise _disagrees(
            uri,
            f"video {ids[at]} has {frames[at]} frames from row {firsts[at]} on, and the videos "
            f"before it end at row {starts[at]}",
        )
    if starts[-1] != rows:
        raise _disagrees(uri, f"its videos have {starts[-1]} frames, and there are {rows} rows")
    if len(np.unique(ids)) < len(ids):
        raise _disagrees(uri, "it names a video_id twice")
    heights, widths = _numbers(table, "height"), _numbers(table, "width")
    return Videos(ids, starts, _details(table), heights, widths)


def _details(table: pa.Table) -> pa.Table:
    """What is noted of videos, of which a list need not know anything: keys are the ids then."""
    keys = pc.coalesce(table["key"], table["video_id"].cast(pa.string()))
    rest = [pc.fill_null(table[name], "") for name in ("path", "checksum")]
    return pa.table([keys, *rest, pc.fill_null(table["metadata"], "{}")], _DETAILS)


def derived(rows_of_ids: pa.Table) -> Videos:
    """The videos that the ids of all rows tell of; how large they are has to be found out."""
    ids, numbers = (_ids(rows_of_ids[name], name) for name in (VIDEO_ID, FRAME_IDX))
    rows = None
    ahead, behind = slice(1, None), slice(None, -1)
    forward = (ids[ahead] == ids[behind]) & (numbers[ahead] > numbers[behind])
    begins = np.concatenate([[True], ~forward])[: len(ids)]
    if len(np.unique(ids[begins])) < np.count_nonzero(begins):
        rows = np.lexsort((numbers, ids))
        ids, numbers = ids[rows], numbers[rows]
        begins = np.concatenate([[True], ids[ahead] != ids[behind]])
        _refuse_twins(ids, numbers, rows)
    firsts = np.flatnonzero(begins)
    starts = np.append(firsts, len(ids)).astype(np.int64)
    plain = np.arange(len(ids)) - np.repeat(firsts, np.diff(starts))
    keys = pa.array([str(one) for one in ids[firsts].tolist()], pa.string())
    empty = pa.array([""] * len(keys), pa.string())
    nothing = pa.array(["{}"] * len(keys), pa.string())
    details = pa.table([keys, empty, empty, nothing], _DETAILS)
    counted = np.array_equal(plain, numbers)
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


def _refuse_twins(ids: Int64Array, numbers: Int64Array, rows: Int64Array) -> None:
    same = np.flatnonzero((ids[1:] == ids[:-1]) & (numbers[1:] == numbers[:-1]))
    if len(same):
        at = int(same[0])
        raise ReadError(
            f"rows {rows[at]} and {rows[at + 1]} are both frame {numbers[at]} of video {ids[at]}; "
            "delete one of them"
        )


def _numbers(table: pa.Table, name: str) -> Int64Array:
    numbers: Int64Array = table[name].to_numpy().astype(np.int64, copy=False)
    return numbers


def _disagrees(uri: str, how: str) -> ReadError:
    return ReadError(
        f"the list of videos of {uri} disagrees with its rows: {how}; write the data set again, or "
        f"take {VIDEOS_KEY.decode()} out of the metadata of its schema, or {_JSON_NAME} away, to "
        "have videos found by their rows"
    )
