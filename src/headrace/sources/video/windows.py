"""Windows over the frames of videos, by arithmetic: nothing is listed, and nothing is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model import Int64Array

__all__ = ["Videos", "WindowOptions", "Windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Which runs of frames are samples; all in frames of the data set."""

    length: int = 1
    skip: int = 0
    """frames left out between two of a window"""
    hop: int = 1
    """from the first frame of a window to that of the next one"""
    min_video_frames: int | None = None
    """videos that have fewer have no windows"""

    def __post_init__(self) -> None:
        _check_count("window_length", self.length, least=1)
        _check_count("frame_skip", self.skip, least=0)
        _check_count("hop_size", self.hop, least=1)
        if self.min_video_frames is not None:
            _check_count("min_video_frames", self.min_video_frames, least=0)

    @property
    def stride(self) -> int:
        """From one frame of a window to the next."""
        return self.skip + 1

    @property
    def span(self) -> int:
        """Frames from the first to the last one of a window."""
        return (self.length - 1) * self.stride + 1

    def windows_of(self, frames: Int64Array) -> Int64Array:
        """How many windows videos of so many frames have; what is left at their end has none."""
        fit = (frames - self.span) // self.hop + 1
        fit[frames < max(self.span, self.min_video_frames or 0)] = 0
        return fit

    def __str__(self) -> str:
        return f"{self.length}x{self.stride}+{self.hop}>={self.min_video_frames or 0}"


@dataclass(frozen=True, slots=True, eq=False)
class Videos:
    """What is known of the videos of a data set, a value a video, in the order of their frames."""

    ids: Int64Array
    starts: Int64Array
    """places of their first frames among all frames, and the place behind the last frame of all"""
    details: pa.Table
    """key, path, checksum and metadata"""
    heights: Int64Array
    widths: Int64Array
    rows: Int64Array | None = None
    """the row of each frame, where frames do not lie in the order of videos and time"""
    numbers: Int64Array | None = None
    """the ``frame_idx`` of each frame, where those of a video do not count from 0"""
    list_version: int | None = None
    """of the list that they are from, if there is one"""

    @property
    def frames(self) -> Int64Array:
        """How many frames each has."""
        counts: Int64Array = np.diff(self.starts)
        return counts

    def frame_numbers(self, videos: Int64Array, places: Int64Array) -> Int64Array:
        """The ``frame_idx`` of frames at some places of some videos."""
        if self.numbers is None:
            return places
        numbers: Int64Array = self.numbers[self.starts[videos] + places]
        return numbers


class Windows:
    """The windows of some videos, numbered in the order of their videos and first frames."""

    def __init__(self, videos: Videos, options: WindowOptions) -> None:
        self.videos = videos
        self.options = options
        counts = options.windows_of(videos.frames)
        self.starts: Int64Array = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """the number of the first window of each video, and how many there are"""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def located(self, windows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The videos of windows (by their place, not their id), and where they begin in them."""
        videos = np.searchsorted(self.starts, windows, side="right") - 1
        return videos, (windows - self.starts[videos]) * self.options.hop

    def places(self, begins: Int64Array) -> Int64Array:
        """Where in their videos the frames of windows are that begin there: a row a window."""
        steps = np.arange(self.options.length, dtype=np.int64) * self.options.stride
        return begins[:, None] + steps

    def before(self, frames: Int64Array) -> Int64Array:
        """How many windows begin before each of these places among all frames."""
        last = len(self.videos.ids)
        videos = np.minimum(np.searchsorted(self.videos.starts, frames, side="right"), last) - 1
        begun = -(-(frames - self.videos.starts[videos]) // self.options.hop)
        most = self.starts[videos + 1] - self.starts[videos]
        counts: Int64Array = self.starts[videos] + np.minimum(begun, most)
        return counts


def _check_count(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, not {value!r}")
