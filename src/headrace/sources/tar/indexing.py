"""``index_tars``: index many tars; each index is written completely or not at all.

Local tars are scanned by processes, remote ones by threads. An interrupted run can be continued: a
tar whose index has everything that is requested is skipped.
"""

from __future__ import annotations

import logging
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, get_args

from headrace.errors import (
    NothingFoundError,
    OptionError,
    ReadError,
    StaleIndexError,
)
from headrace.model import DataFileInfo
from headrace.options import whole_number
from headrace.process import usable_cores
from headrace.sources.tar._locate import (
    FoundTars,
    IndexCache,
    IndexPlace,
    PathLike,
    TarLocation,
    access_of,
    find_tars,
    listed,
    names_of,
    places_of,
    stem_of,
    version_digest,
)
from headrace.sources.tar.checks import check_end, check_index, verify_index
from headrace.sources.tar.grouping import DotRule
from headrace.sources.tar.index import (
    COLUMNAR_ENDING,
    INDEX_MARK,
    IndexFile,
    TarIndex,
    write_index,
    writing,
)
from headrace.sources.tar.index_files import (
    ENDINGS,
    file_content,
    index_lock,
    read_index,
    with_captions,
    write_index_as,
)
from headrace.sources.tar.scan import scan_tar
from headrace.sources.tar.sidecars import TEXT_FIELDS
from headrace.storage import (
    Options,
    Store,
    check_on,
    protocol_of,
    remove_partial,
    run_by_processes,
    run_on_ray,
    side_by_side,
)

logger = logging.getLogger(__name__)

ReportProgress = Callable[[str, float], None]
"""Is called with the name of a stage and the share of it that is done."""

