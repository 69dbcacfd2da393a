"""``write_video_frames``: videos as rows of a Lance data set, one encoded frame each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain, count, islice
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from headrace.errors import NothingFoundError, OptionError, ReadError, WriteError, may_be_skipped
from headrace.model import DataFileInfo, computed_once
from headrace.options import FrameOptions, arguments, documented, parse_bytes, resolve
from headrace.sources.lance.opened import lance_options
from headrace.sources.video.videos import FRAME_SCHEMA, VIDEO_SCHEMA, VIDEOS_KEY
from headrace.storage import Access, Options, Store, find_files, resolve_options
from headrace.write._copier import (
    CopyReport,
    Origin,
    Receipt,
    Runner,
    TargetOptions,
    Task,
    copy,
    cut_tasks,
    digest_of,
    digest_of_files,
    larger_than,
    write_items,
)
from headrace.write._lance import LanceTable
from headrace.write._places import PathLike, target_location
from headrace.write._video_decode import (
    Encoding,
    Sampling,
    VideoFile,
    check_installed,
    encoded_frames,
    quarter_turns,
)

logger = logging.getLogger(__name__)

Metadata = Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
"""JSON that a user gives for videos, by their key or path, or a function of the path."""

_EXTENSIONS = (
    *(".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov"),
    *(".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"),
)
_ARCHIVES = (".tar", ".zip", ".parquet", ".arrow", ".feather", ".arrayrecord", ".orc")
"""Endings of files that may hold videos among other things."""
_READ_BYTES = 1 << 20
_FRAMES_AT_ONCE = 16
"""Number of frames that are passed to Lance together."""


class VideoFramesReport(CopyReport):
    """A data set of frames that was written."""

    __slots__ = ()

    @property
    def frames(self) -> int:
        """The number of frames."""
        return self.rows

    @property
    def videos(self) -> int:
        """The number of videos."""
        return sum(len(part["videos"]) for part in self.parts)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Why videos were left out, a line each."""
        return tuple(why for part in self.parts for why in part["skipped"])


