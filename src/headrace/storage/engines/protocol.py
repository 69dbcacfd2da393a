"""What a client of one kind of store has to answer, and how it fails."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from ssl import SSLError
from typing import Any, Protocol, runtime_checkable

from headrace.storage.store import FileStatus

__all__ = ["Engine", "Failure", "RequestError", "WritingEngine"]

_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
    IsADirectoryError,
    NotADirectoryError,
)
"""what a filesystem raises in vain however often it is asked; other errors may be of the moment"""


class Failure(Enum):
    """What came of a request, and so what to do about it."""

    MISSING = "there is no such object"
    DENIED = "access was denied"
    CHANGED = "it is not the version that was asked for"
    REFUSED = "it was refused"
    TRANSIENT = "it failed, and may succeed another time"


class RequestError(Exception):
    """A request that failed. Stays inside this room; users see a ReadError."""

    def __init__(
        self,
        failure: Failure,
        detail: str,
        retry_after_s: float | None = None,
        *,
        keyless: bool = False,
    ) -> None:
        super().__init__(failure, detail, retry_after_s)
        self.failure = failure
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.keyless = keyless
        """whether it is credentials that could not be got"""

    @classmethod
    def of_status(
        cls, status: int, detail: str, retry_after_s: float | None = None
    ) -> RequestError:
        """What an HTTP status means. An expired token may come as a 400."""
        if status in (404, 410):
            failure = Failure.MISSING
        elif status in (401, 403) or "ExpiredToken" in detail or "TokenRefreshRequired" in detail:
            failure = Failure.DENIED
        elif status == 412:
            failure = Failure.CHANGED
        elif status == 501:
            failure = Failure.REFUSED
        elif status >= 500 or status in (408, 425, 429) or "RequestTimeout" in detail:
            failure = Failure.TRANSIENT
        else:
            failure = Failure.REFUSED
        return cls(failure, detail, retry_after_s)

    @classmethod
    def of_client(cls, error: Exception, detail: str) -> RequestError:
        """What an exception means of a client that raises what it likes."""
        status = getattr(error, "status", getattr(error, "code", None))
        if isinstance(status, int) and 400 <= status < 600:
            return cls.of_status(status, detail)
        if type(error).__name__.endswith("CredentialsError"):  # of botocore, and of Google's
            return cls(Failure.DENIED, detail)
        # A certificate that is not good is both an OSError and a ValueError.
        mistaken = isinstance(error, _MISTAKES) and not isinstance(error, SSLError)
        return cls(Failure.REFUSED if mistaken else Failure.TRANSIENT, detail)


class Engine(Protocol):
    """A client with native handles: lives in one process, serves many threads.

    Each call is one request, or as few as there are pages; none is tried twice. All failures
    are RequestErrors. Paths are whole URLs.
    """

    @property
    def conditional(self) -> bool:
        """Whether ``fetch`` itself refuses to give bytes of another version."""
        ...

    @property
    def secrets(self) -> Collection[Any]:
        """Credentials that it has from elsewhere, as or in options, and that must not be shown."""
        ...

    def resolved(self, location: str) -> str:
        """What a location means now, where it may mean something else later."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """The object at exactly this path, if there is one."""
        ...

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        """What is below a directory; if not recursive, directories come as their paths.

        Those up to ``after``, the path of one of them, may be left out where order is that of
        paths.
        """
        ...

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        """Exactly these bytes of that version, of that size, as anything with a buffer."""
        ...


@runtime_checkable
class WritingEngine(Protocol):
    """A client that can also write. Failures are RequestErrors here too."""

    def put(self, file: str, path: str) -> None:
        """Send a file of this machine; it is there under its path when all of it has arrived."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object."""
        ...
