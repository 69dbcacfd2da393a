"""Indices of many tars: found, scanned several at a time, each written whole or not at all."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Literal

from headrace.errors import OptionError, ReadError, WorkerError
from headrace.sources.tar.finding import FoundTars, Source, find_tars, stem_of
from headrace.sources.tar.index_jobs import Indexed, IndexJob, Place, Scope, kept_name
from headrace.sources.tar.index_places import file_of
from headrace.sources.tar.one_file import OneFile
from headrace.sources.tar.opening import access_of
from headrace.sources.tar.own_files import place_below
from headrace.storage import FileStatus, Options, side_by_side
from headrace.storage.access import protocol_of

__all__ = ["ENDINGS", "IndexReport", "PathLike", "ReportProgress", "index_tars", "local_path"]

ENDINGS = {"json": ".json", "arrow": ".idx.arrow"}
ReportProgress = Callable[[str, float], None]
PathLike = str | os.PathLike[str]

_STAGE = "indexing"
_AT_A_TIME_ELSEWHERE = 8
_TARS_OF_A_PROCESS = 8
"""for fewer it does not pay to start one"""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was indexed, in the order of the tars."""

    tars: Sequence[Indexed]
    failed: Sequence[str] = ()
    """what is wrong with tars that have no index; without ``keep_going`` that is an error"""

    @property
    def members(self) -> int:
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
    format: Literal["json", "arrow"] = "json",
    one_file: PathLike | None = None,
    workers: int | None = None,
    checkpoint: PathLike | None = None,
    range: tuple[int, int] | None = None,
    keep_going: bool = False,
    force: bool = False,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> IndexReport:
    """Write the index of each tar of a source: files, directories, globs, URLs or hf:// paths.

    An index goes beside its tar, or into the folder ``out`` under the path that its tar has below
    the source; ``one_file`` is a columnar index of them all. What has an index that says all that
    is asked for is left as it is, so that a run that was interrupted goes on; ``checkpoint`` is a
    folder that remembers tars by their content as well. ``range`` takes some of the sorted tars;
    what ``one_file`` says of the others stays. With ``force`` all are made anew. Captions that were
    written into an index, and what else it says that no scan finds, stay as long as the tar has the
    same members. An index in the other form that is not that of the tar any more is renewed too.

    A tar that cannot be indexed is an error, or with ``keep_going`` noted in the report, and one
    that breaks off is indexed as far as it goes. ``workers`` tars are scanned at a time: by
    processes on this machine, by threads elsewhere.
    """
    if format not in ENDINGS:
        raise OptionError(f"format must be one of {', '.join(ENDINGS)}, not {format!r}")
    if out is not None and one_file is not None:
        raise OptionError("out is a folder for an index of each tar, one_file is one for all")
    found = find_tars(source, access_of(storage_options))
    chosen = _chosen(list(zip(found.tars, found.names, strict=True)), range)
    scope = Scope(geometry, sidecars, hash, keep_going, force)
    kept = None if checkpoint is None else local_path("checkpoint", checkpoint)
    _refuse_equal_stems(tar.path for tar, _ in chosen)
    if one_file is None:
        target = partial(_target, _folder(found, out), ENDINGS[format])
        jobs = [_job(found, tar, name, scope, target(tar, name), kept) for tar, name in chosen]
        return _run(jobs, workers, progress)
    whole = OneFile.at(local_path("one_file", one_file))
    with whole.parts(kept) as parts:
        jobs = [
            _job(found, tar, name, scope, None, parts, whole.earlier(name)) for tar, name in chosen
        ]
        report = _run(jobs, workers, progress)
        whole.write(found.names, {name for _, name in chosen}, report.tars)
    return report


def local_path(what: str, path: PathLike) -> str:
    """The path of something that is written, which is on this machine."""
    text = os.fspath(path)
    if protocol_of(text):
        raise OptionError(
            f"{what} must be a path on this machine, not {text!r}; copy it from there"
        )
    return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))


# --- which tars, and where their indices go


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


def _folder(found: FoundTars, out: PathLike | None) -> str | None:
    if out is not None:
        return local_path("out", out)
    if not found.store.local:
        raise OptionError(
            f"{found.tars[0].path} is not on this machine; name a folder for the indices (out, "
            "--out), and give it as metadata= when the tars are read"
        )
    return None


def _target(folder: str | None, ending: str, tar: FileStatus, name: str) -> str:
    return stem_of(tar.path if folder is None else place_below(folder, name)) + ending


def _job(
    found: FoundTars,
    tar: FileStatus,
    name: str,
    scope: Scope,
    target: str | None,
    kept: str | None,
    earlier: tuple[Place, ...] = (),
) -> IndexJob:
    file = file_of(tar)
    aside = None if kept is None else os.path.join(kept, kept_name(found.store, file, scope))
    return IndexJob(found.store, file, name, scope, target, aside, earlier)


