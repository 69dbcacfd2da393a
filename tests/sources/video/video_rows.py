"""Frames that tell which video and frame they are of, encoded without loss."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from headrace.sources.video.videos import FRAME_SCHEMA, VIDEO_SCHEMA, VIDEOS_KEY

Pixels = npt.NDArray[np.uint8]
Sizes = dict[int, tuple[int, int]]
"""height and width of videos that are not of the usual size"""

HEIGHT, WIDTH = 6, 8


def pixels(video: int, frame: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Pixels:
    height, width = size
    made = np.zeros((height, width, 3), np.uint8)
    made[..., 0] = video
    made[..., 1] = frame
    made[..., 2] = np.arange(height * width).reshape(height, width)
    return made


def encoded(image: Pixels) -> bytes:
    out = BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def frames(counts: list[int], sizes: Sizes | None = None) -> pa.Table:
    """The rows of videos of so many frames."""
    pairs = [(video, frame) for video, count in enumerate(counts) for frame in range(count)]
    sizes = sizes or {}
    return pa.table(
        {
            "video_id": [video for video, _ in pairs],
            "frame_idx": [frame for _, frame in pairs],
            "bytes": [encoded(pixels(v, f, sizes.get(v, (HEIGHT, WIDTH)))) for v, f in pairs],
        },
        schema=FRAME_SCHEMA,
    )


def video_list(counts: list[int], sizes: Sizes | None = None) -> pa.Table:
    """The list of these videos."""
    shapes = [(sizes or {}).get(video, (HEIGHT, WIDTH)) for video in range(len(counts))]
    names = [f"clip/{video}" for video in range(len(counts))]
    return pa.table(
        {
            "video_id": range(len(counts)),
            "key": names,
            "path": [f"{name}.mp4" for name in names],
            "checksum": [f"sha256:{video}" for video in range(len(counts))],
            "frames": counts,
            "height": [height for height, _ in shapes],
            "width": [width for _, width in shapes],
            "first_row": np.cumsum([0, *counts])[:-1].tolist(),
            "metadata": [f'{{"label": {video}}}' for video in range(len(counts))],
        },
        schema=VIDEO_SCHEMA,
    )


def write(place: Path, rows: pa.Table, listed: pa.Table | None) -> str:
    """A data set of these frames, and maybe a list of its videos."""
    import lance

    uri = str(place / "frames.lance")
    if listed is not None:
        lance.write_dataset(listed, f"{uri}/videos.lance", mode="overwrite")
        rows = rows.replace_schema_metadata({VIDEOS_KEY: "videos.lance"})
    lance.write_dataset(rows, uri, max_rows_per_file=20, mode="overwrite")
    return uri