_STAGE = "indexing"
_REMOTE_THREADS = 8
_TARS_OF_A_PROCESS = 8
"""minimum per worker; for fewer, starting one costs more than it saves"""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The outcome for one tar.

    Attributes:
        name: The name of the tar, relative to the source.
        members: Number of members.
        last_good: The last complete member of a truncated tar.
        was_there: A complete index existed already.
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
        failed: The problems of tars without an index; without ``keep_going`` they are errors.
    """

    tars: Sequence[Indexed]
    failed: Sequence[str] = ()

    @property
    def members(self) -> int:
        """Number of members of all tars."""
        return sum(tar.members for tar in self.tars)

    @property
    def broken(self) -> Sequence[Indexed]:
        """Truncated tars, whose readable members are indexed."""
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
    sample_key: DotRule | None = None,
    force: bool = False,
    on: str | None = None,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> IndexReport:
    """Write the index of each tar of a source.

    A tar whose index has everything that is requested is skipped, so an interrupted run continues.
    Captions that were written into an index stay, as long as the members are the same.

    Args:
        source: Files, directories, globs, patterns, URLs or ``hf://`` paths.
        out: A folder for the indexes, which get the paths that their tars have below the source. By
            default they are written beside the tars, and for remote and read-only tars into the
            cache.
        geometry: Look for width and height of images.
        sidecars: Embed the content of JSON and text sidecars, including captions.
        hash: Hash tars and members; all bytes are read.
        format: ``"arrow"``, or ``"json"`` for other tools.
        one_file: One columnar file for all tars.
        workers: Tars that are scanned at a time.
        range: Numbers (start, stop) of the sorted tars that are indexed; the indexes of other tars
            in ``one_file`` are kept.
        keep_going: List tars that cannot be indexed in the report, and index the readable members
            of truncated tars.
        sample_key: How the key of a sample follows from the names of its members: the path up to
            the first ("first-dot") or to the last dot of the base name ("last-dot"). Readers follow
            the rule of the index. None for the rule of an existing index, else the first dot.
        force: Index tars again that have an index.
        on: ``"ray"`` to scan tars on a Ray cluster, whose nodes reach the tars and the folder of
            the indexes.
        storage_options: Options of the store.
        progress: Called while tars are scanned.

    Returns:
        The outcome for each tar.

    Raises:
        ReadError: A tar cannot be indexed. The indexes of other tars are kept.
        OptionError: An option is invalid, or a file that is not an index has the name of an index.

    Examples:
        ```python
        from headrace import TarWriter, index_tars

        with TarWriter("tars/", index=None) as writer:
            writer.write({"__key__": "0001", "txt": "a caption"})
        assert index_tars("tars/", hash=True).members == 1
        ```
    """
    if format not in ENDINGS:
        raise OptionError(f"format must be one of {', '.join(ENDINGS)}, not {format!r}")
    if out is not None and one_file is not None:
        raise OptionError(
            "out is a folder with an index for each tar, one_file is one index for "
            "all; give only one"
        )
    if sample_key not in (None, *get_args(DotRule)):
        raise OptionError(f'sample_key must be "first-dot" or "last-dot", not {sample_key!r}')
    check_on(on)
    found = find_tars(source, access_of(storage_options))
    if on is not None and not found.store.local and out is None and one_file is None:
        raise OptionError(
            f'with on="{on}" the indexes of remote tars need a folder that all nodes reach: give '
            "out= or one_file="
        )
    chosen = _chosen(list(zip(found.tars, found.names, strict=True)), range)
    scope = _Scope(geometry, sidecars, hash, keep_going, sample_key)
    folder = None if out is None else _local_path("out", out)
    single = None if one_file is None else _local_path("one_file", one_file)
    jobs = []
    for tar, name in chosen:
        if single is None:
            target = _target(found, tar, name, folder, ENDINGS[format])
        else:
            version = version_digest(found.store, tar)
            target = os.path.join(f"{single}.parts", version + COLUMNAR_ENDING)
        jobs.append(_IndexJob(found.store, tar, name, scope, force, target))
    run = partial(_run, workers=workers, on=on, progress=progress or (lambda stage, share: None))
    if single is not None:
        return _index_into_one_file(single, found, jobs, run)
    _refuse_equal([job.target for job in jobs])
    return run(jobs)


# --- which tars, and where their indexes go


def _chosen(
    tars: list[tuple[DataFileInfo, str]], range: tuple[int, int] | None
) -> list[tuple[DataFileInfo, str]]:
    if range is None:
        return tars
    start, stop = range
    if not 0 <= start < stop:
        raise OptionError(f"range must be two numbers a < b from 0 on, not {start},{stop}")
    if start >= len(tars):
        raise OptionError(f"range begins at tar {start}, but there are only {len(tars)}")
    return tars[start:stop]


def _target(found: FoundTars, tar: DataFileInfo, name: str, folder: str | None, ending: str) -> str:
    if folder is not None:
        return stem_of(_path_below(folder, name)) + ending
    if found.store.local and os.access(os.path.dirname(tar.path), os.W_OK):
        return stem_of(tar.path) + ending
    cached = IndexCache.within(None).index_path(found.store, tar)
    if cached is None or ending != COLUMNAR_ENDING:
        raise OptionError(
            f"an index cannot be written beside {tar.path}; name a folder for the indexes "
            "(out, --out), and give it as metadata= when the tars are read"
        )
    return cached


def _remove_parts(jobs: Sequence[_IndexJob]) -> None:
    """Remove the files of this run; another run may be using the folder."""
    for job in jobs:
        with suppress(FileNotFoundError):
            os.unlink(job.target)
        with suppress(OSError):
            os.rmdir(os.path.dirname(job.target))


def _refuse_equal(targets: Sequence[str]) -> None:
    """Refuse to write two indexes into one file, as of tars whose endings differ in case."""
    twice = [target for target, times in Counter(targets).items() if times > 1]
    if twice:
        raise OptionError(
            f"more than one tar would have the same index, {twice[0]}; rename one of them, or "
            "index or convert them one by one into folders of their own (out, --out)"
        )


# --- one tar


@dataclass(frozen=True, slots=True)
class _Scope:
    """The extent of an index: arguments of ``scan_tar``."""

    geometry: bool
    sidecars: bool
    hash: bool
    keep_going: bool
    sample_key: DotRule | None


@dataclass(frozen=True, slots=True)
class _IndexJob:
    """A tar that will be indexed. Pickles, so that another process may run it.

    Attributes:
        store: The store of the tar.
        file: The tar.
        name: Its name, relative to the source.
        scope: The content of the index.
        force: True to index a tar that has an index.
        target: The file for the index.
    """

    store: Store
    file: DataFileInfo
    name: str
    scope: _Scope
    force: bool
    target: str

    def __str__(self) -> str:
        return self.file.path

    def run(self) -> Indexed:
        """Write the index, unless it exists. A file that is not an index is never overwritten."""
        _refuse_other_file(self.target)
        for left in (self.target, f"{self.target}.change"):  # by a run that was killed
            remove_partial(left)
        index: TarIndex | None = None
        sample_key = self.scope.sample_key
        for path, found in self._found():
            sample_key = sample_key or found.facts.sample_key
            if self.is_met_by(found, path):
                if path == self.target:
                    return self.done(found, was_there=True)
                index = found
        if index is None:
            scope = {**asdict(self.scope), "sample_key": sample_key}
            index = scan_tar(self.store, self.file, **scope)
        _make_folder(self.target)
        with index_lock(self.target):
            for _, earlier in self._found():  # captions may have been written meanwhile
                index = _with_written_captions(index, earlier)
            write_index_as(self.target, [(self.name, index)])
        return self.done(index, was_there=False)

    def done(self, index: TarIndex, *, was_there: bool) -> Indexed:
        """Return the outcome."""
        return Indexed(self.name, len(index), index.facts.last_good, was_there)

    def _found(self) -> Iterator[tuple[str, TarIndex]]:
        """Yield the existing indexes, of any version of the tar."""
        stem = self.target.removesuffix(COLUMNAR_ENDING).removesuffix(ENDINGS["json"])
        beside = (stem + ending for ending in ENDINGS.values())
        for path in dict.fromkeys([self.target, *beside]):
            with suppress(FileNotFoundError, NotADirectoryError, StaleIndexError):
                yield path, read_index(path)

    def is_met_by(self, index: TarIndex, path: str) -> bool:
        """Return True if the index in a file matches the tar and has everything that is wanted."""
        facts, scope = index.facts, self.scope
        embeddable = {"json", *TEXT_FIELDS}.intersection(index.grouping.field_names)
        lacks = (
            facts.size is None
            or (facts.last_good is not None and not scope.keep_going)
            or (scope.geometry and not facts.has_geometry)
            or (scope.hash and facts.hash_lfs is None)
            or scope.sample_key not in (None, facts.sample_key)
            or (scope.sidecars and embeddable and not facts.has_sidecars)
        )
        return not self.force and not lacks and self._is_current(path, index)

    def _is_current(self, path: str, index: TarIndex) -> bool:
        """Return True if an index matches the current version of the tar."""
        try:
            check_index(index, self.file.file_size, self.file.path)
            if index.facts.etag is not None and self.file.etag is not None:
                return index.facts.etag == self.file.etag
            check_end(self.store, self.file, index)
        except ReadError:
            return False
        return not self.store.local or os.path.getmtime(self.file.path) <= os.path.getmtime(path)


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


# --- one file for all


def _index_into_one_file(
    path: str,
    found: FoundTars,
    jobs: Sequence[_IndexJob],
    run: Callable[[Sequence[_IndexJob]], IndexReport],
) -> IndexReport:
    """Index each tar into a separate file first, so that an interrupted run can continue."""
    if not path.endswith(".arrow"):
        raise OptionError(f"one_file must be the name of a columnar index, *.arrow, not {path!r}")
    _refuse_other_file(path)
    there = _read_all(path)
    done = {
        job.name: job.done(there[job.name], was_there=True)
        for job in jobs
        if job.name in there and job.is_met_by(there[job.name], path)
    }
    chosen = [job.name for job in jobs]
    jobs = [job for job in jobs if job.name not in done]
    report = run(jobs)
    done |= {tar.name: tar for tar in report.tars}
    new: dict[str, TarIndex] = {}
    for job in jobs:
        with suppress(FileNotFoundError):  # it failed, or another run has put it into the file
            new[job.name] = read_index(job.target)
    failed = {*chosen} - done.keys()
    _make_folder(path)
    with index_lock(path):
        now = _read_all(path)  # other runs may have written to it
        for name, index in new.items():
            now[name] = _with_written_captions(index, now[name]) if name in now else index
        names = [name for name in found.names if name in now and name not in failed]
        write_index(path, [(name, now[name]) for name in names])
    _remove_parts(jobs)
    return IndexReport([done[name] for name in chosen if name in done], report.failed)


def _read_all(path: str) -> dict[str, TarIndex]:
    """Return the indexes of a file by the names of their tars; none if it cannot be read."""
    try:
        opened = IndexFile.open(path)
        return {tar: opened.index(number) for number, tar in enumerate(opened.tars)}
    except (FileNotFoundError, StaleIndexError):
        return {}


# --- many at a time


def _run(
    jobs: Sequence[_IndexJob], workers: int | None, on: str | None, progress: ReportProgress
) -> IndexReport:
    done: dict[str, Indexed] = {}
    failed: dict[str, str] = {}
    total, bytes_done = max(sum(job.file.file_size or 0 for job in jobs), 1), 0
    if jobs:
        progress(_STAGE, 0.0)
    for job, outcome in _outcomes(jobs, workers, on):
        if isinstance(outcome, Indexed):
            done[job.name] = outcome
        elif job.scope.keep_going and isinstance(outcome, ReadError):
            failed[job.name] = str(outcome)
        else:
            raise outcome
        bytes_done += job.file.file_size or 0
        progress(_STAGE, bytes_done / total)
    names = [job.name for job in jobs]
    return IndexReport(
        [done[name] for name in names if name in done],
        [failed[name] for name in names if name in failed],
    )


def _outcomes(
    jobs: Sequence[_IndexJob], workers: int | None, on: str | None
) -> Iterator[tuple[_IndexJob, Indexed | Exception]]:
    """Yield jobs and their outcomes; after an error no further job begins."""
    if workers is not None:
        whole_number("workers", workers, 1)
    if on is not None:
        return run_on_ray(_outcome, jobs, workers)
    if not jobs:
        return iter(())
    if not jobs[0].store.local:
        outcomes = side_by_side(_outcome, jobs, threads=workers or _REMOTE_THREADS)
        return zip(jobs, outcomes, strict=True)
    # Reading headers is work in Python, which threads of one process cannot do in parallel.
    count = workers or min(usable_cores(), max(len(jobs) // _TARS_OF_A_PROCESS, 1))
    if min(count, len(jobs)) > 1:
        return run_by_processes(_outcome, jobs, count, lambda job, share: None)
    return zip(jobs, map(_outcome, jobs), strict=True)


def _outcome(job: _IndexJob, _report: object = None) -> Indexed | Exception:
    try:
        return job.run()
    except Exception as error:
        return error


# --- index files that are written


def _make_folder(path: str) -> None:
    """Make the folder that a file is to lie in."""
    with writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)


def _refuse_other_file(path: str) -> None:
    """Raise an OptionError if the file exists and is not an index (a stale or damaged one is)."""
    if os.path.lexists(path) and not _is_index(path):
        what = "is a folder" if os.path.isdir(path) else "holds something else"
        raise OptionError(
            f"the index would be written to {path}, but it {what}; move it, or choose another "
            "place for the indexes (--out, --one-file)"
        )


def _is_index(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    content = file_content(path)
    if path.endswith(".arrow"):
        return INDEX_MARK in content
    return not content or (
        b'"files"' in content and (b'"offset"' in content or b'"filesize"' in content)
    )


def _local_path(what: str, path: PathLike) -> str:
    """Return the absolute path of something that is written, which lies on this machine."""
    text = os.fspath(path)
    if protocol_of(text):
        raise OptionError(
            f"{what} must be a path on this machine, not {text!r}; copy it from there"
        )
    return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))


def _path_below(folder: str, name: str) -> str:
    """Return the path of a file in a folder; a name that leads out of it is refused."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise OptionError(f"an index in {folder} cannot be called {name!r}; index that tar alone")
    return os.path.join(folder, *parts)


