"""Clients of stores: one request at a time, and the errors of requests.

Retries, credentials and caches are the business of the ``RemoteStore`` that uses a client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any, TypeVar

from headrace.errors import HeadraceError
from headrace.model import DataFileInfo
from headrace.storage._threads import NativeLibrary, within

T = TypeVar("T")

_LEAST_BYTES_PER_S = 8 << 10
"""A slower answer is given up; the documentation of object stores names this number."""


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
    def of_status(cls, status: int, detail: str, *, keyless: bool = False) -> RequestError:
        """Return the error for an HTTP status. For an expired token the status may be 400."""
        if status in (404, 410):
            failure = StoreFailure.MISSING
        elif status in (401, 403) or "ExpiredToken" in detail or "TokenRefreshRequired" in detail:
            failure = StoreFailure.DENIED
        elif status == 412:
            failure = StoreFailure.CHANGED
        elif (
            (status >= 500 and status != 501)
            or status in (408, 425, 429)
            or "RequestTimeout" in detail
        ):
            failure = StoreFailure.TRANSIENT
        else:
            failure = StoreFailure.REFUSED
        return cls(failure, detail, keyless=keyless)


class Engine:
    """A client with native handles: it lives in one process and serves many threads.

    Each call is one request, or one for each page; none is retried. Paths are whole URLs, or paths
    of a given filesystem. Calls raise what the client raises; ``call`` translates that.

    Attributes:
        secrets: Credentials, in the form of options, that the engine found by itself.
        place: Tells apart stores in which the same path may be another file, such as those of two
            endpoints. It does not depend on credentials.
        library: The library of the client, if it does not survive a fork.
    """

    secrets: Collection[Any] = ()
    place = ""
    library: NativeLibrary | None = None

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of some calls; errors of the client become RequestErrors."""
        if self.library is not None:
            self.library.use()
        try:
            return work()
        except (RequestError, HeadraceError):
            raise
        except Exception as error:  # clients raise what they like
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> RequestError:
        """Return the error for an exception of the client."""
        raise NotImplementedError

    def _in_time(self, work: Callable[[], T], size: int = 0) -> T:
        """Return the result of a call that the client itself does not give up.

        Args:
            work: Makes one request.
            size: The number of bytes that are sent or received.

        Raises:
            TimeoutError: The request took too long.
        """
        return within(longest_wait(self._timeout_s, size), work)

    def resolved(self, location: str) -> str:
        """Return a location that will always mean what this one means now."""
        return location

    def status(self, path: str) -> DataFileInfo | None:
        """Return the object at exactly this path, or None if there is none."""
        raise NotImplementedError

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[DataFileInfo | str]:
        """Yield the entries of a directory; if not recursive, subdirectories come as their paths.

        Args:
            directory: The directory to list.
            recursive: True to list everything below it, and not only its own entries.
            after: A path. Those up to it may be left out if paths come sorted.
        """
        raise NotImplementedError

    def fetch(self, file: DataFileInfo, start: int, stop: int) -> Any:
        """Return exactly these bytes of a file, as a buffer.

        Raises:
            RequestError: CHANGED if the file no longer has the size and the etag that are given.
        """
        raise NotImplementedError

    def put(self, file: str, path: str) -> None:
        """Send a local file; the object appears when all of it has arrived."""
        raise RequestError(StoreFailure.REFUSED, f"{type(self).__name__} only reads")

    def delete(self, path: str) -> None:
        """Remove an object."""
        raise RequestError(StoreFailure.REFUSED, f"{type(self).__name__} only reads")


def longest_wait(timeout_s: float, size: int) -> float:
    """Return the seconds after which an answer of ``size`` bytes is given up."""
    return timeout_s + size / _LEAST_BYTES_PER_S


def complete(data: Any, size: int) -> Any:
    """Return the bytes of an answer, or raise a RequestError unless there are ``size`` of them."""
    if len(data) != size:
        raise RequestError(StoreFailure.TRANSIENT, f"{len(data)} bytes came, and not {size}")
    return data
