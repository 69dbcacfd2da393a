"""``write_video_frames``: videos as rows of a Lance data set, one encoded frame each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import NothingFoundError, OptionError, ReadError, WriteError
from headrace.model import DataFileInfo, computed_once
from headrace.options import parse_bytes
from headrace.sources.files.failures import may_be_skipped
from headrace.sources.lance.opened import lance_options
from headrace.sources.video.videos import FRAME_SCHEMA, VIDEO_SCHEMA, VIDEOS_KEY
from headrace.storage import Access, Options, Store, find_files, resolve
from headrace.write._copier import Progress, Runner, Task, copy, ignore
from headrace.write._lance import LanceTable
from headrace.write._rows import digest_of, refuse_overlap
from headrace.write._targets import PathLike, Receipt, TargetOptions, target_location
from headrace.write._video_decode import (
    Encoding,
    Sampling,
    VideoFile,
    check_installed,
    encoded_frames,
    quarter_turns,
)

__all__ = ["VideoFramesReport", "write_video_frames"]

logger = logging.getLogger(__name__)

Metadata = Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
"""JSON that a user gives for videos, by their key or path, or a function of the path."""

_EXTENSIONS = (
    *(".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov"),
    *(".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"),
)
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VideoFramesReport:
    """A data set of frames that was written.

    Attributes:
        target: Its location.
        videos: The number of videos.
        frames: The number of frames.
        skipped: Why videos were left out, a line each.
        resumed: True if earlier, unfinished work was continued.
    """

    target: str
    videos: int
    frames: int
    skipped: tuple[str, ...]
    resumed: bool


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
    workers: int | None = None,
    on: str | None = None,
    progress: Progress | None = None,
) -> VideoFramesReport:
    """Write the frames of videos to a Lance data set, and a list of the videos beside them.

    Videos are decoded as streams: about ``fragment_bytes`` of encoded frames are in memory, and a
    few decoded ones, in each process. The data set appears when it is complete. A run that was
    killed is continued by the next one with the same sources and options (``on_error`` may be
    another).

    Args:
        sources: Files, and directories, of which files with the endings of videos are taken.
        target: The data set.
        codec: ``"webp"`` or ``"jpeg"``.
        quality: From 1 to 100.
        size: The shorter side of what is stored; the other follows, so that nothing is distorted.
        fps: How many frames of a second are kept, and never more than there are.
        every: One of how many frames is kept.
        metadata: What is known of videos, by key or path, or a function of the path.
        fragment_bytes: The size of a fragment of the data set.
        on_error: ``"skip"`` leaves out videos that are damaged anywhere.
        storage_options: Credentials for the sources.
        target_options: Credentials for the target.
        work_dir: For the journal; None for a hidden directory beside the target.
        overwrite: Write a new version of a data set that is there.
        workers: The number of processes; 0 for this one, None to choose by the size of the videos.
        on: ``"ray"`` to run the work on a Ray cluster, whose nodes reach source, target and
            ``work_dir``; None for processes of this machine.
        progress: Called with a stage and the ``Share`` of it that is done.
    """
    if on_error not in ("raise", "skip"):
        raise OptionError(f'on_error must be "raise" or "skip", not {on_error!r}')
    check_installed()
    encoding = Encoding(codec=codec, quality=quality, size=size)
    sampling = Sampling(every=every, fps=fps)
    limit = parse_bytes("fragment_bytes", fragment_bytes)
    videos = find_videos(sources, Access(storage_options=storage_options or {}))
    videos = [replace(video, notes=_notes(video, metadata)) for video in videos]
    location = target_location(target)
    refuse_overlap([video.path for video in videos], (), location)
    access, _ = lance_options(location, resolve(target_options or {}).options)
    options = TargetOptions.of(target, work_dir, access, overwrite=overwrite)
    frames = _FramesTable(LanceTable(options), encoding, sampling, limit, on_error == "skip")
    work = {
        "work": "video_frames",
        "sources": digest_of(f"{one.path}\t{one.size_bytes}\t{one.etag}" for one in videos),
        "target": location,
        **asdict(encoding),
        **asdict(sampling),
        "fragment_bytes": limit,
        "metadata": digest_of(video.notes for video in videos),
    }
    copied = copy(
        lambda journal: _VideoParts(videos, limit),
        frames,
        Runner(workers, progress or ignore, on),
        work=work,
        work_dir=options.work_dir,
        schema=FRAME_SCHEMA,
        stage="converting",
    )
    skipped = [why for receipt in copied.receipts for why in receipt["skipped"]]
    count = sum(len(receipt["videos"]) for receipt in copied.receipts)
    logger.info("%s: %d frames of %d videos", location, copied.rows, count)
    return VideoFramesReport(location, count, copied.rows, tuple(skipped), copied.resumed)


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A file with a video.

    Attributes:
        video_id: Its number.
        key: Unlike that of any other; the path below the directory that all have in common.
        path: The file.
        size_bytes: Its size; negative if unknown.
        etag: Tells the file from what it was before.
        store: Reads it.
        notes: JSON of the metadata that the user gave.
    """

    video_id: int
    key: str
    path: str
    size_bytes: int
    etag: str | None
    store: Store
    notes: str = "{}"

    def open(self) -> AbstractContextManager[Any]:
        """Return something to decode from: a path where that will do."""
        return nullcontext(self.path) if self.store.local else self._open_file()

    def checksum(self) -> str:
        """Return the SHA-256 of the whole file."""
        digest = sha256()
        with self._open_file() as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
        return f"sha256:{digest.hexdigest()}"

    def _open_file(self) -> AbstractContextManager[Any]:
        size = self.size_bytes if self.size_bytes >= 0 else None
        file: AbstractContextManager[Any] = self.store.open(
            DataFileInfo(self.path, file_size=size, etag=self.etag)
        )
        return file


