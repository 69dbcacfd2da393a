"""Encoded frames to the pixels of windows, each frame decoded once, by several threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.access.crew import Crew
from headrace.convert.images import image_pixels, pillow
from headrace.errors import ReadError
from headrace.model import Int64Array

__all__ = ["FrameForm", "Slots", "decode_into"]

Pixels = npt.NDArray[np.uint8]

_TURNS = 4
"""pieces of work for each thread: frames do not all take equally long"""


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
