"""Encoded frames into fragments of a bounded size, such that a video can still be left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from headrace.errors import WriteError
from headrace.sources.video.videos import FRAME_SCHEMA, VIDEO_SCHEMA
from headrace.write.journal import Journal
from headrace.write.lance_table import LanceTable
from headrace.write.target import Receipt, TargetOptions

__all__ = ["Packer", "finished_parts", "finished_videos", "stored_frames", "write_list"]

Video = Mapping[str, Any]
"""a row of the list of videos, without ``first_row``"""


class Packer:
    """Gathers frames until there are enough for a fragment.

    A fragment holds several whole videos, or a part of one and nothing else: when a video turns
    out to be broken after parts of it have been written, those are left out and nothing else is.
    The journal has a line for each fragment, so that what is in memory is all that a kill costs.
    """

    def __init__(self, table: LanceTable, journal: Journal, fragment_bytes: int) -> None:
        self._table = table
        self._journal = journal
        self._limit_bytes = fragment_bytes
        self._whole: list[tuple[Video, list[bytes]]] = []
        self._whole_bytes = 0

    def add(self, video_id: int, frames: Iterable[bytes], stored: int) -> tuple[int, list[bytes]]:
        """Take in a video from its frame ``stored`` on: how many frames it has, those in memory."""
        held: list[bytes] = []
        held_bytes = 0
        for data in frames:
            held.append(data)
            held_bytes += len(data)
            if self._whole and self._whole_bytes + held_bytes >= self._limit_bytes:
                self.flush()
            if held_bytes >= self._limit_bytes:
                self._write([(video_id, stored, held)], part_of=video_id)
                stored += len(held)
                held, held_bytes = [], 0
        return stored + len(held), held

    def finish(self, video: Video, held: list[bytes]) -> None:
        """What ``add`` was given is whole."""
        if len(held) == video["frames"]:
            self._whole.append((video, held))
            self._whole_bytes += sum(map(len, held))
            return
        begin = video["frames"] - len(held)
        frames = [(video["video_id"], begin, held)] if held else []
        self._write(frames, [video], part_of=video["video_id"])

    def flush(self) -> None:
        """Write what is whole."""
        if self._whole:
            frames = [(video["video_id"], 0, held) for video, held in self._whole]
            self._write(frames, [video for video, _ in self._whole])
        self._whole, self._whole_bytes = [], 0

    def _write(
        self,
        frames: list[tuple[int, int, list[bytes]]],
        videos: Iterable[Video] = (),
        part_of: int | None = None,
    ) -> None:
        receipt: Receipt = {"rows": 0, "fragments": []}
        if frames:
            rows = pa.concat_tables([_rows(*one) for one in frames]).combine_chunks()
            receipt = self._table.write(0, 1, FRAME_SCHEMA, iter([rows]))
        self._journal.note({"part": receipt, "part_of": part_of, "videos": list(videos)})


def stored_frames(journal: Journal) -> Counter[int]:
    """How many frames of videos have been written, of which parts have."""
    stored: Counter[int] = Counter()
    for entry in journal.all("part"):
        if entry["part_of"] is not None:
            stored[entry["part_of"]] += entry["part"]["rows"]
    return stored


def finished_parts(journal: Journal) -> list[Receipt]:
    """All that has been written, without videos that turned out to be broken."""
    broken = {entry["skipped"] for entry in journal.all("skipped")}
    return [entry["part"] for entry in journal.all("part") if entry["part_of"] not in broken]


def finished_videos(journal: Journal) -> pa.Table:
    """The list of the videos that are whole, in the order of their rows."""
    videos = [video for entry in journal.all("part") for video in entry["videos"]]
    first_row = 0
    rows = []
    for video in videos:
        rows.append({**video, "first_row": first_row})
        first_row += video["frames"]
    return pa.Table.from_pylist(rows, VIDEO_SCHEMA)


def write_list(target: TargetOptions, name: str, videos: pa.Table) -> None:
    """Put the list of videos where the commit of the frames says that it is."""
    import lance

    place = f"{target.location}/{name}"
    assert isinstance(target.storage_options, Mapping)
    try:
        lance.write_dataset(
            videos,
            place,
            mode="overwrite",
            storage_options=dict(target.storage_options) or None,
        )
    except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
        raise WriteError(
            f"{place} cannot be written: {error}; mend that and run the same again: it goes on "
            "where it stopped"
        ) from error


def _rows(video_id: int, first: int, frames: list[bytes]) -> pa.Table:
    return pa.table(
        [
            pa.array([video_id] * len(frames), pa.int64()),
            pa.array(range(first, first + len(frames)), pa.int32()),
            pa.array(frames, pa.large_binary()),
        ],
        schema=FRAME_SCHEMA,
    )
