"""``index_tars``: the indexes of many tars, each written whole or not at all.

Tars of this machine are scanned by processes, remote ones by threads. A run that was interrupted
goes on: a tar whose index says all that is asked for is left alone.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import IO, Literal

from headrace.errors import OptionError, ReadError, StaleIndexError, WorkerError, WriteError
from headrace.model import DataFileInfo
from headrace.sources.tar.captions import with_captions
from headrace.sources.tar.checks import check_end, check_index, verify_index
from headrace.sources.tar.index import COLUMNAR_ENDING, IndexFile, TarIndex, write_index
from headrace.sources.tar.index_cache import IndexCache
from headrace.sources.tar.index_files import (
    ENDINGS,
    index_lock,
    local_path,
    make_folder,
    path_below,
    read_index,
    refuse_other_file,
    remove_leftovers,
    write_index_as,
)
from headrace.sources.tar.locate import FoundTars, PathLike, Source, find_tars, stem_of
from headrace.sources.tar.opening import access_of
from headrace.sources.tar.places import file_of, places_of
from headrace.sources.tar.scan import Progress, scan_tar
from headrace.sources.tar.sidecars import TEXT_FIELDS
from headrace.storage import FileStatus, Options, Store, side_by_side

__all__ = ["IndexReport", "Indexed", "ReportProgress", "index_tars", "verify_tars", "work"]

logger = logging.getLogger(__name__)

ReportProgress = Callable[[str, float], None]
"""Is called with the name of a stage and the share of it that is done."""
Place = tuple[str, int]
"""A file, and the number of a tar in it."""

_STAGE = "indexing"
_REMOTE_THREADS = 8
_TARS_OF_A_PROCESS = 8
"""for fewer it does not pay to start one"""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The outcome for one tar.

    Attributes:
        name: The name of the tar, relative to the source.
        place: The file that holds its index, and the number of the tar in it.
        members: Number of members.
        last_good: The last whole member of a tar that breaks off.
        was_there: There was an index already that says all that was asked for.
    """

    name: str
    place: Place
    members: int
    last_good: str | None
    was_there: bool


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The outcome for all tars, in their order.

    Attributes:
        tars: Tars that have an index now.
        failed: What is wrong with tars that have none; without ``keep_going`` that is an error.
    """

    tars: Sequence[Indexed]
    failed: Sequence[str] = ()

    @property
    def members(self) -> int:
        """Number of members of all tars."""
        return sum(tar.members for tar in self.tars)

    @property
    def broken(self) -> Sequence[Indexed]:
        """Tars that break off, and are indexed as far as they go."""
        return [tar for tar in self.tars if tar.last_good is not None]


def index_tars(
    source: Source,
    out: PathLike | None = None,
    *,
    geometry: bool = False,
    sidecars: bool = True,
    hash: bool = False,
    format: Literal["arrow", "json"] = "arrow",
    one_file: PathLike | None = None,
    workers: int | None = None,
    checkpoint: PathLike | None = None,
    range: tuple[int, int] | None = None,
    keep_going: bool = False,
    force: bool = False,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> IndexReport:
    """Write the index of each tar of a source.

    A tar whose index says all that is asked for is left alone, so that a run that was interrupted
    goes on. Captions that were written into an index stay, as long as the members are the same.

    Args:
        source: Files, directories, globs, patterns, URLs or ``hf://`` paths.
        out: A folder for the indexes, which get the paths that their tars have below the source. If
            left out they go beside the tars; those of remote and read-only tars, and those that
            cannot be written there, into the cache.
        geometry: Look for width and height of images.
        sidecars: Embed what JSON and text files say of other members, captions among it.
        hash: Hash tars and members; all bytes are read.
        format: ``"arrow"``, or ``"json"`` for other tools.
        one_file: One columnar file for all tars.
        workers: Tars that are scanned at a time.
        checkpoint: A folder that remembers tars by their version as well.
        range: The first and the one behind the last of the sorted tars that are indexed; in
            ``one_file`` the others stay as they are.
        keep_going: Note a tar that cannot be indexed in the report, and index one that breaks off
            as far as it goes.
        force: Index anew what has an index.
        storage_options: Options of the store.
        progress: Is called while tars are scanned.

    Raises:
        ReadError: A tar cannot be indexed. The indexes of other tars stay.
        OptionError: An option makes no sense, or another file is where an index would be.
    """
    if format not in ENDINGS:
        raise OptionError(f"format must be one of {', '.join(ENDINGS)}, not {format!r}")
    if out is not None and one_file is not None:
        raise OptionError("out is a folder for an index of each tar, one_file is one for all")
    found = find_tars(source, access_of(storage_options))
    chosen = _chosen(list(zip(found.tars, found.names, strict=True)), range)
    scope = _Scope(geometry, sidecars, hash, keep_going, force)
    kept = None if checkpoint is None else local_path("checkpoint", checkpoint)
    if one_file is not None:
        whole = _OneFile.at(local_path("one_file", one_file))
        parts = kept or f"{whole.path}.parts"
        jobs = [
            _Job(
                found.store,
                file_of(tar),
                name,
                scope,
                _part(parts, found.store, tar),
                earlier=whole.place(name),
            )
            for tar, name in chosen
        ]
        report = _run(jobs, workers, progress)
        whole.write(found.names, {name for _, name in chosen}, report.tars)
        if kept is None:
            _remove_parts(parts, jobs)
        return report
    _refuse_equal_stems(tar.path for tar, _ in chosen)
    folder = None if out is None else local_path("out", out)
    jobs = [
        _Job(
            found.store,
            file_of(tar),
            name,
            scope,
            _target(found, tar, name, folder, ENDINGS[format]),
            None if kept is None else _part(kept, found.store, tar),
            spare=_cached(found, tar) if folder is None and format == "arrow" else None,
        )
        for tar, name in chosen
    ]
    return _run(jobs, workers, progress)


# --- which tars, and where their indexes go


def _chosen(
    tars: list[tuple[FileStatus, str]], range: tuple[int, int] | None
) -> list[tuple[FileStatus, str]]:
    if range is None:
        return tars
    start, stop = range
    if not 0 <= start < stop:
        raise OptionError(f"range must be two numbers a < b from 0 on, not {start},{stop}")
    if start >= len(tars):
        raise OptionError(f"range begins at tar {start}, but there are only {len(tars)}")
    return tars[start:stop]


def _target(found: FoundTars, tar: FileStatus, name: str, folder: str | None, ending: str) -> str:
    if folder is not None:
        return stem_of(path_below(folder, name)) + ending
    if found.store.local and os.access(os.path.dirname(tar.path), os.W_OK):
        return stem_of(tar.path) + ending
    cached = _cached(found, tar)
    if cached is None or ending != COLUMNAR_ENDING:
        raise OptionError(
            f"there is no place for an index beside {tar.path}; name a folder for the indexes "
            "(out, --out), and give it as metadata= when the tars are read"
        )
    return cached


def _cached(found: FoundTars, tar: FileStatus) -> str | None:
    return IndexCache.within(None).index_path(found.store, file_of(tar))


def _part(folder: str, store: Store, tar: FileStatus) -> str:
    """Return the path that the index of this version of a tar has in a folder of many."""
    version = repr((store.identity, tar.path, tar.size, tar.etag))
    return os.path.join(folder, sha256(version.encode()).hexdigest() + COLUMNAR_ENDING)


def _remove_parts(folder: str, jobs: Sequence[_Job]) -> None:
    """Remove the files of this run; another run may be using the folder."""
    for job in jobs:
        with suppress(FileNotFoundError):
            os.unlink(job.target)
    with suppress(OSError):
        os.rmdir(folder)


def _refuse_equal_stems(tars: Iterable[str]) -> None:
    """Refuse tars that differ in the case of their ending, and would have the same index."""
    known: dict[str, str] = {}
    for path in tars:
        other = known.setdefault(stem_of(path), path)
        if other != path:
            raise OptionError(
                f"{other} and {path} would have the same index; rename one of them, or index them "
                "one by one into folders of their own (out, --out)"
            )


# --- one tar


@dataclass(frozen=True, slots=True)
class _Scope:
    """How much of a tar is indexed."""

    geometry: bool
    sidecars: bool
    hash: bool
    keep_going: bool
    force: bool

    def is_met_by(self, index: TarIndex) -> bool:
        facts = index.facts
        embeddable = {"json", *TEXT_FIELDS}.intersection(index.grouping.field_names)
        return not (
            self.force
            or facts.size is None
            or (facts.last_good is not None and not self.keep_going)
            or (self.geometry and not facts.has_geometry)
            or (self.hash and facts.hash_lfs is None)
            or (self.sidecars and embeddable and not facts.has_sidecars)
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """A tar that is to have an index. Pickles, so that another process may run it.

    Attributes:
        store: The store of the tar.
        file: The tar.
        name: Its name, relative to the source.
        scope: How much is indexed.
        target: The file for the index.
        kept: A second file for it, which remembers this version of the tar.
        earlier: A file of many tars that has an index of this one.
        spare: The file for it in the cache, if the target cannot be written.
    """

    store: Store
    file: DataFileInfo
    name: str
    scope: _Scope
    target: str
    kept: str | None = None
    earlier: Place | None = None
    spare: str | None = None

    def run(self, progress: Progress | None = None) -> Indexed:
        """Write the index, unless there is one. A file that is no index is never written over."""
        refuse_other_file(self.target)
        remove_leftovers(self.target)
        found = [(place, index) for place, index in self._found() if self._is_current(place, index)]
        good = [(place, index) for place, index in found if self.scope.is_met_by(index)]
        for place, index in good:
            if place[0] in (self.target, self.earlier and self.earlier[0]):
                return self._done(place, index, was_there=True)
        index = good[0][1] if good else self._scanned(progress)
        try:
            target, index = self.target, self._written(self.target, index)
        except WriteError as error:  # a disk that is full or read-only, or a name that is too long
            if self.spare in (None, self.target) or os.path.lexists(self.target):
                raise
            assert self.spare is not None
            logger.warning("%s. The index goes into the cache folder: %s", error, self.spare)
            target, index = self.spare, self._written(self.spare, index)
        if self.kept is not None:
            make_folder(self.kept)
            write_index(self.kept, [(self.name, index)])
        return self._done((target, 0), index, was_there=False)

    def _written(self, path: str, index: TarIndex) -> TarIndex:
        """Write the index, with captions that a user wrote into earlier ones, and return it."""
        make_folder(path)
        with index_lock(path):
            for _, earlier in self._found():  # captions may have been written meanwhile
                index = _with_written_captions(index, earlier)
            write_index_as(path, [(self.name, index)])
        return index

    def _done(self, place: Place, index: TarIndex, *, was_there: bool) -> Indexed:
        return Indexed(self.name, place, len(index), index.facts.last_good, was_there)

    def _found(self) -> Iterator[tuple[Place, TarIndex]]:
        """Yield indexes that are there, whatever they are of: the target, and those beside it."""
        stem = self.target.removesuffix(COLUMNAR_ENDING).removesuffix(ENDINGS["json"])
        places = [(self.target, 0), *((stem + ending, 0) for ending in ENDINGS.values())]
        places += [] if self.earlier is None else [self.earlier]
        places += [(path, 0) for path in (self.kept, self.spare) if path is not None]
        for path, number in dict.fromkeys(places):
            with suppress(FileNotFoundError, NotADirectoryError, StaleIndexError):
                is_columnar = path.endswith(".arrow")
                index = IndexFile.open(path).index(number) if is_columnar else read_index(path)
                yield (path, number), index

    def _is_current(self, place: Place, index: TarIndex) -> bool:
        """Return True if an index is that of the tar as it is now."""
        try:
            check_index(index, self.file.file_size, self.file.path)
            if index.facts.etag is not None and self.file.etag is not None:
                return index.facts.etag == self.file.etag
            check_end(self.store, self.file, index)
        except ReadError:
            return False
        return not self.store.local or _time_of(self.file.path) <= _time_of(place[0])

    def _scanned(self, progress: Progress | None) -> TarIndex:
        scope = self.scope
        return scan_tar(
            self.store,
            self.file,
            geometry=scope.geometry,
            sidecars=scope.sidecars,
            hash=scope.hash,
            keep_going=scope.keep_going,
            progress=progress,
        )


def _with_written_captions(index: TarIndex, earlier: TarIndex) -> TarIndex:
    """Return an index with the captions that a user wrote into an earlier one of the tar."""
    if earlier.captions is None or not earlier.facts.captions_written:
        return index
    texts = dict(zip(_places(earlier), earlier.captions.to_pylist(), strict=True))
    found = {member: texts.get(place) for member, place in enumerate(_places(index))}
    written = {member: text for member, text in found.items() if text is not None}
    return with_captions(index, written) if written else index


def _places(index: TarIndex) -> Iterator[tuple[str, int, int]]:
    names: list[str] = index.names.to_pylist()
    return zip(names, index.offsets.tolist(), index.sizes.tolist(), strict=True)


def _time_of(path: str) -> int:
    return os.stat(path).st_mtime_ns


# --- one file for all


@dataclass(frozen=True, slots=True)
class _OneFile:
    """A columnar file of many tars, and the tars that it had when the run began."""

    path: str
    tars: Sequence[str]

    @classmethod
    def at(cls, path: str) -> _OneFile:
        if not path.endswith(".arrow"):
            raise OptionError(f"one_file is a columnar index, called *.arrow, and not {path!r}")
        refuse_other_file(path)
        return cls(path, [*_read_all(path)])

    def place(self, name: str) -> Place | None:
        """Return where the index of a tar is in it."""
        return (self.path, self.tars.index(name)) if name in self.tars else None

    def write(self, names: Sequence[str], chosen: set[str], done: Sequence[Indexed]) -> None:
        """Put new indexes into it, and keep those of the other tars of the source."""
        new: dict[str, TarIndex] = {}
        for tar in done:
            if tar.place[0] != self.path:
                with suppress(FileNotFoundError):  # another run has put it into the file already
                    new[tar.name] = read_index(tar.place[0])
        stay = {*names} - (chosen - {tar.name for tar in done})
        make_folder(self.path)
        with index_lock(self.path):
            now = _read_all(self.path)  # other runs may have written to it
            tars: list[tuple[str, TarIndex]] = []
            for name in names:
                if name in new:
                    earlier = now.get(name)
                    index = new[name]
                    tars.append(
                        (name, index if earlier is None else _with_written_captions(index, earlier))
                    )
                elif name in stay and name in now:
                    tars.append((name, now[name]))
            write_index(self.path, tars)


def _read_all(path: str) -> dict[str, TarIndex]:
    """Return the indexes of a file by the names of their tars; none if it cannot be read."""
    try:
        opened = IndexFile.open(path)
        return {tar: opened.index(number) for number, tar in enumerate(opened.tars)}
    except (FileNotFoundError, StaleIndexError):
        return {}


# --- many at a time


def _run(jobs: Sequence[_Job], workers: int | None, progress: ReportProgress | None) -> IndexReport:
    share = _Share(jobs, progress)
    done: list[Indexed] = []
    failed: list[str] = []
    with _runner(jobs, _at_a_time(jobs, workers), share) as outcomes:
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Indexed):
                done.append(outcome)
            elif job.scope.keep_going and isinstance(outcome, ReadError):
                failed.append(str(outcome))
            else:
                raise outcome
            share.add(job.file.path, job.file.file_size or 0)
    return IndexReport(done, failed)


def _at_a_time(jobs: Sequence[_Job], workers: int | None) -> int:
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise OptionError(f"workers must be at least 1, not {workers!r}")
    if workers is not None:
        return min(workers, len(jobs))
    if not jobs[0].store.local:
        return min(_REMOTE_THREADS, len(jobs))
    return min(os.cpu_count() or 1, max(len(jobs) // _TARS_OF_A_PROCESS, 1))


@contextmanager
def _runner(
    jobs: Sequence[_Job], at_a_time: int, share: _Share
) -> Iterator[Iterator[Indexed | Exception]]:
    """Yield the outcomes of jobs in order; jobs that have not begun at an error never do."""
    if at_a_time == 1:
        yield (_outcome(share.run, job) for job in jobs)
    elif not jobs[0].store.local:
        yield side_by_side(partial(_outcome, share.run), jobs, threads=at_a_time)
    else:  # reading headers is Python's work, of which threads of a process do one at a time
        with _Workers(at_a_time) as workers:
            yield side_by_side(partial(_outcome, workers.run), jobs, threads=at_a_time)


def _outcome(run: Callable[[_Job], Indexed], job: _Job) -> Indexed | Exception:
    try:
        return run(job)
    except Exception as error:
        return error


class _Workers:
    """Processes that index tars, each with a pipe for jobs and one for outcomes.

    A worker ends when its pipe of jobs does: with this process, however that ends.
    """

    def __init__(self, count: int) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        path = os.pathsep.join(filter(None, sys.path))
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": path},
            )
            for _ in range(count)
        ]
        for process in self._processes:
            self._idle.put(process)

    def run(self, job: _Job) -> Indexed:
        process = self._idle.get()
        try:
            jobs, outcomes = process.stdin, process.stdout
            assert jobs is not None
            assert outcomes is not None
            pickle.dump(job, jobs)
            jobs.flush()
            outcome = pickle.load(outcomes)
        except (EOFError, OSError, pickle.UnpicklingError) as ended:
            raise WorkerError(
                f"a process that indexes tars was killed at {job.file.path} (for want of memory?); "
                "what is done stays: run it again, or with fewer workers"
            ) from ended
        finally:
            self._idle.put(process)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Indexed)
        return outcome

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


def work() -> None:
    """Index tars whose jobs come by stdin, and end with the process that sends them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints does not print into the outcomes
    jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, jobs), daemon=True).start()
    while True:
        pickle.dump(_outcome(_Job.run, jobs.get()), outcomes)
        outcomes.flush()