def _notes(video: VideoSource, metadata: Metadata | None) -> str:
    """Return what the user knows of a video, as JSON."""
    if callable(metadata):
        found: object = metadata(video.path)
    else:
        given = metadata or {}
        found = given.get(video.key) or given.get(video.path) or {}
    if not isinstance(found, Mapping):
        raise OptionError(f"metadata of {video.path} must be a mapping, not {found!r}")
    try:
        return json.dumps(dict(found), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"metadata of {video.path} must be JSON: {error}") from error


def find_videos(sources: PathLike | Sequence[PathLike], access: Access) -> list[VideoSource]:
    """Return files that are named, and files of directories that end like videos."""
    listing = find_files(sources, access)
    files = [
        file
        for file in listing.files
        if file.path in listing.named or file.path.lower().endswith(_EXTENSIONS)
    ]
    if not files:
        raise NothingFoundError(
            f"there is no video in {', '.join(listing.locations)}: of a directory those files are "
            f"taken that end in {', '.join(_EXTENSIONS)}; name others in full"
        )
    keys = _keys([file.path for file in files])
    return [
        VideoSource(number, key, file.path, file.size, file.etag, listing.store)
        for number, (key, file) in enumerate(zip(keys, files, strict=True))
    ]


def _keys(paths: Sequence[str]) -> list[str]:
    """Return paths below the directory that all share, without endings where that is clear."""
    folders = [path.split("/")[:-1] for path in paths]
    same = [one == other for one, other in zip(min(folders), max(folders), strict=False)]
    shared = [*same, False].index(False)
    below = ["/".join(path.split("/")[shared:]) for path in paths]
    short = [os.path.splitext(name)[0] for name in below]
    keys = [
        name if short.count(name) == 1 else full for name, full in zip(short, below, strict=True)
    ]
    return keys if len(set(keys)) == len(keys) else below


@dataclass(frozen=True)
class _VideoParts:
    """Videos in parts of about a fragment. A task is a run of videos."""

    videos: Sequence[VideoSource]
    part_bytes: int

    @computed_once
    def tasks(self) -> list[Task]:
        """Consecutive videos whose files are about as large as a fragment."""
        tasks: list[Task] = []
        start, held = 0, 0
        for number, video in enumerate(self.videos):
            if held and held + video.size_bytes > self.part_bytes:
                tasks.append(Task(len(tasks), start, number - start, held))
                start, held = number, 0
            held += max(video.size_bytes, 1)
        tasks.append(Task(len(tasks), start, len(self.videos) - start, held))
        return tasks

    def read(self, task: Task) -> Generator[VideoSource, None, None]:
        """Yield the videos of a part."""
        yield from self.videos[task.first : task.first + (task.rows or 0)]