# --- from one form into the other


def convert_indexes(
    source: TarLocation,
    to: Literal["json", "arrow"],
    *,
    out: PathLike | None = None,
    one_file: PathLike | None = None,
    storage_options: Options | None = None,
) -> list[str]:
    """Write index files in the other form. No tar is needed.

    Args:
        source: Index files, or folders of them. JSON files of a folder that are not indexes are
            left out.
        to: The form that is written.
        out: The folder for them; beside the others if left out.
        one_file: One columnar file for all of them.
        storage_options: Options of the store of the source.

    Returns:
        The paths of the files that were written.
    """
    found = list(_indexes(source, "arrow" if to == "json" else "json", storage_options))
    if not found:
        raise NothingFoundError(f"there is no index to convert in {source}")
    if one_file is not None:
        if to != "arrow":
            raise OptionError("one_file must be a columnar index, not JSON")
        targets = [_local_path("one_file", one_file)]
        groups = [[(f"{name}.tar", index) for _, name, index in found]]
    else:
        into = None if out is None else _local_path("out", out)
        targets = [_path_below(into or folder, name) + ENDINGS[to] for folder, name, _ in found]
        groups = [[(f"{posixpath.basename(name)}.tar", index)] for _, name, index in found]
    _refuse_equal(targets)
    for target in targets:
        _refuse_other_file(target)
    for target, tars in zip(targets, groups, strict=True):
        _make_folder(target)
        with index_lock(target):
            write_index_as(target, tars)
    return targets


