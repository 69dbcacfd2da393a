"""The columns of windows: their pixels come from one take of frames, the rest by arithmetic.

Each frame is decoded once, by several threads, into all windows that have it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.convert.images import image_pixels, pillow
from headrace.errors import ReadError
from headrace.model import Int64Array, computed_once
from headrace.sources.backend import Backend
from headrace.sources.crew import Crew
from headrace.sources.video.sidecar import FRAME_BYTES, FRAME_IDX, FRAME_SCHEMA, VIDEO_ID
from headrace.sources.video.windows import Windows

__all__ = ["FrameForm", "WindowReader"]

Pixels = npt.NDArray[np.uint8]

_TURNS = 4
"""pieces of work for each thread: frames do not all take equally long"""


@dataclass(eq=False)
class WindowReader:
    """Reads windows of the frames of one data set."""

    uri: str
    frames: Backend
    windows: Windows
    form: FrameForm

    @computed_once
    def schema(self) -> pa.Schema:
        """Columns of windows, of which those of videos of several sizes have one more."""
        length = self.windows.options.length
        if self._one_shape is not None:
            video = [("video", pa.fixed_shape_tensor(pa.uint8(), (length, *self._one_shape)))]
        else:
            video = [("video", pa.large_list(pa.uint8())), ("shape", pa.list_(pa.int64(), 4))]
        about = [
            ("video_id", pa.int64()),
            ("key", pa.string()),
            ("start_frame", pa.int64()),
            ("frame_indices", pa.list_(pa.int64(), length)),
            ("metadata", pa.string()),
        ]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in video + about])

    @computed_once
    def window_bytes(self) -> int:
        """Of the pixels of a window; on average, where they are of several sizes."""
        shapes = self._shapes
        counts = np.diff(self.windows.starts)
        frame_bytes = np.prod(shapes, axis=1) @ counts // max(len(self.windows), 1)
        return max(1, int(frame_bytes) * self.windows.options.length)

    @computed_once
    def _shapes(self) -> Int64Array:
        """Of the frames of each video, as they come out: a row a video."""
        videos = self.windows.videos
        sizes = np.stack([videos.heights, videos.widths], axis=1)
        if self.form.resize is not None:
            sizes[:] = self.form.resize
        return np.insert(sizes, 0 if self.form.channels_first else 2, 3, axis=1)

    @computed_once
    def _one_shape(self) -> tuple[int, ...] | None:
        """Of all frames that are in windows, if they have one."""
        kinds = np.unique(self._shapes[np.diff(self.windows.starts) > 0], axis=0)
        return tuple(kinds[0].tolist()) if len(kinds) == 1 else None

    def read(
        self, rows: Int64Array, schema: pa.Schema, broken: list[str] | None = None
    ) -> pa.Table:
        """These windows in the columns of ``schema``.

        Frames that do not decode are an error; with ``broken``, windows that have any are left
        out, and what is wrong with them is added to it.
        """
        videos, begins = self.windows.located(rows)
        made: dict[str, pa.Array | pa.ChunkedArray] = {}
        if "video" in schema.names:
            made["video"], whole = self._video(videos, begins, broken)
            if not whole.all():
                videos, begins = videos[whole], begins[whole]
        for name in schema.names:
            if name != "video":
                made[name] = self._about(name, videos, begins)
        return pa.table([made[name] for name in schema.names], schema=schema)

    def _about(
        self, name: str, videos: Int64Array, begins: Int64Array
    ) -> pa.Array | pa.ChunkedArray:
        """A column of windows that is not their pixels."""
        known, length = self.windows.videos, self.windows.options.length
        if name == "video_id":
            return pa.array(known.ids[videos])
        if name == "start_frame":
            return pa.array(known.frame_numbers(videos, begins))
        if name == "frame_indices":
            numbers = known.frame_numbers(videos[:, None], self.windows.places(begins))
            return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), length)
        if name == "shape":
            shapes = np.insert(self._shapes[videos], 0, length, axis=1)
            return pa.FixedSizeListArray.from_arrays(pa.array(shapes.reshape(-1)), 4)
        return known.details[name].take(pa.array(videos))

    def pixels(self, video: pa.ChunkedArray, window: int) -> Pixels:
        """The pixels of the one window that a column of them holds."""
        (at,), _ = self.windows.located(np.array([window]))
        storage = video.combine_chunks()
        storage = getattr(storage, "storage", storage)
        flat: Pixels = storage.flatten().to_numpy().copy()  # which may be written to
        return flat.reshape(self.windows.options.length, *self._shapes[at])

    def _video(
        self, videos: Int64Array, begins: Int64Array, broken: list[str] | None
    ) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """The pixels of windows, without those that have broken frames; which do not."""
        places = self.windows.places(begins) + self.windows.videos.starts[videos][:, None]
        distinct, held = np.unique(places, return_inverse=True)
        held = held.reshape(places.shape)
        slots, offsets = self._slots(videos, distinct, held)
        pixels = np.empty(int(offsets[-1]), np.uint8)
        failed = decode_into(pixels, self._encoded(distinct), slots, self.form)
        whole = np.ones(len(videos), np.bool_)
        if failed:
            told = [self._told(int(distinct[at]), why) for at, why in sorted(failed.items())]
            if broken is None:
                more = f" (and {len(told) - 1} more frames)" if len(told) > 1 else ""
                raise ReadError(told[0] + more)
            broken += told
            whole = ~np.any(np.isin(held, list(failed)), axis=1)
            pixels, offsets = _without(pixels, offsets, whole)
        return self._array(pixels, offsets), whole

    def _slots(
        self, videos: Int64Array, distinct: Int64Array, held: Int64Array
    ) -> tuple[Slots, Int64Array]:
        """Where distinct frames go, of which windows hold those; where each window begins."""
        length = self.windows.options.length
        frame_bytes = np.prod(self._shapes[videos], axis=1)
        offsets = np.concatenate([[0], np.cumsum(frame_bytes * length, dtype=np.int64)])
        of_frames = offsets[:-1, None] + np.arange(length) * frame_bytes[:, None]
        order = np.argsort(held, axis=None, kind="stable")
        begins = np.searchsorted(held.reshape(-1)[order], np.arange(len(distinct) + 1))
        shapes = self._shapes[self._videos_of(distinct)].tolist()
        return Slots(of_frames.reshape(-1)[order], begins, [*map(tuple, shapes)]), offsets

    def _array(self, pixels: Pixels, offsets: Int64Array) -> pa.Array:
        values = pa.array(pixels)
        if self._one_shape is None:
            return pa.LargeListArray.from_arrays(pa.array(offsets), values)
        kind = self.schema.field("video").type
        size = kind.storage_type.list_size
        return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, size))

    def _encoded(self, places: Int64Array) -> list[pa.Buffer | None]:
        """The frames at places among all, each of which has to be what it is taken for."""
        known = self.windows.videos
        rows = places if known.rows is None else known.rows[places]
        table = self.frames.take(rows, columns=FRAME_SCHEMA.names)
        videos = self._videos_of(places)
        expected = known.ids[videos], known.frame_numbers(videos, places - known.starts[videos])
        found = [table[name] for name in (VIDEO_ID, FRAME_IDX)]
        wrong = np.flatnonzero(_differs(found[0], expected[0]) | _differs(found[1], expected[1]))
        if len(wrong):
            at = int(wrong[0])
            raise ReadError(
                f"the list of videos of {self.uri} disagrees with its rows: row {rows[at]} should "
                f"be frame {expected[1][at]} of video {expected[0][at]}, and is frame "
                f"{found[1][at]} of video {found[0][at]}; write the data set again"
            )
        return [value.as_buffer() for value in table[FRAME_BYTES]]

    def _videos_of(self, places: Int64Array) -> Int64Array:
        videos: Int64Array = np.searchsorted(self.windows.videos.starts, places, side="right") - 1
        return videos

    def _told(self, place: int, why: str) -> str:
        known = self.windows.videos
        (video,) = self._videos_of(np.array([place]))
        (number,) = known.frame_numbers(np.array([video]), np.array([place - known.starts[video]]))
        row = place if known.rows is None else known.rows[place]
        key = known.details["key"][int(video)]
        return (
            f"{self.uri}: frame {number} of video {known.ids[video]} ({key}), row {row}, does not "
            f"decode: {why}"
        )


def _without(
    pixels: Pixels, offsets: Int64Array, whole: npt.NDArray[np.bool_]
) -> tuple[Pixels, Int64Array]:
    """The pixels of whole windows, and where each of them begins."""
    lengths = np.diff(offsets)
    kept = pixels[np.repeat(whole, lengths)]
    return kept, np.concatenate([[0], np.cumsum(lengths[whole])])


def _differs(column: pa.ChunkedArray, expected: Int64Array) -> npt.NDArray[np.bool_]:
    """Where a column has other numbers, or none."""
    same = pc.equal(column, pa.array(expected)).fill_null(False)
    return ~np.asarray(same)


@dataclass(frozen=True, slots=True)
class FrameForm:
    """What becomes of a decoded frame."""

    channels_first: bool = False
    resize: tuple[int, int] | None = None
    """height and width"""

    def decoded(self, data: pa.Buffer) -> Pixels:
        """The pixels of a frame, in memory that may not be written to."""
        pixels = image_pixels(memoryview(data))
        if self.resize is not None:
            pixels = _resized(pixels, self.resize)
        return pixels.transpose(2, 0, 1) if self.channels_first else pixels


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Where the pixels of frames go: frame n to the ``offsets`` from ``begins[n]`` on."""

    offsets: Int64Array
    begins: Int64Array
    """one for each frame, and the end"""
    shapes: Sequence[tuple[int, int, int]]
    """of the pixels of each frame"""


