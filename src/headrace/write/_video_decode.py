"""Frames of videos: decoded as a stream, sampled, scaled, and encoded in threads."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np

from headrace.errors import MissingExtraError, OptionError, ReadError
from headrace.process import usable_cores
from headrace.storage import side_by_side

_CODECS = {"webp": "WEBP", "jpeg": "JPEG"}
_SHORT_BY = 0.05
"""The share of the length in the header that may be missing at the end of an intact video."""
_SHORT_BY_S = 0.5
_MOST_THREADS = 8
"""Threads that encode; each of them holds about two decoded frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The frames of a video that are kept: one of ``every``, or ``fps`` of a second."""

    every: int = 1
    fps: float | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and self.every != 1:
            raise OptionError("every and fps both choose which frames are kept; give only one")

    def chosen(self, frames: Iterable[tuple[float, Any]]) -> Iterator[Any]:
        """Yield every n-th of frames with their times, or the first at or after each tick."""
        tick = 0
        for at, (time_s, frame) in enumerate(frames):
            if self.fps is None:
                if at % self.every == 0:
                    yield frame
                continue
            # Times are rounded to the clock of the file: a hair before a tick is at it.
            passed = int(time_s * self.fps + 1e-3)
            if passed >= tick:
                tick = passed + 1
                yield frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The form in which a frame is stored: its codec, quality, and the size of its shorter side."""

    codec: str = "webp"
    quality: int = 90
    size: int | None = None
    """The length of the shorter side; the other follows."""

    def dimensions(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width at which frames of this size are stored."""
        if self.size is None:
            return height, width
        shorter = min(height, width)
        return round(height * self.size / shorter), round(width * self.size / shorter)

    def encoded(self, frame: Any, height: int, width: int) -> bytes:
        """Return a decoded frame as an image of this size, the right way up."""
        from PIL import Image

        turns = quarter_turns(frame)
        if turns % 2:
            height, width = width, height
        pixels = frame.to_ndarray(
            format="rgb24", height=height, width=width, interpolation="BICUBIC"
        )
        out = BytesIO()
        Image.fromarray(np.rot90(pixels, turns)).save(
            out, _CODECS[self.codec], quality=self.quality
        )
        return out.getvalue()


@dataclass(slots=True)
class VideoFile:
    """An open video, and the facts in its header."""

    name: str
    container: Any
    stream: Any
    time_s: float = 0.0
    """The time of the frame that was decoded last."""

    @classmethod
    def open(cls, name: str, file: Any) -> VideoFile:
        """``file``: a path, or something with ``read`` and ``seek``."""
        av = _av()
        try:
            container = av.open(file, metadata_errors="replace")
        except (av.FFmpegError, OSError) as error:
            raise ReadError(f"{name} cannot be read as a video: {_message(error)}") from error
        if not container.streams.video:
            container.close()
            raise ReadError(f"{name} contains no video stream")
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        return cls(name, container, stream)

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    @property
    def duration_s(self) -> float | None:
        """The duration in the header: of the picture, or of a file that has nothing else in it."""
        if self.stream.duration and self.stream.time_base:
            return float(self.stream.duration * self.stream.time_base)
        written = self.stream.metadata.get("DURATION", "").split(":")
        if len(written) == 3:
            hours, minutes, seconds = map(float, written)
            return hours * 3600 + minutes * 60 + seconds
        if self.container.duration and len(self.container.streams) == 1:
            return float(self.container.duration) / 1e6
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the header that are kept with a video."""
        rate = self.stream.average_rate
        duration = self.duration_s
        return {
            "source_codec": self.stream.codec_context.name,
            "source_fps": None if rate is None else round(float(rate), 6),
            "source_duration_s": None if duration is None else round(duration, 6),
            "source_height": self.stream.height,
            "source_width": self.stream.width,
        }

    def frames(self) -> Iterator[tuple[float, Any]]:
        """Yield decoded frames in the order in which they are shown, with the time since the first.

        An error says where the file is broken.
        """
        av = _av()
        first: float | None = None
        decoded = self.container.decode(self.stream)
        try:
            for at, frame in enumerate(decoded):
                time_s = frame.time if frame.time is not None else self._clock(at)
                first = time_s if first is None else first
                self.time_s = time_s - first
                if frame.is_corrupt:
                    raise ReadError(self._broken("the frame is marked as corrupt"))
                yield self.time_s, frame
        except (av.FFmpegError, OSError) as error:
            if isinstance(error, ReadError):
                raise
            raise ReadError(self._broken(_message(error))) from error
        if first is None:
            raise ReadError(f"{self.name} has no frame that can be decoded")
        self._check_end()

    def _check_end(self) -> None:
        """Raise an error if the end is missing: some formats decode without an error."""
        expected = self.duration_s
        if expected is None:
            return
        missing = expected - self.time_s - self._clock(1)
        if missing > max(_SHORT_BY_S, expected * _SHORT_BY):
            raise ReadError(self._broken(f"the rest of {expected:.3f} s is missing"))

    def _clock(self, frames: int) -> float:
        return frames / float(self.stream.average_rate or 25)

    def _broken(self, why: str) -> str:
        return f"{self.name} is damaged at {self.time_s:.3f} s: {why}"


def quarter_turns(frame: Any) -> int:
    """Return the quarter turns to the left that a camera has noted beside a frame."""
    return round(getattr(frame, "rotation", 0) / 90)  # which old versions of PyAV do not tell


def encoded_frames(
    frames: Iterable[Any], encoding: Encoding, height: int, width: int
) -> Generator[bytes, None, None]:
    """Yield frames as images, in order; a few are encoded at a time, whatever their number."""
    encode = partial(encoding.encoded, height=height, width=width)
    threads = min(usable_cores(), _MOST_THREADS)
    return side_by_side(encode, frames, threads=threads, ahead=threads, join=True)


def _message(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def check_installed() -> None:
    """Raise a MissingExtraError before any work begins."""
    _av()
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtraError.for_extra("video", "Pillow")


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise MissingExtraError.for_extra("video", "av") from None
    return av
