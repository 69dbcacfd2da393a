"""Requests over HTTP/1.1 by connections that are kept, from any number of threads."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import weakref
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from headrace.errors import OptionError
from headrace.storage.engines.protocol import Failure, RequestError
from headrace.storage.options.names import is_url
from headrace.storage.pace import PacedResponse, TooSlowError

__all__ = ["Answer", "HttpClient"]

_MOST_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_SHOWN_BYTES = 64 << 10
_SKIPPED_AT_ONCE = 1 << 20
_KEPT_CONNECTIONS = 64
_SAFE = "%/:=&?~#+!$,;'@()*[]"
_BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent, with the body still to be read."""

    url: str
    """where it came from, after redirects"""
    status: int
    headers: Mapping[str, str]
    response: http.client.HTTPResponse
    connection: http.client.HTTPConnection
    place: tuple[str, str]
    """scheme and host that it is kept for"""

    def header(self, name: str) -> str | None:
        """A header, by its name in any case."""
        return self.response.getheader(name)


class HttpClient:
    """A pool of connections. ``get`` gives the connection back once the body has been read."""

    def __init__(self, timeout_s: float, *, headers: Mapping[str, str], verify: Any = None) -> None:
        self._timeout_s = timeout_s
        _check(headers)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "headrace", **headers}
        self._tls = ssl.create_default_context(cafile=None if verify in (None, False) else verify)
        if verify is False:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Answer:
        """The answer to a request, redirects followed; an error status is a RequestError.

        Credentials are not sent on to another host.
        """
        private = {"authorization", *(name.lower() for name in self._headers)} - _HARMLESS
        sent = {**self._headers, **headers}
        url, login = _without_login(url)
        if login and "authorization" not in {name.lower() for name in sent}:
            sent["Authorization"] = login
        first = urlsplit(url)
        for _ in range(_MOST_REDIRECTS):
            answer = self._ask(method, url, sent, body)
            where = answer.header("Location")
            if answer.status not in _REDIRECTS or where is None:
                return self._checked(answer)
            self.drop(answer)
            url, _ = _without_login(_joined(url, where))
            now = urlsplit(url)
            if now.netloc != first.netloc or (first.scheme, now.scheme) == ("https", "http"):
                sent = {name: text for name, text in sent.items() if name.lower() not in private}
        raise RequestError(Failure.REFUSED, f"more than {_MOST_REDIRECTS} redirects")

    def read(self, answer: Answer, length: int, *, skip: int = 0) -> bytearray:
        """Bytes of the body; too few of them are an error."""
        data = bytearray(length)
        try:
            while skip and (dropped := answer.response.read(min(skip, _SKIPPED_AT_ONCE))):
                skip -= len(dropped)
            view = memoryview(data)[: 0 if skip else length]
            while view and (count := answer.response.readinto(view)):
                view = view[count:]
        except _BROKEN as error:
            self.drop(answer)
            raise _transient(error) from None
        if skip or view:
            self.drop(answer)
            raise RequestError(Failure.TRANSIENT, "the body ended too early")
        self._give_back(answer)
        return data

    def read_all(self, answer: Answer) -> bytes:
        """The whole body."""
        try:
            data = answer.response.read()
        except _BROKEN as error:
            self.drop(answer)
            raise _transient(error) from None
        self._give_back(answer)
        return data

    def drop(self, answer: Answer) -> None:
        """Let go of an answer whose body nobody wants."""
        answer.connection.close()
        answer.response.close()

    def _checked(self, answer: Answer) -> Answer:
        if answer.status < 400:
            return answer
        try:
            body = answer.response.read(_SHOWN_BYTES)
        except _BROKEN:
            body = b""
        said = " ".join(body.decode("utf-8", "replace").split())
        detail = f"HTTP {answer.status} {answer.response.reason}{': ' if said else ''}{said}"
        self.drop(answer)
        raise RequestError.of_status(answer.status, detail, _seconds(answer.header("Retry-After")))

    def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        parts = urlsplit(url)
        host = parts.netloc
        target = quote(parts.path or "/", _SAFE) + (f"?{parts.query}" if parts.query else "")
        connection = self._connection(parts.scheme, host)
        if connection.host.lower() != (parts.hostname or "") and parts.scheme == "http":
            target = f"http://{host}{target}"  # a proxy is told the whole
        try:
            connection.request(method, target, body, dict(headers))
            response = connection.getresponse()
        except _BROKEN as error:
            connection.close()
            raise _transient(error) from None
        place = parts.scheme, host
        return Answer(
            url, response.status, dict(response.getheaders()), response, connection, place
        )

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        """One that is kept and that the server has not closed meanwhile, or a new one."""
        while True:
            with self._lock:
                idle = self._idle.get((scheme, host))
                kept = idle.pop() if idle else None
            if kept is None:
                return self._new_connection(scheme, host)
            if kept.sock is not None and not _has_news(kept.sock):
                return kept
            kept.close()

    def _new_connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        proxy = None if proxy_bypass(host) else getproxies().get(scheme)
        place = urlsplit(proxy).netloc.rpartition("@")[2] if proxy else host
        connection: http.client.HTTPConnection
        if scheme == "https":
            connection = http.client.HTTPSConnection(
                place, timeout=self._timeout_s, context=self._tls
            )
            if proxy:
                connection.set_tunnel(host)
        else:
            connection = http.client.HTTPConnection(place, timeout=self._timeout_s)
        connection.response_class = PacedResponse
        return connection

    def _give_back(self, answer: Answer) -> None:
        connection, place = answer.connection, answer.place
        if answer.response.will_close or not answer.response.isclosed():
            self.drop(answer)
            return
        with self._lock:
            idle = self._idle.setdefault(place, [])
            if len(idle) < _KEPT_CONNECTIONS:
                idle.append(connection)
                return
        connection.close()


