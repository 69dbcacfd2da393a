"""The data of random access, which is written once, in folders beside the other data.

Rows have a vector of 128 float32 (``vector``), their number (``row``) and 2 KB of bytes (``blob``):
as Arrow IPC, as Lance and as Parquet. Records are bytes like those of JPEG files, which no
compression makes smaller. Frames are JPEG pictures that move a little from one to the next.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from data import Data, write_missing

__all__ = [
    "BLOB_BYTES",
    "FRAMES_PER_VIDEO",
    "FRAME_SIDE",
    "VECTOR",
    "frames_uri",
    "lance_uri",
    "make_access_data",
    "record_count",
    "records_path",
    "row_count",
]

SHARDS = 8
BATCH_ROWS = 1000
GROUP_ROWS = 10_000
VECTOR = 128
BLOB_BYTES = 2048
RECORD_BYTES = 20_000
VIDEOS = 16
FRAMES_PER_VIDEO = 128
FRAME_SIDE = 128
_JPEG_QUALITY = 90


def row_count(data: Data) -> int:
    """Return the number of rows of all shards."""
    return SHARDS * _rows_per_shard(data)


def _rows_per_shard(data: Data) -> int:
    return max(1, round(200_000 * data.scale / SHARDS))


def record_count(data: Data) -> int:
    """Return the number of records of each of the two files."""
    return max(64, round(20_000 * data.scale))


def lance_uri(data: Data) -> str:
    """Return the URI of the rows as a Lance dataset with one fragment for each shard."""
    return str(data.folder("access-lance") / "rows.lance")


def frames_uri(data: Data) -> str:
    """Return the URI of the frames; a row has ``video_id``, ``frame_idx`` and ``bytes``."""
    return str(data.folder("access-frames") / "frames.lance")


def records_path(data: Data, kind: str) -> str:
    """Return the file of records to read at ``random`` (groups of 1) or in ``order`` (of 500)."""
    return str(data.folder("access-records") / f"{kind}.array_record")


def make_access_data(data: Data) -> None:
    """Write the data that do not exist yet."""
    write_missing(data, _WRITERS)


def _tables(data: Data) -> Iterator[pa.Table]:
    """Yield the rows of each shard."""
    rows = _rows_per_shard(data)
    for number in range(SHARDS):
        noise = np.random.default_rng(number)
        vectors = pa.array(noise.standard_normal(rows * VECTOR, np.float32))
        blobs = pa.py_buffer(noise.bytes(rows * BLOB_BYTES))
        ends = pa.py_buffer(np.arange(0, (rows + 1) * BLOB_BYTES, BLOB_BYTES, dtype=np.int32))
        columns = {
            "vector": pa.FixedSizeListArray.from_arrays(vectors, VECTOR),
            "row": pa.array(np.arange(number * rows, (number + 1) * rows)),
            "blob": pa.BinaryArray.from_buffers(pa.binary(), rows, [None, ends, blobs]),
        }
        yield pa.table(columns)


def _write_arrow(data: Data, folder: Path) -> None:
    for number, table in enumerate(_tables(data)):
        with ipc.new_file(folder / f"part-{number}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=BATCH_ROWS)


def _write_parquet(data: Data, folder: Path, *, page_index: bool) -> None:
    for number, table in enumerate(_tables(data)):
        path = folder / f"part-{number}.parquet"
        pq.write_table(table, path, row_group_size=GROUP_ROWS, write_page_index=page_index)


def _write_lance(data: Data, folder: Path) -> None:
    import lance  # imported here: its threads would not survive a fork in another arm

    for table in _tables(data):
        lance.write_dataset(table, folder / "rows.lance", mode="append")


def _write_records(data: Data, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for kind, group_size in (("random", 1), ("order", 500)):
        noise = np.random.default_rng(0)
        path = folder / f"{kind}.array_record"
        writer = ArrayRecordWriter(str(path), f"group_size:{group_size}")
        for _ in range(record_count(data)):
            writer.write(noise.bytes(RECORD_BYTES))
        writer.close()


def _write_frames(data: Data, folder: Path) -> None:
    import lance

    frames = [
        (video, index, picture)
        for video in range(VIDEOS)
        for index, picture in enumerate(_pictures(video))
    ]
    names = ("video_id", "frame_idx", "bytes")
    types = (pa.int64(), pa.int64(), pa.large_binary())
    columns = zip(*frames, strict=True)
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    lance.write_dataset(pa.table(dict(zip(names, arrays, strict=True))), folder / "frames.lance")


def _pictures(video: int) -> Iterator[bytes]:
    """Yield drifting waves of colour with some noise."""
    from PIL import Image

    noise = np.random.default_rng(video)
    y, x = np.mgrid[:FRAME_SIDE, :FRAME_SIDE]
    lengths, drifts = noise.uniform(8, 32, (3, 2)), noise.uniform(0.05, 0.3, 3)
    for index in range(FRAMES_PER_VIDEO):
        waves = [
            np.sin(x / across + y / down + drift * index)
            for (across, down), drift in zip(lengths, drifts, strict=True)
        ]
        pixels = 128 + 100 * np.stack(waves, axis=2) + noise.normal(0, 6, (*x.shape, 3))
        file = io.BytesIO()
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        picture.save(file, "JPEG", quality=_JPEG_QUALITY)
        yield file.getvalue()


_WRITERS: dict[str, Callable[[Data, Path], None]] = {
    "access-arrow": _write_arrow,
    "access-parquet": lambda data, folder: _write_parquet(data, folder, page_index=False),
    "access-paged": lambda data, folder: _write_parquet(data, folder, page_index=True),
    "access-lance": _write_lance,
    "access-records": _write_records,
    "access-frames": _write_frames,
}
