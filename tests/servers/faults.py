"""What can go wrong with a request, and which requests it happens to."""

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
    """RST. Before a byte of the answer, or after its head and so many bytes of the body."""

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CutShort:
    """FIN after the head and so many bytes of the body."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing more after the head and so many bytes of the body, until the client closes."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Drip:
    """A few bytes every `seconds`: of the body after so many of its bytes, or of the head too."""

    seconds: float
    after_bytes: int | None = 0
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class WrongLength:
    """A Content-Length that is `by` bytes off (negative: shorter than the body that is sent)."""

    by: int


@dataclass(frozen=True, slots=True)
class WholeBody:
    """200 and the whole object to a range request; not for servers that check who signed it."""


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
    """One line of the proxy's log. Status 0: no answer was sent. `fault` is what was injected."""

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

    With none of `first`, `every` and `probability` it happens to all of them. `skip` lets so many
    of the selected ones pass before counting starts. `path` is a part of the path, `ranged`
    selects requests with (True) or without (False) a Range, `where` is any other test.
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
        self.seen = 0
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
            self.seen += 1
            struck = self.seen > self._skip and self._is_chosen(self.seen - self._skip)
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
