"""``index_tars``: the indexes of many tars, each written whole or not at all.

Local tars are scanned by processes, remote ones by threads. A run that was interrupted goes on: a
tar whose index says all that is asked for is left alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Literal

from headrace.errors import OptionError, ReadError, StaleIndexError
from headrace.model import DataFileInfo
from headrace.process import usable_cores
from headrace.sources.tar._captions import with_captions
from headrace.sources.tar._index_cache import IndexCache
from headrace.sources.tar._locate import FoundTars, PathLike, TarLocation, find_tars, stem_of
from headrace.sources.tar._opening import access_of
from headrace.sources.tar._places import file_of, places_of
from headrace.sources.tar.checks import check_end, check_index, verify_index
from headrace.sources.tar.index import COLUMNAR_ENDING, IndexFile, TarIndex, write_index
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
from headrace.sources.tar.scan import ScanProgress, scan_tar
from headrace.sources.tar.sidecars import TEXT_FIELDS
from headrace.storage import (
    FileStatus,
    Options,
    Store,
    check_on,
    run_by_processes,
    run_on_ray,
    side_by_side,
)

__all__ = ["IndexReport", "Indexed", "ReportProgress", "index_tars", "verify_tars"]

ReportProgress = Callable[[str, float], None]
"""Is called with the name of a stage and the share of it that is done."""

_STAGE = "indexing"
_REMOTE_THREADS = 8
_TARS_OF_A_PROCESS = 8
"""for fewer it does not pay to start one"""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The outcome for one tar.

    Attributes:
        name: The name of the tar, relative to the source.
        members: Number of members.
        last_good: The last whole member of a tar that breaks off.
        was_there: There was an index already that says all that was asked for.
    """

    name: str
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
    source: TarLocation,
    out: PathLike | None = None,
    *,
    geometry: bool = False,
    sidecars: bool = True,
    hash: bool = False,
    format: Literal["arrow", "json"] = "arrow",
    one_file: PathLike | None = None,
    workers: int | None = None,
    range: tuple[int, int] | None = None,
    keep_going: bool = False,
    force: bool = False,
    on: str | None = None,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> IndexReport:
    """Write the index of each tar of a source.

    A tar whose index says all that is asked for is left alone, so that a run that was interrupted
    goes on. Captions that were written into an index stay, as long as the members are the same.

    Args:
        source: Files, directories, globs, patterns, URLs or ``hf://`` paths.
        out: A folder for the indexes, which get the paths that their tars have below the source. If
            left out they go beside the tars; those of remote and read-only tars into the cache.
        geometry: Look for width and height of images.
        sidecars: Embed what JSON and text files say of other members, captions among it.
        hash: Hash tars and members; all bytes are read.
        format: ``"arrow"``, or ``"json"`` for other tools.
        one_file: One columnar file for all tars.
        workers: Tars that are scanned at a time.
        range: The first and the one behind the last of the sorted tars that are indexed; in
            ``one_file`` the others stay as they are.
        keep_going: Note a tar that cannot be indexed in the report, and index one that breaks off
            as far as it goes.
        force: Index anew what has an index.
        on: ``"ray"`` to scan tars on a Ray cluster, whose nodes reach the tars and the folder of
            the indexes.
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
    check_on(on)
    found = find_tars(source, access_of(storage_options))
    if on is not None and not found.store.local and out is None and one_file is None:
        raise OptionError(
            f'with on="{on}" the indexes of remote tars need a folder that all nodes reach: give '
            "out= or one_file="
        )
    chosen = _chosen(list(zip(found.tars, found.names, strict=True)), range)
    scope = _Scope(geometry, sidecars, hash, keep_going, force)
    if one_file is not None:
        path = local_path("one_file", one_file)
        return _index_into_one_file(path, found, chosen, scope, workers, on, progress)
    _refuse_equal_stems(tar.path for tar, _ in chosen)
    folder = None if out is None else local_path("out", out)
    jobs = [
        _Job(
            found.store,
            file_of(tar),
            name,
            scope,
            _target(found, tar, name, folder, ENDINGS[format]),
        )
        for tar, name in chosen
    ]
    return _run(jobs, workers, on, progress)


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
    cached = IndexCache.within(None).index_path(found.store, file_of(tar))
    if cached is None or ending != COLUMNAR_ENDING:
        raise OptionError(
            f"there is no place for an index beside {tar.path}; name a folder for the indexes "
            "(out, --out), and give it as metadata= when the tars are read"
        )
    return cached


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
    """

    store: Store
    file: DataFileInfo
    name: str
    scope: _Scope
    target: str

    def __str__(self) -> str:
        return self.file.path

    def run(self, progress: ScanProgress | None = None) -> Indexed:
        """Write the index, unless there is one. A file that is no index is never written over."""
        refuse_other_file(self.target)
        remove_leftovers(self.target)
        index: TarIndex | None = None
        for path, found in self._found():
            if self.is_met_by(found, path):
                if path == self.target:
                    return self.done(found, was_there=True)
                index = found
        if index is None:
            index = self._scanned(progress)
        make_folder(self.target)
        with index_lock(self.target):
            for _, earlier in self._found():  # captions may have been written meanwhile
                index = _with_written_captions(index, earlier)
            write_index_as(self.target, [(self.name, index)])
        return self.done(index, was_there=False)

    def done(self, index: TarIndex, *, was_there: bool) -> Indexed:
        """Return the outcome."""
        return Indexed(self.name, len(index), index.facts.last_good, was_there)

    def _found(self) -> Iterator[tuple[str, TarIndex]]:
        """Yield the indexes that there are, of any state of the tar."""
        stem = self.target.removesuffix(COLUMNAR_ENDING).removesuffix(ENDINGS["json"])
        beside = (stem + ending for ending in ENDINGS.values())
        for path in dict.fromkeys([self.target, *beside]):
            with suppress(FileNotFoundError, NotADirectoryError, StaleIndexError):
                yield path, read_index(path)

    def is_met_by(self, index: TarIndex, path: str) -> bool:
        """Return True if the index in a file is that of the tar, and says all that is wanted."""
        return self._is_current(path, index) and self.scope.is_met_by(index)

    def _is_current(self, path: str, index: TarIndex) -> bool:
        """Return True if an index is that of the tar as it is now."""
        try:
            check_index(index, self.file.file_size, self.file.path)
            if index.facts.etag is not None and self.file.etag is not None:
                return index.facts.etag == self.file.etag
            check_end(self.store, self.file, index)
        except ReadError:
            return False
        return not self.store.local or _time_of(self.file.path) <= _time_of(path)

    def _scanned(self, progress: ScanProgress | None) -> TarIndex:
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
    """Return an index with the captions of an earlier one.

    These are captions that a user wrote, or any captions of this version of the tar: those of
    another version may have come from sidecars that have changed.
    """
    is_same = earlier.facts.etag is not None and earlier.facts.etag == index.facts.etag
    if earlier.captions is None or not (earlier.facts.captions_written or is_same):
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