_HARMLESS = {"accept-encoding", "user-agent", "range", "if-match"}


def _close_all(idle: Mapping[Any, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()


def _has_news(sock: socket.socket) -> bool:
    """Whether a server has sent something that nobody asked for: as a rule, that it closes."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _check(headers: Mapping[str, str]) -> None:
    """What cannot be sent is said without showing it."""
    for name, value in headers.items():
        if not isinstance(value, str):
            raise OptionError(f"the header {name!r} must be a str, not a {type(value).__name__}")
        if not value.isprintable() or not all(ord(character) < 256 for character in value):
            raise OptionError(
                f"the header {name!r} holds characters that cannot be sent, such as a line break"
            )


def _joined(url: str, where: str) -> str:
    """Where a redirect leads."""
    try:
        joined = urljoin(url, where)
    except ValueError:
        joined = ""
    if not is_url(joined):
        raise RequestError(Failure.REFUSED, "it redirects to what is no URL")
    return joined


def _without_login(url: str) -> tuple[str, str | None]:
    """A URL without user and password, and the header that says them."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    login = b64encode(unquote(userinfo).encode()).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {login}" if userinfo else None


def _transient(error: BaseException) -> RequestError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return RequestError(Failure.REFUSED, f"its certificate is not good: {error.verify_message}")
    if isinstance(error, TooSlowError):
        return RequestError(Failure.TRANSIENT, str(error))
    if isinstance(error, socket.timeout):
        return RequestError(Failure.TRANSIENT, "time-out: the server was silent for too long")
    text = str(error) or type(error).__name__
    return RequestError(Failure.TRANSIENT, f"{type(error).__name__}: {text}")


def _seconds(retry_after: str | None) -> float | None:
    """A number of seconds, or a date."""
    if retry_after is None:
        return None
    try:
        return max(float(retry_after), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(retry_after).timestamp() - time(), 0.0)
    except ValueError:
        return None