def _receive(stream: IO[bytes], jobs: queue.SimpleQueue[_Job]) -> None:
    try:
        while True:
            jobs.put(pickle.load(stream))
    except EOFError:
        os._exit(0)


class _Share:
    """How much of all tars is done."""

    def __init__(self, jobs: Sequence[_Job], report: ReportProgress | None) -> None:
        self._report = report
        self._total = max(sum(job.file.file_size or 0 for job in jobs), 1)
        self._bytes = dict.fromkeys((job.file.path for job in jobs), 0)
        self._lock = threading.Lock()
        if report is not None:
            report(_STAGE, 0.0)

    def run(self, job: _Job) -> Indexed:
        """Run a job in this process and report while it runs."""
        return job.run(partial(self.add, job.file.path))

    def add(self, path: str, done: int) -> None:
        if self._report is not None:
            with self._lock:
                self._bytes[path] = done
                self._report(_STAGE, min(sum(self._bytes.values()) / self._total, 1.0))


# --- verification


def verify_tars(
    source: Source,
    metadata: Source | None = None,
    *,
    hash: bool = True,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Sequence[str]]:
    """Return what is wrong with the index of each tar, by the names of tars.

    The headers of all members are read, and all bytes of tars whose index has hashes.
    """
    access = access_of(storage_options)
    found = find_tars(source, access)
    places = places_of(found, metadata, access)
    problems: dict[str, Sequence[str]] = {}
    tars = zip(found.tars, found.names, places, strict=True)
    for number, (tar, name, place) in enumerate(tars):
        if progress is not None:
            progress("verifying", number / len(found.tars))
        try:
            if place is None:
                raise ReadError(f"{tar.path} has no index; make one with: headrace index")
            problems[name] = verify_index(found.store, file_of(tar), place.read(), hash=hash)
        except ReadError as error:
            problems[name] = [str(error)]
    if progress is not None:
        progress("verifying", 1.0)
    return problems