def _index_into_one_file(
    path: str,
    found: FoundTars,
    chosen: Sequence[tuple[FileStatus, str]],
    scope: _Scope,
    workers: int | None,
    on: str | None,
    progress: ReportProgress | None,
) -> IndexReport:
    """Index tars into files of their own first, so that an interrupted run can go on."""
    if not path.endswith(".arrow"):
        raise OptionError(f"one_file is a columnar index, called *.arrow, and not {path!r}")
    refuse_other_file(path)
    parts = f"{path}.parts"
    jobs: list[_Job] = []
    done: dict[str, Indexed] = {}
    there = _read_all(path)
    for tar, name in chosen:
        job = _Job(found.store, file_of(tar), name, scope, _part(parts, found.store, tar))
        if name in there and job.is_met_by(there[name], path):
            done[name] = job.done(there[name], was_there=True)
        else:
            jobs.append(job)
    report = _run(jobs, workers, on, progress)
    done |= {tar.name: tar for tar in report.tars}
    new: dict[str, TarIndex] = {}
    for job in jobs:
        with suppress(FileNotFoundError):  # it failed, or another run has put it into the file
            new[job.name] = read_index(job.target)
    failed = {name for _, name in chosen} - done.keys()
    make_folder(path)
    with index_lock(path):
        now = _read_all(path)  # other runs may have written to it
        for name, index in new.items():
            now[name] = _with_written_captions(index, now[name]) if name in now else index
        names = [name for name in found.names if name in now and name not in failed]
        write_index(path, [(name, now[name]) for name in names])
    _remove_parts(parts, jobs)
    return IndexReport([done[name] for _, name in chosen if name in done], report.failed)


