"""The videos of a data set of frames, read such that workers can still be forked off afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from headrace.storage.credentials import resolve
from headrace.tables.lance import forks
from headrace.tables.lance.native import Failed
from headrace.tables.lance.opened import LanceLocation
from headrace.tables.lance.process import LanceProcess

__all__ = ["load_videos"]

Slice = Callable[[int, int, list[str]], pa.Table]
"""rows from one on, so many, some columns"""


def load_videos(frames: LanceBackend, options: Options | None, list_version: int | None) -> Videos:
    """The videos that the list beside the frames names, or else those that the rows tell of.

    For the latter the ids of all rows are read, and the size of all videos is that of the first
    frame.
    """
    check_frames(frames.schema, frames.uri)
    name = (frames.schema.metadata or {}).get(VIDEOS_KEY)
    if name is None:
        return _found_by_rows(frames, options)
    try:
        where = f"{frames.uri}/{name.decode()}"
        listed = LanceBackend(where, version=list_version, storage_options=options)
        with _reading(listed, options) as read:
            table = read(0, listed.num_rows, listed.schema.names)
    except (NothingFoundError, ReadError) as error:
        raise ReadError(f"the list of videos of {frames.uri} cannot be read: {error}") from error
    videos = from_sidecar(table, frames.num_rows, frames.uri)
    return replace(videos, list_version=listed.version)


def _found_by_rows(frames: LanceBackend, options: Options | None) -> Videos:
    if not frames.num_rows:
        return derived(pa.table({VIDEO_ID: [], FRAME_IDX: []}))
    with _reading(frames, options) as read:
        videos = derived(read(0, frames.num_rows, [VIDEO_ID, FRAME_IDX]))
        first = read(0, 1, [FRAME_BYTES])[FRAME_BYTES][0].as_py()
    try:
        height, width, _ = decode_image(first or b"", channels_first=False).shape
    except ReadError as error:
        raise ReadError(
            f"{frames.uri}: row 0 does not tell the size of frames: {error}; delete it, or write "
            "a list of videos"
        ) from error
    size = np.ones(len(videos.ids), np.int64)
    return replace(videos, heights=height * size, widths=width * size)


@contextmanager
def _reading(backend: LanceBackend, options: Options | None) -> Iterator[Slice]:
    """Slices of a data set, read by another process where workers may be forked off this one."""
    if forks.is_spoiled() or forks.runs_here() or not forks.may_be_forked():
        yield lambda start, length, columns: backend.slice(start, length, columns=columns)
        return
    location = LanceLocation(backend.uri, options or {})
    resolved = resolve(location.options)
    where = location.where(backend.version, resolved)

    def sliced(start: int, length: int, columns: list[str]) -> pa.Table:
        try:
            return process.ask(where, "slice", start, length, columns, 8)
        except Failed as error:
            raise location.unread(backend.version, resolved, str(error)) from None

    with LanceProcess() as process:
        yield sliced
