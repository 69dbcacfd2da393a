"""Remote files: from a URL to the bytes of a range.

An ``Access`` holds the options of the user and returns the ``RemoteStore`` of a location. A store
consists of options and pickles. Its client (an ``Engine``) is made in the process that uses it. The
store retries requests, renews credentials, and hides secrets in errors. Every read names the
version of the file that was discovered.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, ClassVar, TypeVar
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
from headrace.options import check_together
from headrace.process import PerProcess
from headrace.storage._disk_cache import DiskCache
from headrace.storage._engine import Engine, RequestError, StoreFailure
from headrace.storage._options import Options, ResolvedOptions, resolve_options
from headrace.storage._ranges import Parts, RangeReader, RemoteFile, Requests
from headrace.storage._redaction import (
    Redaction,
    shown_location,
    shown_urls,
    unsigned_url,
)
from headrace.storage._store import (
    LocalStore,
    Meter,
    changed,
    matching,
    named_locations,
    protocol_of,
    vanished,
)
from headrace.storage._threads import Patience, in_background

T = TypeVar("T")

_PAGE = 1000
_LISTED_IN_ONE = 4000
"""Number of objects from which on a directory is listed by its subdirectories, side by side."""
_MAGIC = "*?["
_LONGEST_DETAIL = 600
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 20.0
_WEB = ("http", "https")
_OBJECT_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
}
"""Protocols of object stores, and their kinds."""

_jitter = PerProcess(random.Random)
"""A generator of our own: the sequence of the module's generator belongs to the user.

