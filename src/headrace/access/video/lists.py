"""The videos of a data set of frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.access.lance import LanceBackend
from headrace.access.video.sidecar import (
    FRAME_BYTES,
    FRAME_IDX,
    VIDEO_ID,
    VIDEOS_KEY,
    check_frames,
    derived,
    from_sidecar,
)
from headrace.access.video.windows import Videos
from headrace.convert.images import decode_image
from headrace.errors import NothingFoundError, ReadError
from headrace.storage import Options

__all__ = ["load_videos"]


def load_videos(frames: LanceBackend, options: Options | None, list_version: int | None) -> Videos:
    """The videos that the list beside the frames names, or else those that the rows tell of.

    For the latter the ids of all rows are read, and the size of all videos is that of the first
    frame.
    """
    check_frames(frames.schema, frames.uri)
    name = (frames.schema.metadata or {}).get(VIDEOS_KEY)
    if name is None:
        return _found_by_rows(frames)
    try:
        where = f"{frames.uri}/{name.decode()}"
        listed = LanceBackend(where, version=list_version, storage_options=options)
        table = listed.slice(0, listed.num_rows)
    except (NothingFoundError, ReadError) as error:
        raise ReadError(f"the list of videos of {frames.uri} cannot be read: {error}") from error
    videos = from_sidecar(table, frames.num_rows, frames.uri)
    return replace(videos, list_version=listed.version)


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
