"""Remote files, listed and read by requests that are retried, with valid credentials.

A ``RemoteStore`` consists of options and pickles. Its client (an ``Engine``) is made in the process
that uses it. Every read names the version of the file that was discovered.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa

from headrace.errors import (
    AccessDeniedError,
    FileChangedError,
    MissingExtraError,
    OptionError,
    ReadError,
)
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage._disk_cache import DiskCache
from headrace.storage._engine import Engine, RequestError, StoreFailure, connect
from headrace.storage._options import Options, ResolvedOptions, resolve_functions
from headrace.storage._ranges import Parts, RangeReader, RemoteFile, Requests
from headrace.storage._redaction import Redaction, of_environment, unsigned_url
from headrace.storage._store import (
    UNKNOWN_SIZE,
    FileStatus,
    LocalStore,
    Meter,
    changed,
    check_version,
    matching,
    vanished,
)
from headrace.storage._threads import Patience, in_background, interruptibly

T = TypeVar("T")

_PAGE = 1000
_LISTED_IN_ONE = 4000
"""Number of objects from which on a directory is listed by its subdirectories, side by side."""
_MAGIC = "*?["
_LONGEST_DETAIL = 600
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 20.0

Entries = list[FileStatus | str]
"""Files, and the paths of directories."""
Listed = tuple[list[FileStatus], list[str]]
"""Files, and directories that are still to be listed."""

_jitter = random.Random()
"""A generator of our own: the sequence of the module's generator belongs to the user."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of retrying a request.

    Attributes:
        retries: Number of times that a request is retried.
        timeout_s: Seconds that a server may be silent, at the beginning of an answer and within it.
            The least rate of an answer is averaged over this time, too.
        max_elapsed_s: Seconds after its first attempt from which on a request is not retried.
    """

    retries: int = 10
    timeout_s: float = 30.0
    max_elapsed_s: float = 300.0


class _Attempts:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy, patience: Patience) -> None:
        self.failed = 0
        self._policy = policy
        self._patience = patience
        self._began = time.monotonic()

    def count_failure_and_wait(self) -> bool:
        """Count a failure; sleep and return True if there is to be another attempt.

        The pause grows exponentially and is drawn at random, so that many clients that failed
        together do not come back together. It ends early if the reader gave up or the interpreter
        is shutting down.
        """
        self.failed += 1
        most = min(_FIRST_PAUSE_S * 2 ** min(self.failed - 1, 30), _LONGEST_PAUSE_S)
        pause_s = _jitter.uniform(most / 2, most)
        elapsed_s = time.monotonic() + pause_s - self._began
        if self.failed > self._policy.retries or elapsed_s > self._policy.max_elapsed_s:
            return False
        return self._patience.sleep(pause_s)

    def __str__(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self.failed} attempt{'s' if self.failed != 1 else ''} in {seconds:.1f} s"


@dataclass(slots=True)
class _Session:
    """The part of a store that belongs to one process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    engine: Engine | None = None
    resolved: ResolvedOptions | None = None
    redact: Redaction = field(default_factory=Redaction)
    identity: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RemoteStore:
    """A store that is reached by requests; reads are tied to the version that was discovered.

    Options may be, or hold, functions: they are called in the process that needs them, before their
    results expire, and when the store denies access.

    Attributes:
        protocol: The part of the store's URLs before ``://``; empty with ``filesystem``.
        options: Options of the store.
        filesystem: A filesystem given by the user, which is used as it is.
        signed_urls: URLs with their secrets, by the URLs that are shown.
        retry: The limits of retrying a request.
        requests: How wanted byte ranges become requests.
        cache: Keeps fetched bytes on a local disk.
        meter: Counts requests and bytes.
        patience: Ends the waiting when the reader gives up.
        parts: Beginnings and ends of files.
        immutable: True if files are never written again, as those of tables; path and size then
            suffice to cache them.
    """

    protocol: str
    options: Options = field(default_factory=dict, repr=False)
    filesystem: Any = field(default=None, repr=False)
    signed_urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    requests: Requests = field(default_factory=Requests)
    cache: DiskCache | None = None
    meter: Meter = field(default_factory=Meter, repr=False)
    patience: Patience = field(default_factory=Patience, repr=False)
    parts: Parts = field(default_factory=Parts, repr=False)
    immutable: bool = False
    _name: str = field(default_factory=lambda: uuid4().hex, repr=False)
    _sessions: PerProcess[_Session] = field(
        default_factory=lambda: PerProcess(_Session), repr=False
    )

    @property
    def fork_safe(self) -> bool:
        return self.protocol == "memory"

    @property
    def local(self) -> bool:
        return False

    @property
    def given(self) -> Mapping[str, Any]:
        return {"storage_options": self.options, "filesystem": self.filesystem}

    @property
    def identity(self) -> str:
        """Text that is the same for all readers of a store; a given filesystem has its own.

        It does not depend on credentials. It depends on hidden parameters of URLs unless they are
        known to be signatures, because they may name files.
        """
        if self.filesystem is not None:
            return self._name
        session = self._sessions.get()
        if not session.identity:
            urls = set(map(unsigned_url, self.signed_urls.values())) - set(self.signed_urls)
            names = [self.protocol, self._client()[0].place, *sorted(urls)]
            session.identity = sha256("\0".join(names).encode()).hexdigest()[:16]
        return session.identity

    @property
    def _is_web(self) -> bool:
        """True if a directory is a page, whose address ends in a slash."""
        return self.protocol in ("http", "https")

    def during(self, meter: Meter, patience: Patience) -> RemoteStore:
        return replace(self, meter=meter, patience=patience)

    # --- requests

    def check(self) -> None:
        """Raise an OptionError or a MissingExtraError now; nothing is sent."""
        self._client()

    def request(self, what: str, ask: Callable[[Engine], T]) -> T:
        """Return the result of ``ask``, and retry it if necessary.

        Errors of clients are not chained, not even as a hidden context, because their texts may
        hold credentials.

        Args:
            what: The object of the request, which begins an error message.
            ask: Makes one request.

        Raises:
            RequestError: The object is missing, or has another version.
            ReadError: Any other error.
        """
        attempts = _Attempts(self.retry, self.patience)
        renewed = False
        while True:
            engine, resolved = self._client()
            self.meter.add(requests=1)
            try:
                return ask(engine)
            except RequestError as error:
                failed = error
            if failed.failure in (StoreFailure.MISSING, StoreFailure.CHANGED):
                raise RequestError(failed.failure, self._shown(failed))
            if failed.failure is StoreFailure.DENIED and resolved.renewable and not renewed:
                renewed = True
                self._client(denied=engine)
                attempts.failed += 1
            elif failed.failure is not StoreFailure.TRANSIENT:
                attempts.failed += 1
                raise self._error(what, failed, attempts)
            elif not attempts.count_failure_and_wait():
                raise self._error(what, failed, attempts)
            self.meter.add(retries=1)

    def _error(self, what: str, failed: RequestError, attempts: _Attempts) -> ReadError:
        text = f"{what}: {self._shown(failed)} ({attempts}"
        if failed.failure is StoreFailure.DENIED:
            return AccessDeniedError(
                f"{text}; check the credentials, and whether they have expired)"
            )
        return AccessDeniedError(f"{text})") if failed.keyless else ReadError(f"{text})")

    def _shown(self, failed: RequestError) -> str:
        """Return a client's message without secrets; cut last, as half a secret is not found."""
        session = self._sessions.get()
        found = session.engine.secrets if session.engine is not None else ()
        text = Redaction({"found": list(found)})(failed.detail)
        return session.redact(text)[:_LONGEST_DETAIL]

    def _client(self, denied: Engine | None = None) -> tuple[Engine, ResolvedOptions]:
        """Return the client and its options, made anew before credentials expire.

        denied: The client whose credentials were refused. It is not replaced if another thread has
        just got new credentials.
        """
        session = self._sessions.get()
        with session.lock:
            engine, resolved = session.engine, session.resolved
            if engine is None or resolved is None or resolved.stale or engine is denied:
                engine, resolved = self._connect(session)
                session.engine, session.resolved = engine, resolved
            return engine, resolved

    def _connect(self, session: _Session) -> tuple[Engine, ResolvedOptions]:
        resolved = resolve_functions(self.options)
        known = {"before": session.redact.secrets, "around": of_environment(), **self.signed_urls}
        session.redact = Redaction({**known, **resolved.options})
        try:
            engine = connect(
                self.protocol,
                resolved.options,
                self.retry.timeout_s,
                signed_urls=self.signed_urls,
                filesystem=self.filesystem,
            )
            return engine, resolved
        except (OptionError, MissingExtraError) as error:
            kind, text = type(error), session.redact(str(error))
        raise kind(text)

    # --- finding files

    def resolved(self, location: str) -> str:
        if self.protocol != "hf":
            return location
        try:
            return interruptibly(
                lambda: self.request(location, lambda engine: engine.resolved(location))
            )
        except RequestError:
            return location  # it is missing, which listing it will report

    def list(self, directory: str) -> Iterator[FileStatus]:
        """Yield all files below a directory; large ones are listed by subdirectories at once."""
        pending: set[Future[Listed]] = {in_background(partial(self._listed, directory))}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for listed in done:
                files, directories = listed.result()
                pending.update(in_background(partial(self._listed, one)) for one in directories)
                # An index page has only names.
                asked = [
                    in_background(partial(self._status, status.path))
                    for status in files
                    if status.size == UNKNOWN_SIZE
                ]
                yield from (status for status in files if status.size != UNKNOWN_SIZE)
                yield from (found for one in asked if (found := one.result()) is not None)

    def _listed(self, directory: str) -> Listed:
        """Return all files below a directory; if there are many, its own files and directories."""
        entries = self._entries(directory, recursive=not self._is_web)
        files = [entry for entry in entries if isinstance(entry, FileStatus)]
        directories = [entry for entry in entries if isinstance(entry, str)]
        return _without_markers(files, directory, directories), directories

    def _entries(self, directory: str, *, recursive: bool) -> Entries:
        """Return the entries of a directory, page by page; a page that fails is requested again."""
        found: dict[FileStatus | str, None] = {}
        rest: Iterator[FileStatus | str] | None = None

        def next_page(engine: Engine) -> int:
            nonlocal rest
            pages, rest = rest, None
            if pages is None:
                last = _path(next(reversed(found), "")) if recursive else ""
                pages = engine.entries(directory, recursive, last)
            page = list(islice(pages, _PAGE))
            found.update(dict.fromkeys(page))
            rest = pages
            return len(page)

        try:
            while self.request(f"listing {directory}", next_page) == _PAGE:
                is_large = len(found) > _LISTED_IN_ONE >= len(found) - _PAGE
                start = len(directory.rstrip("/")) + 1
                if recursive and is_large and any("/" in _path(one)[start:] for one in found):
                    return self._entries(directory, recursive=False)
        except RequestError as error:
            if error.failure is not StoreFailure.MISSING:
                raise ReadError(f"listing {directory}: {error.detail}") from None
        return list(found)

    def glob(self, pattern: str) -> Iterator[tuple[str, FileStatus]]:
        parts = pattern.split("/")
        fixed = next(i for i, part in enumerate(parts) if any(c in part for c in _MAGIC))
        root = "/".join(parts[:fixed])
        yield from matching(self.list(root), root, parts[fixed:])

    def status(self, path: str) -> FileStatus | None:
        if path.endswith("/") and not self._is_web:
            return None  # clients drop the slash, and an object may have the name of the folder
        return interruptibly(lambda: self._status(path))

    def _status(self, path: str) -> FileStatus | None:
        try:
            return self.request(path, lambda engine: engine.status(path))
        except RequestError as error:
            if error.failure is StoreFailure.MISSING:
                return None
            raise ReadError(f"{path}: {error.detail}") from None

    # --- reading them

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """Return a file for reading; nothing is requested yet, and each read names the version."""
        if file.file_size is None:
            found = self.status(file.path)
            if found is None:
                raise FileChangedError(vanished(file.path))
            file = replace(file, file_size=found.size, etag=found.etag)
        pinned = file
        assert pinned.file_size is not None
        reader = RangeReader(
            pinned.file_size,
            lambda start, stop: self._bytes(pinned, start, stop),
            self.requests,
            self.parts.of(pinned),
            lambda start, data: self.parts.add(pinned, start, bytes(data)),
            self.patience,
        )
        return RemoteFile(reader, "r")

    def _bytes(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        if self.cache is None or (file.etag is None and not self.immutable):
            return self._fetched(file, start, stop)
        return self.cache.get(
            (self.identity, file.path, file.file_size, file.etag),
            start,
            stop,
            lambda first, last: self._fetched(file, first, last),
            self.meter,
        )

    def _fetched(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        def ask(engine: Engine) -> Any:
            try:
                return engine.fetch(file.path, start, stop, file.etag, file.file_size)
            except RequestError as error:
                if engine.conditional or error.failure is not StoreFailure.TRANSIENT:
                    raise
                # A filesystem that fails on a file that has changed since did not fail.
                now = engine.status(file.path)
                if now is not None and now.size == file.file_size and file.etag in (None, now.etag):
                    raise
            raise RequestError(StoreFailure.CHANGED, "it is another by now")

        try:
            data = self.request(f"{file.path}, bytes {start}-{stop}", ask)
        except RequestError as error:
            missing = error.failure is StoreFailure.MISSING
            message = vanished(file.path) if missing else changed(file.path)
            raise FileChangedError(message) from None
        if not self._client()[0].conditional:
            check_version(file, self._status(file.path))
        self.meter.add(fetched_bytes=stop - start)
        return memoryview(data)


Store = LocalStore | RemoteStore
"""A place with files."""


def _path(entry: FileStatus | str) -> str:
    return entry if isinstance(entry, str) else entry.path


def _without_markers(
    files: list[FileStatus], directory: str, directories: list[str]
) -> list[FileStatus]:
    """Return files without the empty objects that some tools put in place of a directory."""
    if all(status.size for status in files):
        return files
    above = {directory.rstrip("/"), *directories}
    for status in files:
        path = status.path.rpartition("/")[0]
        while path not in above and "/" in path:
            above.add(path)
            path = path.rpartition("/")[0]
    return [status for status in files if status.size or status.path not in above]