def _read_all(path: str) -> dict[str, TarIndex]:
    """Return the indexes of a file by the names of their tars; none if it cannot be read."""
    try:
        opened = IndexFile.open(path)
        return {tar: opened.index(number) for number, tar in enumerate(opened.tars)}
    except (FileNotFoundError, StaleIndexError):
        return {}


# --- many at a time


def _run(
    jobs: Sequence[_Job], workers: int | None, on: str | None, progress: ReportProgress | None
) -> IndexReport:
    if not jobs:
        return IndexReport([])
    share = _Share(jobs, progress)
    done: dict[str, Indexed] = {}
    failed: dict[str, str] = {}
    outcomes = _outcomes(jobs, _at_a_time(jobs, workers), share.advance)
    if on is not None:
        outcomes = run_on_ray(_outcome, jobs, workers)
    for job, outcome in outcomes:
        if isinstance(outcome, Indexed):
            done[job.name] = outcome
        elif job.scope.keep_going and isinstance(outcome, ReadError):
            failed[job.name] = str(outcome)
        else:
            raise outcome
        share.advance(job, job.file.file_size or 0)
    names = [job.name for job in jobs]
    return IndexReport(
        [done[name] for name in names if name in done],
        [failed[name] for name in names if name in failed],
    )


def _at_a_time(jobs: Sequence[_Job], workers: int | None) -> int:
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise OptionError(f"workers must be at least 1, not {workers!r}")
    if workers is not None:
        return min(workers, len(jobs))
    if not jobs[0].store.local:
        return min(_REMOTE_THREADS, len(jobs))
    return min(usable_cores(), max(len(jobs) // _TARS_OF_A_PROCESS, 1))


def _outcomes(
    jobs: Sequence[_Job], at_a_time: int, advance: Callable[[_Job, int], None]
) -> Iterator[tuple[_Job, Indexed | Exception]]:
    """Yield jobs and their outcomes, in order; jobs that have not begun at an error never do."""

    def outcome(job: _Job) -> Indexed | Exception:
        return _outcome(job, partial(advance, job))

    if at_a_time == 1:
        return zip(jobs, map(outcome, jobs), strict=True)
    if not jobs[0].store.local:
        return zip(jobs, side_by_side(outcome, jobs, threads=at_a_time), strict=True)
    # Reading headers is Python's work, of which threads of a process do one at a time.
    return _in_order(jobs, run_by_processes(_outcome, jobs, at_a_time, advance))


def _in_order(
    jobs: Sequence[_Job], outcomes: Iterator[tuple[_Job, Indexed | Exception]]
) -> Iterator[tuple[_Job, Indexed | Exception]]:
    known: dict[str, Indexed | Exception] = {}
    for job in jobs:
        while job.name not in known:
            done, outcome = next(outcomes)
            known[done.name] = outcome
        yield job, known[job.name]


def _outcome(job: _Job, progress: ScanProgress) -> Indexed | Exception:
    try:
        return job.run(progress)
    except Exception as error:
        return error


class _Share:
    """How much of all tars is done."""

    def __init__(self, jobs: Sequence[_Job], report: ReportProgress | None) -> None:
        self._report = report
        self._total = max(sum(job.file.file_size or 0 for job in jobs), 1)
        self._bytes = dict.fromkeys((job.file.path for job in jobs), 0)
        self._lock = threading.Lock()
        if report is not None:
            report(_STAGE, 0.0)

    def advance(self, job: _Job, done: int) -> None:
        """Note how many bytes of a tar are done, and report."""
        if self._report is not None:
            with self._lock:
                self._bytes[job.file.path] = done
                self._report(_STAGE, min(sum(self._bytes.values()) / self._total, 1.0))


# --- verification


def verify_tars(
    source: TarLocation,
    metadata: TarLocation | None = None,
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
