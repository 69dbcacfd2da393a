"""The columns of windows: pixels from one read of the frames, and others by arithmetic.

Each frame is decoded once, by one of several threads, and copied into all windows with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.convert.images import image_pixels, pillow
from headrace.errors import ReadError
from headrace.model import Int64Array, computed_once
from headrace.process import in_threads
from headrace.sources.backend import Backend
from headrace.sources.video.videos import FRAME_BYTES, FRAME_IDX, FRAME_SCHEMA, VIDEO_ID, Windows

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FrameForm:
    """The form of decoded frames.

    Attributes:
        channels_first: True for channels before height and width.
        resize: Height and width to which frames are scaled.
    """

    channels_first: bool = False
    resize: tuple[int, int] | None = None

    def shapes(self, heights: Int64Array, widths: Int64Array) -> Int64Array:
        """Return the shapes of frames of these sizes, one in each row."""
        sizes = np.stack([heights, widths], axis=1)
        if self.resize is not None:
            sizes[:] = self.resize
        return np.insert(sizes, 0 if self.channels_first else 2, 3, axis=1)

    def decoded(self, data: pa.Buffer | None, shape: Sequence[int]) -> Pixels:
        """Return the pixels of a frame, which must have a given shape.

        Raises:
            ReadError: The frame does not decode, or has another shape.
        """
        if data is None:
            raise ReadError("it is null")
        pixels = image_pixels(memoryview(data))
        if self.resize is not None and pixels.shape[:2] != self.resize:
            image = pillow()
            height, width = self.resize
            scaled = image.fromarray(pixels).resize((width, height), image.Resampling.BILINEAR)
            pixels = np.asarray(scaled)
        if self.channels_first:
            pixels = pixels.transpose(2, 0, 1)
        if pixels.shape != tuple(shape):
            raise ReadError(
                f"its shape is {pixels.shape}, but {tuple(shape)} is expected: the list of videos "
                "is wrong, or there is none and videos differ in size; resize= reads all frames in "
                "one size"
            )
        return pixels


@dataclass(eq=False)
class WindowReader:
    """Reads windows of the frames of one data set.

    Attributes:
        uri: The name of the data set in messages.
        frames: The frames, one a row.
        windows: The windows.
        form: The form of decoded frames.
    """

    uri: str
    frames: Backend
    windows: Windows
    form: FrameForm

    @computed_once
    def schema(self) -> pa.Schema:
        """The columns of windows; videos of several sizes have one more column."""
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
        """Bytes of the pixels of a window; the average, if sizes differ."""
        counts = np.diff(self.windows.starts)
        frame_bytes = np.prod(self._shapes, axis=1) @ counts // max(len(self.windows), 1)
        return max(1, int(frame_bytes) * self.windows.options.length)

    @computed_once
    def _shapes(self) -> Int64Array:
        """Shape of the decoded frames of each video, one in each row."""
        videos = self.windows.videos
        return self.form.shapes(videos.heights, videos.widths)

    @computed_once
    def _one_shape(self) -> tuple[int, ...] | None:
        """Shape of all frames in windows, or None if they differ."""
        kinds = np.unique(self._shapes[np.diff(self.windows.starts) > 0], axis=0)
        return tuple(kinds[0].tolist()) if len(kinds) == 1 else None

    def read(
        self, rows: Int64Array, schema: pa.Schema, broken: list[str] | None = None
    ) -> pa.Table:
        """Return windows in the columns of a schema.

        Args:
            rows: The numbers of windows.
            schema: The columns.
            broken: If given, windows with frames that do not decode are left out, and messages
                about these frames are added to it.

        Raises:
            ReadError: A frame does not decode.
        """
        videos, begins = self.windows.located(rows)
        made: dict[str, pa.Array | pa.ChunkedArray] = {}
        if "video" in schema.names:
            made["video"], whole = self._video(videos, begins, broken)
            videos, begins = videos[whole], begins[whole]
        for name in schema.names:
            if name != "video":
                made[name] = self._described(name, videos, begins)
        return pa.table([made[name] for name in schema.names], schema=schema)

    def _described(
        self, name: str, videos: Int64Array, begins: Int64Array
    ) -> pa.Array | pa.ChunkedArray:
        """Return a column of windows other than their pixels."""
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
        """Return the pixels of the only window in a column of windows."""
        (at,), _ = self.windows.located(np.array([window]))
        storage = video.combine_chunks()
        storage = getattr(storage, "storage", storage)
        flat: Pixels = storage.flatten().to_numpy().copy()  # a copy, which may be written to
        return flat.reshape(self.windows.options.length, *self._shapes[at])

    def _video(
        self, videos: Int64Array, begins: Int64Array, broken: list[str] | None
    ) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Return the pixels of windows without broken frames, and a mask of these windows."""
        places = self.windows.places(begins) + self.windows.videos.starts[videos][:, None]
        distinct, held = np.unique(places, return_inverse=True)
        held = held.reshape(places.shape)
        frames = self._decoded(distinct)
        failed = [at for at, frame in enumerate(frames) if isinstance(frame, ReadError)]
        if failed:
            reasons = [self._reason(int(distinct[at]), frames[at]) for at in failed]
            if broken is None:
                more = f" (and {len(reasons) - 1} more frames)" if len(reasons) > 1 else ""
                raise ReadError(reasons[0] + more)
            broken += reasons
        whole = ~np.any(np.isin(held, failed), axis=1)
        parts = [frames[at] for at in held[whole].reshape(-1).tolist()]
        pixels = np.concatenate([np.empty(0, np.uint8), *parts])
        sizes = np.prod(self._shapes[videos[whole]], axis=1) * self.windows.options.length
        return self._array(pixels, np.append(0, np.cumsum(sizes))), whole

    def _decoded(self, places: Int64Array) -> list[Any]:
        """Return the flat pixels of distinct frames, or the errors of those that do not decode."""
        encoded = self._encoded(places)
        shapes = self._shapes[self.windows.videos.of_frames(places)].tolist()

        def decode(number: int) -> Pixels | ReadError:
            try:
                return self.form.decoded(encoded[number], shapes[number]).reshape(-1)
            except ReadError as error:
                return error

        return list(in_threads(decode, range(len(places))))

    def _array(self, pixels: Pixels, edges: Int64Array) -> pa.Array:
        values = pa.array(pixels)
        if self._one_shape is None:
            return pa.LargeListArray.from_arrays(pa.array(edges), values)
        kind = self.schema.field("video").type
        size = kind.storage_type.list_size
        return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, size))

    def _encoded(self, places: Int64Array) -> list[pa.Buffer | None]:
        """Return frames by their indices; each row must be the expected frame."""
        known = self.windows.videos
        rows = places if known.rows is None else known.rows[places]
        table = self.frames.take(rows, columns=FRAME_SCHEMA.names)
        videos = known.of_frames(places)
        expected = known.ids[videos], known.frame_numbers(videos, places - known.starts[videos])
        found = table[VIDEO_ID], table[FRAME_IDX]
        same = pc.and_(*(pc.equal(f, pa.array(e)) for f, e in zip(found, expected, strict=True)))
        wrong = np.flatnonzero(~np.asarray(same.fill_null(False)))
        if len(wrong):
            at = int(wrong[0])
            raise ReadError(
                f"the list of videos of {self.uri} disagrees with its rows: row {rows[at]} should "
                f"be frame {expected[1][at]} of video {expected[0][at]}, and is frame "
                f"{found[1][at]} of video {found[0][at]}; write the data set again"
            )
        return [value.as_buffer() for value in table[FRAME_BYTES]]

    def _reason(self, place: int, why: ReadError) -> str:
        known = self.windows.videos
        (video,) = known.of_frames(np.array([place]))
        (number,) = known.frame_numbers(np.array([video]), np.array([place - known.starts[video]]))
        row = place if known.rows is None else known.rows[place]
        key = known.details["key"][int(video)]
        return (
            f"{self.uri}: frame {number} of video {known.ids[video]} ({key}), row {row}, does not "
            f"decode: {why}"
        )