def _refuse_equal_stems(tars: Iterable[str]) -> None:
    """Tars that differ in the case of their ending would have one and the same index."""
    known: dict[str, str] = {}
    for path in tars:
        other = known.setdefault(stem_of(path), path)
        if other != path:
            raise OptionError(
                f"{other} and {path} would have the same index; rename one of them, or index them "
                "one by one into folders of their own (out, --out)"
            )


# --- doing it


def _run(
    jobs: Sequence[IndexJob], workers: int | None, progress: ReportProgress | None
) -> IndexReport:
    share = _Share(jobs, progress)
    done: list[Indexed] = []
    failed: list[str] = []
    for job, result in zip(jobs, _results(jobs, _at_a_time(jobs, workers), share), strict=True):
        try:
            done.append(result())
        except BrokenProcessPool as killed:
            raise WorkerError(
                f"a process that indexes tars was killed, at {job.file.path} or one of the next "
                f"(for want of memory?): {killed} What is done stays; run it again, or with fewer "
                "workers"
            ) from killed
        except ReadError as error:
            if not job.scope.keep_going:
                raise
            failed.append(str(error))
            share.add(job.file.path, job.file.file_size or 0)
    return IndexReport(done, failed)


def _at_a_time(jobs: Sequence[IndexJob], workers: int | None) -> int:
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise OptionError(f"workers must be at least 1, not {workers!r}")
    if workers is not None:
        return min(workers, len(jobs))
    if not jobs[0].store.local:
        return min(_AT_A_TIME_ELSEWHERE, len(jobs))
    return min(os.cpu_count() or 1, max(len(jobs) // _TARS_OF_A_PROCESS, 1))


def _results(
    jobs: Sequence[IndexJob], at_a_time: int, share: _Share
) -> Iterator[Callable[[], Indexed]]:
    """What each job gives, in order, when it is called; what is not begun by then never is."""
    if at_a_time == 1:
        return (partial(share.of, job) for job in jobs)
    # Reading headers is Python's work, of which threads of one process do no two at a time.
    by_several = _by_processes if jobs[0].store.local else _by_threads
    return by_several(jobs, at_a_time, share)


def _by_processes(
    jobs: Sequence[IndexJob], at_a_time: int, share: _Share
) -> Iterator[Callable[[], Indexed]]:
    pool = ProcessPoolExecutor(at_a_time, initializer=_end_silently)
    try:
        futures = [pool.submit(job.run) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            future.add_done_callback(partial(share.whole, job))
        yield from (future.result for future in futures)
    finally:
        pool.shutdown(cancel_futures=True)


def _by_threads(
    jobs: Sequence[IndexJob], at_a_time: int, share: _Share
) -> Iterator[Callable[[], Indexed]]:
    """After an error what has begun, and writes, is waited for; after an interrupt nothing is."""
    at_work: set[threading.Thread] = set()

    def attempt(job: IndexJob) -> Callable[[], Indexed]:
        at_work.add(thread := threading.current_thread())
        try:
            return partial(_given, share.of(job))
        except ReadError as error:
            return partial(_given, error)
        finally:
            at_work.discard(thread)

    try:
        yield from side_by_side(attempt, jobs, threads=at_a_time)
    except KeyboardInterrupt:
        raise
    except BaseException:
        for thread in list(at_work):
            thread.join()
        raise


def _given(outcome: Indexed | ReadError) -> Indexed:
    if isinstance(outcome, ReadError):
        raise outcome
    return outcome


def _end_silently() -> None:
    """A worker that is interrupted ends: who started it says so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class _Share:
    """How much of all tars is behind us."""

    def __init__(self, jobs: Sequence[IndexJob], report: ReportProgress | None) -> None:
        self._report = report
        self._total = max(sum(job.file.file_size or 0 for job in jobs), 1)
        self._bytes = dict.fromkeys((job.file.path for job in jobs), 0)
        self._lock = threading.Lock()
        if report is not None:
            report(_STAGE, 0.0)

    def of(self, job: IndexJob) -> Indexed:
        """Run a job and tell how far it is."""
        done = job.run(partial(self.add, job.file.path))
        self.whole(job)
        return done

    def whole(self, job: IndexJob, future: Future[Indexed] | None = None) -> None:
        if future is None or not future.cancelled():
            self.add(job.file.path, job.file.file_size or 0)

    def add(self, path: str, behind: int) -> None:
        if self._report is not None:
            with self._lock:
                self._bytes[path] = behind
                self._report(_STAGE, min(sum(self._bytes.values()) / self._total, 1.0))
