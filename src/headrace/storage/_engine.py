"""The client of a store: one request at a time, and its errors.

Engines are made in the process that uses them, because they hold connections and threads.
``connect`` chooses one: obstore for S3, Google Cloud Storage, Azure and web servers,
huggingface_hub for the Hugging Face hub, fsspec for all other protocols, or the filesystem that the
user gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from os import environ
from typing import Any, TypeVar

from headrace.errors import OptionError, WorkerError
from headrace.storage._store import FileStatus
from headrace.storage._threads import TooSlowError, within

T = TypeVar("T")

_LEAST_BYTES_PER_S = 8 << 10
"""A slower answer is given up; the documentation of object stores names this number."""


def longest_wait(timeout_s: float, size: int) -> float:
    """Return the seconds after which an answer of ``size`` bytes is given up."""
    return timeout_s + size / _LEAST_BYTES_PER_S


OBJECT_STORES = {
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


class StoreFailure(Enum):
    """The way in which a request failed, which decides how to handle it."""

    MISSING = "there is no such object"
    DENIED = "access was denied"
    CHANGED = "it is not the version that was asked for"
    REFUSED = "it was refused"
    TRANSIENT = "it failed, and may succeed another time"


class RequestError(Exception):
    """A request that failed; it stays inside the library, and users see a ReadError.

    Attributes:
        failure: The way in which it failed.
        detail: The message of the client, which may hold secrets.
        keyless: True if the client could not get credentials.
    """

    def __init__(self, failure: StoreFailure, detail: str, *, keyless: bool = False) -> None:
        super().__init__(failure, detail)
        self.failure = failure
        self.detail = detail
        self.keyless = keyless

    @classmethod
    def of_status(cls, status: int, detail: str) -> RequestError:
        """Return the error for an HTTP status. For an expired token the status may be 400."""
        if status in (404, 410):
            failure = StoreFailure.MISSING
        elif status in (401, 403) or "ExpiredToken" in detail or "TokenRefreshRequired" in detail:
            failure = StoreFailure.DENIED
        elif status == 412:
            failure = StoreFailure.CHANGED
        elif status == 501:
            failure = StoreFailure.REFUSED
        elif status >= 500 or status in (408, 425, 429) or "RequestTimeout" in detail:
            failure = StoreFailure.TRANSIENT
        else:
            failure = StoreFailure.REFUSED
        return cls(failure, detail)


class Engine:
    """A client with native handles: it lives in one process and serves many threads.

    Each call is one request, or one for each page; none is retried. All errors are RequestErrors.
    Paths are whole URLs, or paths of a given filesystem.

    Attributes:
        conditional: True if ``fetch`` itself refuses to return bytes of another version.
        limits_time: True if the client itself gives up an answer that takes too long.
        secrets: Credentials, in the form of options, that the engine found by itself.
        place: Tells apart stores in which the same path may be another file, such as those of two
            endpoints. It does not depend on credentials.
    """

    conditional = False
    limits_time = False
    place = ""
    secrets: Collection[Any] = ()

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def _ask(self, work: Callable[[], T], size: int | None = 0) -> T:
        """Make a request, and give it up if it takes too long.

        Args:
            work: Makes the request.
            size: The number of bytes that are sent or received; None for no limit of time.

        Raises:
            RequestError: The request failed. It has no cause or context, which may hold secrets.
        """
        try:
            if size is None or self.limits_time:
                return work()
            return within(longest_wait(self._timeout_s, size), work)
        except (RequestError, OptionError, WorkerError):
            raise
        except TooSlowError as error:
            failed = RequestError(StoreFailure.TRANSIENT, str(error))
        except Exception as error:  # clients raise what they like
            failed = self._failure(error)
        raise failed

    def _failure(self, error: Exception) -> RequestError:
        """Return the error for an exception of the client."""
        raise NotImplementedError

    def resolved(self, location: str) -> str:
        """Return a location that will always mean what this one means now."""
        return location

    def status(self, path: str) -> FileStatus | None:
        """Return the object at exactly this path, or None if there is none."""
        raise NotImplementedError

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        """Yield the entries of a directory; if not recursive, subdirectories come as their paths.

        Args:
            directory: The directory to list.
            recursive: True to list everything below it, and not only its own entries.
            after: A path. Those up to it may be left out if paths come sorted.
        """
        raise NotImplementedError

    def fetch(self, path: str, start: int, stop: int, etag: str | None, size: int | None) -> Any:
        """Return exactly these bytes of the version with this etag and size, as a buffer."""
        raise NotImplementedError

    def put(self, file: str, path: str) -> None:
        """Send a local file; the object appears when all of it has arrived."""
        raise RequestError(StoreFailure.REFUSED, f"{type(self).__name__} only reads")

    def delete(self, path: str) -> None:
        """Remove an object."""
        raise RequestError(StoreFailure.REFUSED, f"{type(self).__name__} only reads")


def complete(data: Any, size: int) -> Any:
    """Return the bytes of an answer, or raise a RequestError unless there are ``size`` of them."""
    if len(data) != size:
        raise RequestError(StoreFailure.TRANSIENT, f"{len(data)} bytes came, and not {size}")
    return data


def connect(
    protocol: str,
    options: Mapping[str, Any],
    timeout_s: float,
    *,
    signed_urls: Mapping[str, str],
    filesystem: Any = None,
) -> Engine:
    """Return a client for a protocol, or for a filesystem that the user gives.

    Clients are imported on demand, because each has threads of its own.

    Args:
        protocol: The part of a URL before ``://``.
        options: Options of the store, by any name that users know.
        timeout_s: Seconds that a server may be silent.
        signed_urls: URLs with their secrets, by the URLs that are shown.
        filesystem: A filesystem of fsspec or pyarrow, or a store of obstore.
    """
    if filesystem is not None:
        return _given(filesystem, timeout_s)
    if protocol in ("http", "https"):
        from headrace.storage._objects import WebEngine

        return WebEngine(options, timeout_s, signed_urls)
    if protocol == "hf":
        from headrace.storage._hub import HubEngine

        return HubEngine(options, timeout_s)
    kind = OBJECT_STORES.get(protocol)
    emulator = options.get("endpoint_url") or environ.get("STORAGE_EMULATOR_HOST")
    if kind is not None and not (kind == "gcs" and emulator):
        from headrace.storage._objects import BucketEngine

        return BucketEngine(kind, options, timeout_s)
    from headrace.storage._filesystems import FsspecEngine, filesystem_for
    from headrace.storage._options import gcsfs_options

    options = gcsfs_options(options) if kind is not None else options
    engine = FsspecEngine(filesystem_for(protocol, options), protocol, timeout_s)
    # Any option may change where files are; for an emulator it is its address.
    engine.place = str(emulator) if kind is not None else repr(sorted(options.items(), key=str))
    return engine


def _given(filesystem: Any, timeout_s: float) -> Engine:
    import fsspec
    import pyarrow.fs

    if isinstance(filesystem, fsspec.AbstractFileSystem | pyarrow.fs.FileSystem):
        from headrace.storage._filesystems import FsspecEngine

        return FsspecEngine(filesystem, "", timeout_s)
    if type(filesystem).__module__.startswith("obstore"):
        from headrace.storage._objects import StoreEngine

        return StoreEngine(filesystem, timeout_s)
    raise OptionError(
        "filesystem must be a filesystem of fsspec or pyarrow, or a store of obstore, not a "
        f"{type(filesystem).__name__}"
    )