@dataclass(frozen=True, slots=True)
class _FramesTable:
    """A Lance table of frames, with the list of their videos beside it."""

    table: LanceTable
    encoding: Encoding
    sampling: Sampling
    fragment_bytes: int
    skip_broken: bool

    def refuse(self, schema: pa.Schema) -> None:
        self.table.refuse(schema)

    def write(
        self, part: int, parts: int | None, schema: pa.Schema, groups: Iterator[VideoSource]
    ) -> Receipt:
        """Write the frames of videos. If one is broken, all are written again without it."""
        videos, skipped = list(groups), list[str]()
        while True:
            frames = _Frames(self.table, self.fragment_bytes)
            rows = []
            for video in videos:
                try:
                    rows.append(self._add(video, frames))
                except ReadError as error:
                    if not may_be_skipped(error):
                        raise
                    if not self.skip_broken:
                        raise ReadError(
                            f'{error}; run the same again with on_error="skip" to go on without it'
                        ) from error
                    logger.warning("skipped: %s", error)
                    skipped.append(str(error))
                    videos.remove(video)
                    break
            else:
                frames.flush()
                return {**frames.receipt, "videos": rows, "skipped": skipped}

    def _add(self, source: VideoSource, frames: _Frames) -> dict[str, Any]:
        """Write the frames of a video, and return its row in the list of videos."""
        checksum = source.checksum()
        with source.open() as file, closing(VideoFile.open(source.path, file)) as video:
            chosen = self.sampling.chosen(video.frames())
            first = next(chosen)
            sides = video.stream.height, video.stream.width
            size = self.encoding.dimensions(*(sides[::-1] if quarter_turns(first) % 2 else sides))
            encoded = encoded_frames(chain([first], chosen), self.encoding, *size)
            with closing(encoded):
                count = frames.add(source.video_id, encoded)
            facts = {**video.facts, "fps": self.sampling.fps, "every": self.sampling.every}
        return {
            "video_id": source.video_id,
            "key": source.key,
            "path": source.path,
            "checksum": checksum,
            "frames": count,
            "height": size[0],
            "width": size[1],
            "metadata": json.dumps({**facts, **json.loads(source.notes)}, ensure_ascii=False),
        }

    def holds(self, receipt: Receipt, run: str) -> bool:
        return self.table.holds(receipt, run)

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
        self.table.write_beside(name, pa.Table.from_pylist(rows, VIDEO_SCHEMA))
        named = schema.with_metadata({VIDEOS_KEY: name.encode()})
        self.table.commit(named, receipts, facts)


class _Frames:
    """Encoded frames on their way into fragments of about a size."""

    def __init__(self, table: LanceTable, fragment_bytes: int) -> None:
        self.receipt: Receipt = {"rows": 0, "fragments": []}
        self._table = table
        self._limit_bytes = fragment_bytes
        self._tables: list[pa.Table] = []
        self._held_bytes = 0

    def add(self, video_id: int, frames: Iterator[bytes]) -> int:
        """Take in the frames of a video, and return their number."""
        held: list[bytes] = []
        count = 0
        for data in frames:
            held.append(data)
            self._held_bytes += len(data)
            count += 1
            if self._held_bytes >= self._limit_bytes:
                self._hold(video_id, count, held)
                held = []
                self.flush()
        self._hold(video_id, count, held)
        return count

    def _hold(self, video_id: int, stop: int, frames: list[bytes]) -> None:
        columns = [
            pa.array([video_id] * len(frames), pa.int64()),
            pa.array(range(stop - len(frames), stop), pa.int32()),
            pa.array(frames, pa.large_binary()),
        ]
        self._tables.append(pa.table(columns, schema=FRAME_SCHEMA))

    def flush(self) -> None:
        """Write a fragment of what is held."""
        rows = pa.concat_tables(self._tables).combine_chunks() if self._tables else None
        self._tables, self._held_bytes = [], 0
        if rows is None or not rows.num_rows:
            return
        written = self._table.write(0, None, FRAME_SCHEMA, iter([rows]))
        self.receipt["rows"] += written["rows"]
        self.receipt["fragments"] += written["fragments"]