Forked children with one sequence would all come back to a server at the same moment.
"""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials and other options of stores, retries, requests and the cache.

    A function may stand for the options: it is called in the process that needs them, before its
    result expires, and when a store denies access.

    Attributes:
        storage_options: Options of the store, or a function that returns them.
        filesystem: A filesystem given by the user, which is used as it is.
        retry: The limits of retrying a request.
        requests: How wanted byte ranges become requests.
        cache: Keeps fetched bytes on a local disk.
        meter: Counts requests while files are found.
    """

    storage_options: Options = field(default_factory=dict, repr=False)
    filesystem: Any = field(default=None, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    requests: Requests = field(default_factory=Requests)
    cache: DiskCache | None = None
    meter: Meter = field(default_factory=Meter, repr=False)

    def __post_init__(self) -> None:
        given = self.storage_options
        if not (isinstance(given, Mapping) or callable(given)):
            raise OptionError(
                "storage_options must be a mapping, or a function that returns one, not a "
                f"{type(given).__name__}"
            )
        check_together({"storage_options": given, "filesystem": self.filesystem})

    def store_for(self, path: object) -> tuple[Store, list[str]]:
        """Return the store that holds some locations, and the locations without secrets in them.

        Args:
            path: A path, a URL, or several.
        """
        locations = named_locations(path, as_they_are=self.filesystem is not None)
        if self.filesystem is None and not any(map(protocol_of, locations)):
            return LocalStore(), locations
        protocols = {""} if self.filesystem is not None else set(map(protocol_of, locations))
        shown = [shown_location(one) for one in locations]
        if len(protocols) > 1:
            raise OptionError(f"paths lie in different stores: {', '.join(sorted(shown))}")
        [protocol] = protocols
        for one in locations:
            if protocol in _OBJECT_STORES and not one.partition("://")[2].partition("/")[0].strip():
                raise OptionError(
                    f"{one} names no bucket or container, as {protocol}://NAME/PATH does"
                )
        if protocol in _WEB:
            shown = shown_urls(locations)
        signed = {new: old for new, old in zip(shown, locations, strict=True) if new != old}
        if signed and protocol not in _WEB:
            raise OptionError(
                f"{min(signed)}: credentials do not belong in a URL of "
                f"{'a filesystem that is given' if protocol == '' else f'{protocol}://'}; "
                "give them as storage_options"
            )
        store = RemoteStore(protocol=protocol, access=self, signed_urls=signed, meter=self.meter)
        store.check()
        return store, shown


def store_for(url: str, storage_options: Options | None = None) -> Store:
    """Return the store that holds one location."""
    return Access(storage_options=storage_options or {}).store_for(url)[0]


@dataclass(slots=True)
class _Session:
    """The part of a store that belongs to one process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    client: tuple[Engine, ResolvedOptions] | None = None
    redact: Redaction = field(default_factory=Redaction)
    identity: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RemoteStore:
    """A store that is reached by requests; reads are tied to the version that was discovered.

    Attributes:
        protocol: The part of the store's URLs before ``://``; empty for a given filesystem.
        access: The options of the user.
        signed_urls: URLs with their secrets, by the URLs that are shown.
        meter: Counts requests and bytes.
        patience: Ends the waiting when the reader gives up.
        parts: Beginnings and ends of files.
        immutable: True if files are never written again, as those of tables; path and size then
            suffice to cache them.
    """

    local: ClassVar[bool] = False
    protocol: str
    access: Access = field(default_factory=Access)
    signed_urls: Mapping[str, str] = field(default_factory=dict, repr=False)
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
    def given(self) -> Mapping[str, Any]:
        access = self.access
        return {"storage_options": access.storage_options, "filesystem": access.filesystem}

    @property
    def identity(self) -> str:
        """Text that is the same for all readers of a store; a given filesystem has its own.

        It does not depend on credentials. It depends on hidden parameters of URLs unless they are
        known to be signatures, because they may name files.
        """
        if self.access.filesystem is not None:
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
        return self.protocol in _WEB

    def during(self, meter: Meter, patience: Patience) -> RemoteStore:
        return replace(self, meter=meter, patience=patience)

    # --- reading files

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """Return a file for reading; nothing is requested yet, and each read names the version."""
        if file.file_size is None:
            found = self.status(file.path)
            if found is None:
                raise FileChangedError(vanished(file.path))
            file = found
        assert file.file_size is not None
        reader = RangeReader(
            file.file_size,
            partial(self._bytes, file),
            self.access.requests,
            self.parts.of(file),
            partial(self.parts.add, file),
            self.patience,
        )
        return RemoteFile(reader, "r")

    def _bytes(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        """Return bytes of a file from the cache, if there is one, or else by a request."""
        cache = self.access.cache
        if cache is None or (file.etag is None and not self.immutable):
            return self._fetched(file, start, stop)
        key = self.identity, *file.identity
        return cache.get(key, start, stop, partial(self._fetched, file), self.meter)

    def _fetched(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        try:
            data = self.request(
                f"{file.path}, bytes {start}-{stop}",
                lambda engine: engine.fetch(file, start, stop),
            )
        except RequestError as error:
            missing = error.failure is StoreFailure.MISSING
            message = vanished(file.path) if missing else changed(file.path)
            raise FileChangedError(message) from None
        self.meter.add(fetched_bytes=stop - start)
        return memoryview(data)

    # --- requests

    def check(self) -> None:
        """Raise an OptionError or a MissingExtraError now; nothing is sent."""
        self._client()

    def request(self, what: str, ask: Callable[[Engine], T]) -> T:
        """Return the result of ``ask``, and retry it if necessary.

        Errors of clients are not chained, not even as a hidden context, because their texts may
        hold credentials. Nothing is requested in the main thread, which gets signals.

        Args:
            what: The object of the request, which begins an error message.
            ask: Makes one request.

        Raises:
            RequestError: The object is missing, or has another version.
            ReadError: Any other error.
        """
        if threading.current_thread() is threading.main_thread():
            return in_background(partial(self.request, what, ask)).result()
        began = time.monotonic()
        failures, renewed = 0, False
        while True:
            engine, resolved = self._client()
            self.meter.add(requests=1)
            try:
                return engine.call(partial(ask, engine))
            except RequestError as error:
                failed = error
            failures += 1
            if failed.failure in (StoreFailure.MISSING, StoreFailure.CHANGED):
                raise RequestError(failed.failure, self._shown(failed))
            if failed.failure is StoreFailure.DENIED and resolved.renewable and not renewed:
                renewed = True
                self._client(denied=engine)
            elif failed.failure is not StoreFailure.TRANSIENT or not self._pause(failures, began):
                raise self._error(what, failed, failures, time.monotonic() - began)
            self.meter.add(retries=1)

    def _pause(self, failures: int, began: float) -> bool:
        """Sleep before another attempt; return False if there is to be none.

        The pause grows exponentially and is drawn at random, so that many clients that failed
        together do not come back together. It ends early if the reader gave up or the interpreter
        is shutting down.
        """
        limits = self.access.retry
        most = min(_FIRST_PAUSE_S * 2 ** min(failures - 1, 30), _LONGEST_PAUSE_S)
        pause_s = _jitter.get().uniform(most / 2, most)
        elapsed_s = time.monotonic() + pause_s - began
        if failures > limits.retries or elapsed_s > limits.max_elapsed_s:
            return False
        return self.patience.sleep(pause_s)

    def _error(self, what: str, failed: RequestError, failures: int, seconds: float) -> ReadError:
        attempts = f"{failures} attempt{'s' if failures != 1 else ''} in {seconds:.1f} s"
        text = f"{what}: {self._shown(failed)} ({attempts}"
        if failed.keyless or failed.failure is StoreFailure.DENIED:
            return AccessDeniedError(
                f"{text}; check the credentials, and whether they have expired)"
            )
        return ReadError(f"{text})")

    def _shown(self, failed: RequestError) -> str:
        """Return a client's message without secrets; cut last, as half a secret is not found."""
        session = self._sessions.get()
        found = session.client[0].secrets if session.client is not None else ()
        text = Redaction({"found": list(found)})(failed.detail)
        return session.redact(text)[:_LONGEST_DETAIL]

    def _client(self, denied: Engine | None = None) -> tuple[Engine, ResolvedOptions]:
        """Return the client and its options, made anew before credentials expire.

        Args:
            denied: A client that was refused, to be replaced unless another thread has done so.
        """
        session = self._sessions.get()
        with session.lock:
            client = session.client
            if client is None or client[0] is denied or client[1].stale:
                client = session.client = self._connect(session)
            return client

    def _connect(self, session: _Session) -> tuple[Engine, ResolvedOptions]:
        resolved = resolve_options(self.access.storage_options)
        before = {"before": session.redact.secrets}
        session.redact = Redaction({**before, **self.signed_urls, **resolved.options})
        try:
            return _connected(self, resolved.options), resolved
        except (OptionError, MissingExtraError) as error:
            kind, text = type(error), session.redact(str(error))
        raise kind(text)

    # --- finding files

    def resolved(self, location: str) -> str:
        if self.protocol != "hf":
            return location
        try:
            return self.request(location, lambda engine: engine.resolved(location))
        except RequestError:
            return location  # it is missing, which listing it will report

    def status(self, path: str) -> DataFileInfo | None:
        if path.endswith("/") and not self._is_web:
            return None  # clients drop the slash, and an object may have the name of the folder
        try:
            return self.request(path, lambda engine: engine.status(path))
        except RequestError as error:
            if error.failure is StoreFailure.MISSING:
                return None
            raise ReadError(f"{path}: {error.detail}") from None

    def glob(self, pattern: str) -> Iterator[tuple[str, DataFileInfo]]:
        parts = pattern.split("/")
        fixed = next(i for i, part in enumerate(parts) if any(c in part for c in _MAGIC))
        root = "/".join(parts[:fixed])
        yield from matching(self.list(root), root, parts[fixed:])

    def list(self, directory: str) -> Iterator[DataFileInfo]:
        """Yield all files below a directory; large ones are listed by subdirectories at once."""
        pending = {in_background(partial(self._entries, directory))}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for entries in [listed.result() for listed in done]:
                asked = []
                for entry in entries:
                    if isinstance(entry, str):
                        pending.add(in_background(partial(self._entries, entry)))
                    elif entry.file_size is None:  # an index page has only names
                        asked.append(in_background(partial(self.status, entry.path)))
                    else:
                        yield entry
                yield from (found for one in asked if (found := one.result()) is not None)

    def _entries(self, directory: str) -> Entries:
        """Return all files below a directory; if there are many, its own files and directories."""
        entries = None if self._is_web else self._pages(directory, recursive=True)
        if entries is None:
            entries = self._pages(directory, recursive=False)
        assert entries is not None
        return _without_markers(entries, directory)

    def _pages(self, directory: str, *, recursive: bool) -> Entries | None:
        """Return the entries of a directory, page by page; a page that fails is requested again.

        If ``recursive``, the result is None for a large directory that has subdirectories.
        """
        found: dict[DataFileInfo | str, None] = {}
        rest: Iterator[DataFileInfo | str] | None = None

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

        start = len(directory.rstrip("/")) + 1
        try:
            while self.request(f"listing {directory}", next_page) == _PAGE:
                is_large = recursive and len(found) > _LISTED_IN_ONE >= len(found) - _PAGE
                if is_large and any("/" in _path(one)[start:] for one in found):
                    return None
        except RequestError as error:
            if error.failure is not StoreFailure.MISSING:
                raise ReadError(f"listing {directory}: {error.detail}") from None
        return list(found)


Store = LocalStore | RemoteStore
"""A place with files."""
Entries = list[DataFileInfo | str]
"""Files, and the paths of directories."""


def _path(entry: DataFileInfo | str) -> str:
    return entry if isinstance(entry, str) else entry.path


def _without_markers(entries: Entries, directory: str) -> Entries:
    """Return entries without the empty objects that some tools put in place of a directory."""
    above = {directory.rstrip("/")}
    for entry in entries:
        path = entry if isinstance(entry, str) else entry.path.rpartition("/")[0]
        while path not in above and "/" in path:
            above.add(path)
            path = path.rpartition("/")[0]
    return [
        one for one in entries if isinstance(one, str) or one.file_size or one.path not in above
    ]


# --- clients


def _connected(store: RemoteStore, options: Mapping[str, Any]) -> Engine:
    """Return a client for a store.

    Clients are imported on demand, because each has threads of its own.

    Args:
        store: The store.
        options: Its options with their current values, by any name that users know.
    """
    protocol, timeout_s = store.protocol, store.access.retry.timeout_s
    if store.access.filesystem is not None:
        return _given(store.access.filesystem, timeout_s)
    if protocol in _WEB:
        from headrace.storage._objects import WebEngine

        return WebEngine(options, timeout_s, store.signed_urls)
    if protocol == "hf":
        from headrace.storage._hub import HubEngine

        return HubEngine(options, timeout_s)
    if protocol in _OBJECT_STORES:
        from headrace.storage._objects import BucketEngine

        return BucketEngine(_OBJECT_STORES[protocol], options, timeout_s)
    from headrace.storage._filesystems import FsspecEngine, filesystem_for

    engine = FsspecEngine(filesystem_for(protocol, options), protocol, timeout_s)
    engine.place = repr(sorted(options.items(), key=str))  # any option may change where files are
    return engine


def _given(filesystem: Any, timeout_s: float) -> Engine:
    """Return a client for a filesystem of fsspec or pyarrow, or for a store of obstore."""
    import fsspec
    import pyarrow.fs

    if isinstance(filesystem, fsspec.AbstractFileSystem | pyarrow.fs.FileSystem):
        from headrace.storage._filesystems import FsspecEngine

        return FsspecEngine(filesystem, "", timeout_s)
    if type(filesystem).__module__.startswith("obstore"):
        from headrace.storage._objects import GivenStore

        return GivenStore(filesystem, timeout_s)
    raise OptionError(
        "filesystem must be a filesystem of fsspec or pyarrow, or a store of obstore, not a "
        f"{type(filesystem).__name__}"
    )
