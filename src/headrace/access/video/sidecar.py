"""Which videos the frames of a data set belong to: from the list beside them, or from the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.access.video.windows import Videos
from headrace.errors import ReadError, SchemaError
from headrace.model import Int64Array

__all__ = ["FRAME_SCHEMA", "VIDEOS_KEY", "VIDEO_SCHEMA", "check_frames", "derived", "from_sidecar"]

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
_DETAILS = ["key", "path", "checksum", "metadata"]


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
        f"take {VIDEOS_KEY.decode()} out of the metadata of its schema to have videos found by "
        "their rows"
    )