@documented(FrameOptions)
def write_video_frames(
    sources: PathLike | Sequence[PathLike],
    target: PathLike,
    *,
    metadata: Metadata | None = None,
    storage_options: Options | None = None,
    **options: Unpack[FrameOptions],
) -> VideoFramesReport:
    """Write the frames of videos to a Lance data set, and a list of the videos beside them.

    Videos are decoded as streams: a few decoded frames are in memory, and the encoded ones that
    Lance collects before it writes them, in each process. The data set appears when it is complete.
    A run that was killed is continued by the next one with the same sources and options
    (``on_error`` may differ).

    Args:
        sources: Files, and directories, in which files with the extension of a video are used.
        target: The data set.
        metadata: Further metadata of videos, by key or path, or a function of the path.
        storage_options: Credentials for the sources.
        **options: Keywords of all copies of videos.
    """
    given = resolve(FrameOptions, options)
    check_installed()
    encoding = Encoding(**arguments(Encoding, given))
    sampling = Sampling(**arguments(Sampling, given))
    limit = parse_bytes("fragment_bytes", given["fragment_bytes"])
    videos = find_videos(sources, Access(storage_options=storage_options or {}))
    videos = [replace(video, notes=_notes(video, metadata)) for video in videos]
    location = target_location(target)
    access, _ = lance_options(location, resolve_options(given["target_options"] or {}).options)
    place = replace(TargetOptions.of(target, given), storage_options=access or {})
    source = _VideoCopies(videos, limit)
    copied = copy(
        source.origin,
        lambda journal, runner: source,
        _FramesTable(place, limit, encoding, sampling, given["on_error"] == "skip"),
        place,
        Runner.of(given),
        work={
            "work": "video_frames",
            **asdict(encoding),
            **asdict(sampling),
            "fragment_bytes": limit,
        },
    )
    return VideoFramesReport(copied.target, copied.parts, copied.resumed)


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A file with a video.

    Attributes:
        video_id: Its number.
        key: A unique name: the path below the directory that all videos have in common.
        file: The file.
        store: Reads it.
        notes: JSON of the metadata that the user gave.
    """

    video_id: int
    key: str
    file: DataFileInfo
    store: Store
    notes: str = "{}"

    def open(self) -> AbstractContextManager[Any]:
        """Return a path or a file object from which the video is decoded."""
        return nullcontext(self.file.path) if self.store.local else self.store.open(self.file)

    def checksum(self) -> str:
        """Return the SHA-256 of the whole file."""
        digest = sha256()
        with self.store.open(self.file) as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
        return f"sha256:{digest.hexdigest()}"


def _notes(video: VideoSource, metadata: Metadata | None) -> str:
    """Return the metadata that the user gave for a video, as JSON."""
    if callable(metadata):
        found: object = metadata(video.file.path)
    else:
        given = metadata or {}
        found = given.get(video.key) or given.get(video.file.path) or {}
    if not isinstance(found, Mapping):
        raise OptionError(f"metadata of {video.file.path} must be a mapping, not {found!r}")
    try:
        return json.dumps(dict(found), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"metadata of {video.file.path} must be JSON: {error}") from error


def find_videos(sources: PathLike | Sequence[PathLike], access: Access) -> list[VideoSource]:
    """Return files named one by one, and the files in directories that end like videos."""
    listing = find_files(sources, access)
    files = [
        file
        for file in listing.files
        if file.path in listing.named or file.path.lower().endswith(_EXTENSIONS)
    ]
    if not files:
        raise NothingFoundError(
            f"there is no video in {', '.join(listing.locations)}: in a directory only files that "
            f"end in {', '.join(_EXTENSIONS)} are used; name other files one by one"
        )
    for file in files:
        if file.path.lower().endswith(_ARCHIVES):
            raise OptionError(
                f"{file.path} is an archive: FFmpeg would read all videos in it as one; unpack it, "
                "and name the folder of the videos"
            )
    keys = _keys([file.path for file in files])
    return [
        VideoSource(number, key, file, listing.store)
        for number, (key, file) in enumerate(zip(keys, files, strict=True))
    ]


def _keys(paths: Sequence[str]) -> list[str]:
    """Return paths below the directory that all share, without endings where that is clear."""
    folders = [path.split("/")[:-1] for path in paths]
    # What the first and the last folder in sorted order share, all between them share as well.
    same = [one == other for one, other in zip(min(folders), max(folders), strict=False)]
    shared = [*same, False].index(False)
    below = ["/".join(path.split("/")[shared:]) for path in paths]
    short = [os.path.splitext(name)[0] for name in below]
    keys = [
        name if short.count(name) == 1 else full for name, full in zip(short, below, strict=True)
    ]
    return keys if len(set(keys)) == len(keys) else below


@dataclass(frozen=True)
class _VideoCopies:
    """Videos in parts of about a fragment. A task is a run of videos."""

    videos: Sequence[VideoSource]
    part_bytes: int

    @property
    def origin(self) -> Origin:
        """The files and metadata of the videos."""
        files = [video.file for video in self.videos]
        facts = {
            "sources": digest_of_files(files),
            "metadata": digest_of(video.notes for video in self.videos),
        }
        return Origin(facts, [file.path for file in files], schema=FRAME_SCHEMA)

    @computed_once
    def tasks(self) -> list[Task]:
        """Consecutive videos whose files are about as large as a fragment."""
        return cut_tasks(
            (max(video.file.file_size or 0, 1) for video in self.videos),
            larger_than(self.part_bytes),
        )

    def read(self, task: Task) -> Generator[VideoSource, None, None]:
        """Yield the videos of a part."""
        yield from self.videos[task.first : task.stop]


@dataclass(frozen=True, slots=True)
class _FramesTable(LanceTable):
    """A Lance table of frames, with the list of their videos beside it."""

    encoding: Encoding = field(default_factory=Encoding)
    sampling: Sampling = field(default_factory=Sampling)
    skip_broken: bool = False

    def write(
        self, part: int, parts: int | None, schema: pa.Schema, groups: Iterator[VideoSource]
    ) -> Receipt:
        """Write the frames of videos. If one is broken, all are written again without it."""
        videos, skipped = list(groups), list[str]()
        while True:
            rows: list[dict[str, Any]] = []
            frames = (table for video in videos for table in self._frames(video, rows))
            try:
                receipt = write_items(partial(LanceTable.write, self, part, parts, schema), frames)
                return {**receipt, "videos": rows, "skipped": skipped}
            except ReadError as error:
                if not may_be_skipped(error):
                    raise
                if not self.skip_broken:
                    raise ReadError(
                        f'{error}; run the same again with on_error="skip" to go on without it'
                    ) from error
                logger.warning("skipped: %s", error)
                skipped.append(str(error))
                del videos[len(rows)]

    def _frames(
        self, source: VideoSource, rows: list[dict[str, Any]]
    ) -> Generator[pa.Table, None, None]:
        """Yield the frames of a video, and then add its row of the list of videos."""
        checksum = source.checksum()
        with source.open() as file, closing(VideoFile.open(source.file.path, file)) as video:
            chosen = self.sampling.chosen(video.frames())
            first = next(chosen)
            sides = video.stream.height, video.stream.width
            size = self.encoding.dimensions(*(sides[::-1] if quarter_turns(first) % 2 else sides))
            frames = 0
            with closing(encoded_frames(chain([first], chosen), self.encoding, *size)) as encoded:
                for table in _tables(source.video_id, encoded):
                    yield table
                    frames += table.num_rows
            facts = {**video.facts, "fps": self.sampling.fps, "every": self.sampling.every}
        rows.append(
            {
                "video_id": source.video_id,
                "key": source.key,
                "path": source.file.path,
                "checksum": checksum,
                "frames": frames,
                "height": size[0],
                "width": size[1],
                "metadata": json.dumps({**facts, **json.loads(source.notes)}, ensure_ascii=False),
            }
        )

    def commit(
        self, schema: pa.Schema, receipts: Sequence[Receipt], facts: Mapping[str, Any]
    ) -> None:
        videos = [video for receipt in receipts for video in receipt["videos"]]
        if not videos:
            why = next(why for receipt in receipts for why in receipt["skipped"])
            raise WriteError(f"no video could be read, so there is nothing to write: {why}")
        name = f"videos-{facts['run']}.lance"
        first_rows = np.cumsum([0, *(video["frames"] for video in videos)]).tolist()
        rows = [{**video, "first_row": row} for video, row in zip(videos, first_rows, strict=False)]
        self.write_beside(name, pa.Table.from_pylist(rows, VIDEO_SCHEMA))
        named = schema.with_metadata({VIDEOS_KEY: name.encode()})
        LanceTable.commit(self, named, receipts, facts)


def _tables(video_id: int, frames: Iterator[bytes]) -> Iterator[pa.Table]:
    """Yield the encoded frames of a video in tables."""
    for start in count(0, _FRAMES_AT_ONCE):
        held = list(islice(frames, _FRAMES_AT_ONCE))
        if not held:
            return
        columns = [
            pa.array([video_id] * len(held), pa.int64()),
            pa.array(range(start, start + len(held)), pa.int32()),
            pa.array(held, pa.large_binary()),
        ]
        yield pa.table(columns, schema=FRAME_SCHEMA)
