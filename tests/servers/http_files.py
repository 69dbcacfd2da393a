"""An HTTP file server for the tests: ranges, conditions, index pages, users, redirects."""

from __future__ import annotations

import base64
import hashlib
import html
import time
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote, unquote

from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.ranges import UnsatisfiableRange, parse_range
from servers.wire import Head


@dataclass(frozen=True, slots=True)
class Stored:
    body: bytes
    etag: str
    modified_s: float


@dataclass(slots=True)
class Access:
    """The users and tokens that may read. If both are empty, every request may."""

    users: dict[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def lets_in(self, authorization: str | None) -> bool:
        if not self.users and not self.tokens:
            return True
        scheme, _, rest = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            return rest in self.tokens
        if scheme.lower() == "basic":
            user, _, password = base64.b64decode(rest).decode().partition(":")
            return user in self.users and self.users[user] == password
        return False


class HttpServer(AnsweringServer):
    """Files in memory by path ("/folder/name"), served by threads of this process.

    Requests without one of `users` or `tokens` of `access` get 401. `redirects` maps a path to its
    new location (path or URL; 302). `log` has one entry for each request.
    """

    def __init__(self) -> None:
        self.files: dict[str, Stored] = {}
        self.redirects: dict[str, str] = {}
        self.access = Access()
        self.sends_etag = True
        self.sends_time = True
        super().__init__(self._find)

    def put(self, path: str, body: bytes) -> str:
        """Write or replace a file, and return its URL."""
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        self.files["/" + path.lstrip("/")] = Stored(body, etag, time.time())
        return f"{self.url}/{quote(path.lstrip('/'))}"

    def delete(self, path: str) -> None:
        del self.files["/" + path.lstrip("/")]

    def _find(self, request: HttpRequest) -> Reply:
        path = unquote(request.target.partition("?")[0])
        if request.method not in ("GET", "HEAD"):
            return 405, {"Allow": "GET, HEAD"}, b""
        if not self.access.lets_in(request.authorization):
            return 401, {"WWW-Authenticate": 'Basic realm="tests"'}, b"who are you?"
        if path in self.redirects:
            return 302, {"Location": self.redirects[path]}, b""
        if path in self.files:
            status, headers, body = respond_with(
                self.files[path], request.head, sends_etag=self.sends_etag
            )
            if not self.sends_time:
                headers.pop("Last-Modified")
            return status, headers, body
        page = self._index(path)
        if page is None:
            return 404, {}, b"no such file"
        return 200, {"Content-Type": "text/html; charset=utf-8"}, page

    def _index(self, path: str) -> bytes | None:
        """Return a page with a link to each entry of the folder, or None if it has none."""
        folder = path.rstrip("/") + "/"
        inside = (name[len(folder) :] for name in list(self.files) if name.startswith(folder))
        names = sorted({rest.partition("/")[0] + "/" * ("/" in rest) for rest in inside})
        if not names:
            return None
        links = "\n".join(f'<a href="{quote(name)}">{html.escape(name)}</a>' for name in names)
        title = f"<title>Index of {html.escape(folder)}</title>"
        return f"<html><head>{title}</head><body>\n{links}\n</body></html>".encode()


def respond_with(
    stored: Stored, head: Head, *, sends_etag: bool = True, more: dict[str, str] | None = None
) -> Reply:
    """Return status, headers and body: the file, the requested part, or an error."""
    headers = {
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
        "Last-Modified": formatdate(stored.modified_s, usegmt=True),
        **(more or {}),
    }
    if sends_etag:
        headers.setdefault("ETag", stored.etag)
    if not _matches(head.value(b"if-match"), stored.etag):
        return 412, headers, b""
    if _is_newer(stored, head.value(b"if-unmodified-since")):
        return 412, headers, b""
    range_header = head.value(b"range")
    if range_header is None or not _range_still_holds(stored, head.value(b"if-range")):
        return 200, headers, stored.body
    try:
        part = parse_range(range_header, len(stored.body))
    except UnsatisfiableRange:
        return 416, {**headers, "Content-Range": f"bytes */{len(stored.body)}"}, b""
    if part is None:
        return 200, headers, stored.body
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(stored.body)}"
    return 206, headers, stored.body[part.start : part.stop]


def _matches(condition: str | None, etag: str) -> bool:
    return condition is None or condition == "*" or etag in condition


def _is_newer(stored: Stored, since: str | None) -> bool:
    return since is not None and int(stored.modified_s) > parsedate_to_datetime(since).timestamp()


def _range_still_holds(stored: Stored, condition: str | None) -> bool:
    if condition is None:
        return True
    if condition.startswith('"'):
        return condition == stored.etag
    return not _is_newer(stored, condition)