def _indexes(
    source: TarLocation, form: str, storage_options: Options | None
) -> Iterator[tuple[str, str, TarIndex]]:
    """Yield the folder of each index, the path of its tar below it without the ending, and it."""
    listing = listed(source, access_of(storage_options))
    ending = ".json" if form == "json" else ".arrow"
    files = [status for status in listing.files if status.path.endswith(ending)]
    for status, name in zip(files, names_of(files, listing.roots), strict=True):
        folder, (above, slash, base) = status.path[: -len(name)], name.rpartition("/")
        try:
            opened = IndexPlace(listing.store, status).open()
            for number, tar in enumerate(opened.tars):
                alone = base.removesuffix(ending).removesuffix(".idx")
                stem = alone if len(opened.tars) == 1 else stem_of(tar)
                yield folder, f"{above}{slash}{stem}", opened.index(number)
        except StaleIndexError as error:
            if form == "arrow" or status.path in listing.named:
                raise
            logger.warning("left out: %s", error)


# --- verification


def verify_tars(
    source: TarLocation,
    metadata: TarLocation | None = None,
    *,
    hash: bool = True,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Sequence[str]]:
    """Return the problems of the index of each tar, by the names of tars.

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
            problems[name] = verify_index(found.store, tar, place.read(), hash=hash)
        except ReadError as error:
            problems[name] = [str(error)]
    if progress is not None:
        progress("verifying", 1.0)
    return problems