def decode_into(
    pixels: Pixels, frames: Sequence[pa.Buffer | None], slots: Slots, form: FrameForm
) -> dict[int, str]:
    """Decode frames into their slots; which of them cannot be, and why."""
    threads = _crew.size(len(frames))
    began = time.perf_counter()
    failed = _decode_in(threads, pixels, frames, slots, form)
    _crew.note(threads, len(frames), time.perf_counter() - began)
    return failed


def _decode_in(
    threads: int,
    pixels: Pixels,
    frames: Sequence[pa.Buffer | None],
    slots: Slots,
    form: FrameForm,
) -> dict[int, str]:
    if threads == 1:
        return _decode(pixels, frames, slots, form, range(len(frames)))
    cuts = np.linspace(0, len(frames), _TURNS * threads + 1).astype(int).tolist()
    runs = [range(start, stop) for start, stop in pairwise(cuts)]
    with ThreadPoolExecutor(threads, "headrace-frames") as pool:
        failed = pool.map(lambda run: _decode(pixels, frames, slots, form, run), runs)
        return {frame: why for some in failed for frame, why in some.items()}


def _decode(
    pixels: Pixels,
    frames: Sequence[pa.Buffer | None],
    slots: Slots,
    form: FrameForm,
    run: Iterable[int],
) -> dict[int, str]:
    failed = {}
    for frame in run:
        try:
            decoded = _checked(frames[frame], slots.shapes[frame], form)
        except ReadError as error:
            failed[frame] = str(error)
            continue
        flat = decoded.reshape(-1)
        for offset in slots.offsets[slots.begins[frame] : slots.begins[frame + 1]].tolist():
            pixels[offset : offset + len(flat)] = flat
    return failed


def _checked(data: pa.Buffer | None, shape: tuple[int, int, int], form: FrameForm) -> Pixels:
    if data is None:
        raise ReadError("it is null")
    decoded = form.decoded(data)
    if decoded.shape != shape:
        raise ReadError(
            f"it is of shape {decoded.shape}, and {shape} is expected: the list of videos is "
            "wrong, or there is none and videos differ in size; resize= reads them as one size"
        )
    return decoded


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    height, width = size
    if pixels.shape[:2] == size:
        return pixels
    Image = pillow()
    scaled = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(scaled)


_crew = Crew()
