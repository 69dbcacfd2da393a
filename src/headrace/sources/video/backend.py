"""``VideoFramesBackend``: windows of video frames in a Lance data set of one frame a row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from headrace.errors import OptionError, ReadError
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords, whole_number
from headrace.sources.backend import Backend, checked_indices
from headrace.sources.files.protocol import rows_only
from headrace.sources.lance.backend import LanceBackend
from headrace.sources.video._pixels import FrameForm, WindowReader
from headrace.sources.video.videos import Videos, WindowOptions, Windows, load_videos
from headrace.storage import Options

_LAYOUTS = ("THWC", "TCHW")
_BLOCK_BYTES = 16 << 20
"""Number of bytes of pixels in a batch of ``iter_batches``."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The video and the frames of a window."""

    video_id: int
    key: str
    path: str
    checksum: str
    start_frame: int
    frame_indices: tuple[int, ...]
    metadata: dict[str, Any]


@checked_keywords
class VideoFramesBackend(Backend):
    """Windows of frames as rows: ``video`` (uint8, frame after frame) and its origin.

    A window is ``window_length`` frames of one video, with ``frame_skip`` frames left out between
    any two; the next window begins ``hop_size`` frames later. Videos shorter than a window, or than
    ``min_video_frames``, have none. If all videos are of one size, ``video`` is a tensor of fixed
    shape; otherwise it is a flat list, and a column ``shape`` has the shape in which to view it. A
    take reads the distinct frames at once and decodes each of them once, in threads.

    Args:
        uri: The Lance data set.
        window_length: Number of frames of a window.
        frame_skip: Number of frames left out between two frames of a window.
        hop_size: Number of frames from the beginning of a window to that of the next one.
        min_video_frames: Videos that have fewer frames are left out.
        batch_readahead: Number of batches that Lance reads ahead within a run of rows.
        storage_options: Credentials and options of the store.
        version: A version of the data set, by number or tag; None for the newest one.
        layout: "THWC", or "TCHW" for channels before height and width.
        resize: (height, width) to which all frames are scaled.
    """

    fork_safe = False

    @property
    def name(self) -> str:
        return "video frames"

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        window_length: int = 1,
        frame_skip: int = 0,
        hop_size: int = 1,
        min_video_frames: int | None = None,
        batch_readahead: int = 8,
        storage_options: Options | None = None,
        version: int | str | None = None,
        layout: str = "THWC",
        resize: tuple[int, int] | None = None,
    ) -> None:
        self.options = WindowOptions(
            length=window_length, skip=frame_skip, hop=hop_size, min_video_frames=min_video_frames
        )
        if layout not in _LAYOUTS:
            raise OptionError(f"layout must be THWC or TCHW, not {layout!r}")
        self.form = FrameForm(layout == "TCHW", _checked_size(resize))
        self.frames = LanceBackend(
            uri, version=version, storage_options=storage_options, batch_readahead=batch_readahead
        )
        """The frames, one a row."""
        self._storage_options = storage_options
        self.skips_broken = False
        """True if streams leave out windows that do not decode, and report them at the end."""
        self._list_version: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = ("options", "form", "frames", "_storage_options", "skips_broken")
        videos: Videos | None = self.__dict__.get("videos")
        version = self._list_version if videos is None else videos.list_version
        return {**{name: self.__dict__[name] for name in kept}, "_list_version": version}

    @property
    def uri(self) -> str:
        """Location of the frames."""
        return self.frames.uri

    # --- windows

    @computed_once
    def videos(self) -> Videos:
        """The videos, from the list beside the frames, or found by reading the ids of all rows."""
        return load_videos(self.frames, self._storage_options, self._list_version)

    @computed_once
    def windows(self) -> Windows:
        """All windows; raises an error if there are none."""
        windows = Windows(self.videos, self.options)
        if not len(windows):
            longest = int(self.videos.frames.max(initial=0))
            raise OptionError(
                f"{self.uri} has no window: a window spans {self.options.span} frames "
                f"(window_length={self.options.length}, frame_skip={self.options.skip}, "
                f"min_video_frames={self.options.min_video_frames}), and the longest of "
                f"{len(self.videos.ids)} videos has {longest} frames"
            )
        return windows

    @computed_once
    def reader(self) -> WindowReader:
        """The reader of the columns of windows."""
        return WindowReader(self.uri, self.frames, self.windows, self.form)

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    def segment_info(self, window: int) -> SegmentInfo:
        """Return the origin of a window, without reading frames."""
        (row,) = checked_indices([window], self.num_rows, "window").tolist()
        (video,), begins = self.windows.located(np.array([row]))
        places = self.windows.places(begins)[0]
        numbers = self.videos.frame_numbers(np.full(len(places), video), places)
        (details,) = self.videos.details.slice(int(video), 1).to_pylist()
        try:
            metadata = json.loads(details["metadata"] or "{}")
        except ValueError as error:
            raise ReadError(
                f"the list of videos of {self.uri}: the metadata of {details['key']!r} is not "
                f"JSON: {error}"
            ) from None
        return SegmentInfo(
            video_id=int(self.videos.ids[video]),
            key=details["key"],
            path=details["path"],
            checksum=details["checksum"],
            start_frame=int(numbers[0]),
            frame_indices=tuple(numbers.tolist()),
            metadata=metadata,
        )

    def segment_filename(self, window: int) -> str:
        """Return a name for a file of a window, without directories.

        No other window has the same name if all videos have different keys.
        """
        info = self.segment_info(window)
        key = quote(info.key, safe=" ")
        return f"{key}_{info.start_frame:06d}-{info.frame_indices[-1]:06d}"

    # --- one shard: the loader cuts it where it likes

    @property
    def shard_rows(self) -> Int64Array:
        return np.array([len(self.windows)])

    @property
    def shard_names(self) -> Sequence[str]:
        return [self.uri]

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        """Bytes of pixels, from which the loader computes chunks that fit into memory."""
        return [len(self.windows) * self.reader.window_bytes]

    @property
    def shard_etags(self) -> Sequence[str | None]:
        """The version and the options of windows; a state with different ones is refused."""
        return [f"{self.frames.version} {self.options}"]

    @property
    def locations(self) -> Sequence[str]:
        return [self.uri]

    # --- rows

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        return self.reader.read(rows, schema) if len(schema) else rows_only(len(rows))

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        start, stop = self.shard_starts[shard : shard + 2].tolist()
        rows = self._block_rows(_BLOCK_BYTES)
        return [(first, min(rows, stop - first)) for first in range(start, stop, rows)]

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        stop, rows = start + length, self._block_rows(block_bytes)
        broken: list[str] = []
        collected = broken if self.skips_broken else None
        for first in range(start, stop, rows):
            table = self.reader.read(np.arange(first, min(first + rows, stop)), schema, collected)
            if table.num_rows:
                yield table
        if broken:
            raise ReadError("; ".join(broken))

    def _block_rows(self, block_bytes: int) -> int:
        return max(1, block_bytes // self.reader.window_bytes)

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one window as Python values, its pixels as an array in the chosen layout."""
        (window,) = checked_indices([idx], self.num_rows).tolist()
        table = self.take([window], columns=columns)
        row = dict.fromkeys(table.column_names)
        if "video" in row:
            row["video"] = self.reader.pixels(table["video"], window)
            table = table.drop_columns(["video"])
        return row | (table.to_pylist()[0] if table.num_columns else {})


def _checked_size(size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise OptionError(f"resize must be (height, width), not {size!r}")
    return whole_number("height of resize", size[0], 1), whole_number("width of resize", size[1], 1)
