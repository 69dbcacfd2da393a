"""The faults of the proxy, and the rules that choose the requests they happen to."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer in the server's place; the server never sees the request."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection before the answer, or after its head and `after_bytes` of the body."""

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CutShort:
    """Close the connection after the head and some bytes of the body."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing more after the head and some bytes of the body, until the client closes."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Drip:
    """Send a few bytes every `seconds`: of the body after some of its bytes, or of the head too."""

    seconds: float
    after_bytes: int | None = 0
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class WrongLength:
    """Send a Content-Length that is `by` bytes off (negative: shorter than the body sent)."""

    by: int


@dataclass(frozen=True, slots=True)
class WholeBody:
    """Answer a range request with 200 and the whole object; not for servers that check keys."""


@dataclass(frozen=True, slots=True)
class SlowFirstByte:
    seconds: float


Fault = Answer | Reset | CutShort | Stall | Drip | WrongLength | WholeBody | SlowFirstByte


def error_xml(code: str, message: str = "injected by the proxy of the tests") -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message>"
        "<RequestId>injected</RequestId></Error>"
    ).encode()


def xml_answer(status: int, code: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"Content-Type": "application/xml", **named}, error_xml(code))


INTERNAL_ERROR = xml_answer(500, "InternalError")
SLOW_DOWN = xml_answer(503, "SlowDown")
TOO_MANY_REQUESTS = xml_answer(429, "TooManyRequests")
EXPIRED_TOKEN_403 = xml_answer(403, "ExpiredToken")
EXPIRED_TOKEN_400 = xml_answer(400, "ExpiredToken")


def slow_down(*, retry_after_s: float) -> Answer:
    return xml_answer(503, "SlowDown", Retry_After=f"{retry_after_s:g}")


@dataclass(slots=True)
class Request:
    """A line of the proxy's log. Status 0 means that no answer was sent; `fault` was injected."""

    method: str
    path: str
    query: str
    range: str | None
    key_id: str | None
    if_match: str | None
    at_s: float
    status: int = 0
    body_bytes: int = 0
    fault: Fault | None = None


class Rule:
    """A fault for the first n, every nth, or a random part of the requests that it selects.

    Without `first`, `every` and `probability` the fault happens to all of them. `skip` lets that
    many selected requests pass before counting starts. `path` is a part of the path, `ranged`
    selects requests with (True) or without (False) a Range header, `where` is any other test.
    """

    def __init__(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        path: str | None = None,
        ranged: bool | None = None,
        where: Callable[[Request], bool] | None = None,
        first: int | None = None,
        every: int | None = None,
        probability: float | None = None,
        seed: int = 0,
        skip: int = 0,
    ) -> None:
        self.fault = fault
        self.matches = 0
        self.hits = 0
        self._method, self._path, self._ranged, self._where = method, path, ranged, where
        self._first, self._every, self._probability = first, every, probability
        self._random = random.Random(seed)
        self._skip = skip
        self._lock = threading.Lock()

    def strikes(self, request: Request) -> bool:
        if not self._selects(request):
            return False
        with self._lock:
            self.matches += 1
            struck = self.matches > self._skip and self._is_chosen(self.matches - self._skip)
            self.hits += struck
        return struck

    def _selects(self, request: Request) -> bool:
        return (
            (self._method is None or request.method == self._method)
            and (self._path is None or self._path in request.path)
            and (self._ranged is None or (request.range is not None) == self._ranged)
            and (self._where is None or self._where(request))
        )

    def _is_chosen(self, number: int) -> bool:
        if self._first is not None and number > self._first:
            return False
        if self._every is not None and number % self._every:
            return False
        return self._probability is None or self._random.random() < self._probability
