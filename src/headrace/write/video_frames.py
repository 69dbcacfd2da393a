"""``write_video_frames``: videos as rows of a Lance data set, one encoded frame each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any
from uuid import uuid4

from headrace.errors import OptionError, ReadError, WriteError
from headrace.options import parse_bytes
from headrace.sources.files.failures import may_be_skipped
from headrace.sources.lance.options import lance_options
from headrace.sources.video.videos import FRAME_SCHEMA, VIDEOS_KEY
from headrace.storage import Access, Options
from headrace.storage.options import resolve
from headrace.write.journal import Journal
from headrace.write.lance_table import LanceTable
from headrace.write.overlap import refuse_overlap
from headrace.write.target import TargetOptions
from headrace.write.video_decode import (
    Encoding,
    Sampling,
    VideoFile,
    check_installed,
    encoded_frames,
    quarter_turns,
)
from headrace.write.video_parts import (
    Packer,
    finished_parts,
    finished_videos,
    stored_frames,
    write_list,
)
from headrace.write.video_sources import Metadata, PathLike, VideoSource, find_videos, fingerprint
from headrace.write.work import Progress, nobody, target_location, work_directory

__all__ = ["VideoFramesReport", "write_video_frames"]

logger = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class VideoFramesReport:
    """What was written."""

    target: str
    videos: int
    frames: int
    skipped: tuple[str, ...]
    """why videos were left out, a line each"""
    resumed: bool
    """whether earlier, unfinished work was gone on with"""


def write_video_frames(
    sources: PathLike | Sequence[PathLike],
    target: PathLike,
    *,
    codec: str = "webp",
    quality: int = 90,
    size: int | None = None,
    fps: float | None = None,
    every: int = 1,
    metadata: Metadata | None = None,
    fragment_bytes: int | str = "128MiB",
    on_error: str = "raise",
    storage_options: Options | None = None,
    target_options: Options | None = None,
    work_dir: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> VideoFramesReport:
    """Write the frames of videos to a Lance data set, and a list of the videos beside them.

    ``size``: the shorter side of what is stored; the other follows, so that nothing is distorted.
    ``every``: one of so many frames is kept; ``fps``: so many a second, and never more than there
    are. ``metadata``: what is known of videos, by key or path, or a function of the path.
    ``on_error="skip"`` leaves out videos that are damaged anywhere.

    Videos are decoded as streams: about three times ``fragment_bytes`` of encoded frames are in
    memory, and a few decoded ones. The data set appears when it is complete. A run that was
    killed is gone on with by the next one with the same sources and options (``on_error`` may be
    another).
    """
    if on_error not in ("raise", "skip"):
        raise OptionError(f'on_error must be "raise" or "skip", not {on_error!r}')
    check_installed()
    encoding = Encoding(codec=codec, quality=quality, size=size)
    sampling = Sampling(every=every, fps=fps)
    limit_bytes = parse_bytes("fragment_bytes", fragment_bytes)
    videos = find_videos(sources, Access(storage_options=storage_options or {}))
    location = target_location(target)
    refuse_overlap([video.path for video in videos], (), location)
    directory = work_directory(work_dir, location, "video-frames")
    options = TargetOptions(
        location=location,
        work_dir=directory,
        overwrite=overwrite,
        storage_options=lance_options(location, resolve(target_options or {}).options) or {},
    )
    table = LanceTable(options)
    if not Journal.exists(directory):
        table.refuse(FRAME_SCHEMA)
    work = {
        "version": _VERSION,
        "sources": fingerprint(videos),
        "target": location,
        **asdict(encoding),
        **asdict(sampling),
        "fragment_bytes": limit_bytes,
    }
    with closing(Journal(directory, work)) as journal:
        conversion = _Conversion(
            table, journal, encoding, sampling, metadata, limit_bytes, on_error == "skip"
        )
        report = conversion.finish(videos, progress or nobody)
        journal.forget()
        if not os.listdir(directory):
            os.rmdir(directory)
    return report


@dataclass(frozen=True, slots=True)
class _Conversion:
    table: LanceTable
    journal: Journal
    encoding: Encoding
    sampling: Sampling
    metadata: Metadata | None
    fragment_bytes: int
    skip_broken: bool

    def finish(self, videos: Sequence[VideoSource], progress: Progress) -> VideoFramesReport:
        """Do what the journal does not say is done."""
        if not self.journal.all("begun"):
            self.journal.note({"begun": uuid4().hex})
        run = self.journal.all("begun")[0]["begun"]
        self._check_parts(run)
        self._convert(videos, progress)
        listed = finished_videos(self.journal)
        skipped = [entry["why"] for entry in self.journal.all("skipped")]
        if not listed.num_rows:
            raise WriteError(f"no video could be read, so there is nothing to write: {skipped[0]}")
        name = f"videos-{run}.lance"
        write_list(self.table.options, name, listed)
        schema = FRAME_SCHEMA.with_metadata({VIDEOS_KEY: name.encode()})
        self.table.commit(schema, finished_parts(self.journal), {"run": run})
        progress("converting", 1.0)
        frames = sum(listed["frames"].to_pylist())
        target = self.table.options.location
        logger.info("%s: %d frames of %d videos", target, frames, listed.num_rows)
        return VideoFramesReport(
            target, listed.num_rows, frames, tuple(skipped), self.journal.resumed
        )

    def _check_parts(self, run: str) -> None:
        for part in finished_parts(self.journal):
            if not self.table.holds(part, run):
                raise WriteError(
                    f"{self.table.options.location} no longer holds what an earlier run wrote "
                    f"there; delete {self.journal.directory} to start anew"
                )

    def _convert(self, videos: Sequence[VideoSource], progress: Progress) -> None:
        packer = Packer(self.table, self.journal, self.fragment_bytes)
        parts = self.journal.all("part")
        done = {video["video_id"] for part in parts for video in part["videos"]}
        done |= {entry["skipped"] for entry in self.journal.all("skipped")}
        stored = stored_frames(self.journal)
        sizes = [max(video.size_bytes, 1) for video in videos]
        behind, total = 0, sum(sizes)
        for video, size in zip(videos, sizes, strict=True):
            if video.video_id not in done:
                told = partial(_tell, progress, behind / total, size / total)
                self._convert_one(video, packer, stored[video.video_id], told)
            behind += size
            progress("converting", min(behind / total, 0.999))
        packer.flush()

    def _convert_one(
        self, source: VideoSource, packer: Packer, stored: int, progress: Callable[[float], None]
    ) -> None:
        try:
            video, held = self._packed(source, packer, stored, progress)
        except ReadError as error:
            if not may_be_skipped(error):
                raise
            if not self.skip_broken:
                raise ReadError(
                    f'{error}; run the same again with on_error="skip" to go on without it'
                ) from error
            logger.warning("skipped: %s", error)
            self.journal.note({"skipped": source.video_id, "why": str(error)})
            return
        packer.finish(video, held)

    def _packed(
        self, source: VideoSource, packer: Packer, stored: int, progress: Callable[[float], None]
    ) -> tuple[Mapping[str, Any], list[bytes]]:
        """The row of a video in the list of them, and those of its frames that are in memory."""
        noted = source.noted(self.metadata)  # before there is work that an error would lose
        checksum = source.checksum()
        with source.opened() as file, closing(VideoFile.open(source.path, file)) as video:
            chosen = self.sampling.chosen(_told(video, progress))
            first = next(chosen)
            chosen = chain([first], chosen)
            sides = video.stream.height, video.stream.width
            size = self.encoding.dimensions(*(sides[::-1] if quarter_turns(first) % 2 else sides))
            for _ in range(stored):  # decoded again, for only so is it certain where one is
                next(chosen)
            frames, held = packer.add(
                source.video_id, encoded_frames(chosen, self.encoding, *size), stored
            )
            facts = {**video.facts, "fps": self.sampling.fps, "every": self.sampling.every}
        about = {**facts, **noted}
        return {
            "video_id": source.video_id,
            "key": source.key,
            "path": source.path,
            "checksum": checksum,
            "frames": frames,
            "height": size[0],
            "width": size[1],
            "metadata": json.dumps(about, ensure_ascii=False),
        }, held


def _told(video: VideoFile, progress: Callable[[float], None]) -> Any:
    """The frames of a video, while somebody is told how far they are."""
    duration = video.duration_s
    for time_s, frame in video.frames():
        if duration:
            progress(min(time_s / duration, 1.0))
        yield time_s, frame


def _tell(progress: Progress, behind: float, share: float, within: float) -> None:
    progress("converting", min(behind + share * within, 0.999))
