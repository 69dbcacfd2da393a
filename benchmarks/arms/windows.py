"""Windows of video frames: through the library, and by one Lance take a window."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import lance
import numpy as np
import torch
from access_data import FRAME_SIDE, FRAMES_PER_VIDEO, VIDEOS, frames_uri, make_access_data
from data import Data
from PIL import Image

from arms.access_batches import orders
from arms.registry import Arm, Mark, Pieces, register

WINDOW = 16
HOP = 4
BATCH_WINDOWS = 8
_PER_VIDEO = (FRAMES_PER_VIDEO - WINDOW) // HOP + 1
_SHAPE = (-1, WINDOW, FRAME_SIDE, FRAME_SIDE, 3)
Read = Callable[[list[int]], torch.Tensor]


def _batches(in_order: bool) -> list[list[int]]:
    """Return all windows once; in order those of a batch share frames, at random hardly any."""
    count = VIDEOS * _PER_VIDEO
    if not in_order:
        return [batch.tolist() for batch in orders(count, BATCH_WINDOWS)]
    return [list(range(i, min(i + BATCH_WINDOWS, count))) for i in range(0, count, BATCH_WINDOWS)]


def _read_all(data: Data, read: Read, in_order: bool) -> Pieces:
    batches = _batches(in_order)
    bare = _bare_reader(data)
    for batch in (batches[0], batches[-1]):
        if not torch.equal(read(batch), bare(batch)):
            raise SystemExit("windows are not what the frames say")
    yield Mark.CLOCK_STARTS
    for batch in batches:
        yield len(read(batch))


def _ours(in_order: bool, data: Data) -> Pieces:
    from headrace.access import VideoFramesBackend

    backend = VideoFramesBackend(frames_uri(data), window_length=WINDOW, hop_size=HOP)

    def read(windows: list[int]) -> torch.Tensor:
        videos = backend.take(windows).column("video").combine_chunks()
        return torch.from_numpy(_pixels(videos)).view(_SHAPE)

    yield from _read_all(data, read, in_order)


def _by_pillow(in_order: bool, data: Data) -> Pieces:
    """Hide simplejpeg, as if it was not installed."""
    sys.modules["simplejpeg"] = None  # type: ignore[assignment]
    yield from _ours(in_order, data)


def _pixels(videos: Any) -> Any:
    storage = getattr(videos, "storage", videos)
    return storage.flatten().to_numpy()


def _bare(in_order: bool, data: Data) -> Pieces:
    yield from _read_all(data, _bare_reader(data), in_order)


def _bare_reader(data: Data) -> Read:
    frames = lance.dataset(frames_uri(data))

    def read_one(window: int) -> Any:
        video, place = divmod(window, _PER_VIDEO)
        first = video * FRAMES_PER_VIDEO + place * HOP
        table = frames.take(list(range(first, first + WINDOW)), columns=["bytes"])
        return np.stack([_decoded(frame) for frame in table.column("bytes").to_pylist()])

    return lambda windows: torch.from_numpy(np.stack([read_one(window) for window in windows]))


def _decoded(frame: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(frame)).convert("RGB"))


for _in_order, _title in ((False, "random"), (True, "order")):
    for _name, _run in (("ours", _ours), ("pillow", _by_pillow), ("bare", _bare)):
        register(
            Arm(
                f"windows.{_name}-{_title}",
                "access-frames",
                partial(_run, _in_order),
                beforehand=make_access_data,
            )
        )
