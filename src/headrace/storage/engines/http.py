"""Files of web servers, by ranges."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from headrace.errors import OptionError
from headrace.storage.engines.http_client import Answer, HttpClient
from headrace.storage.engines.protocol import Failure, RequestError
from headrace.storage.options.names import Names
from headrace.storage.store import UNKNOWN_SIZE, FileStatus

__all__ = ["HttpEngine"]

_NAMES = Names(
    "HTTP",
    headers="headers",
    auth="auth",
    token="token bearer_token",
    verify="verify",
    client_kwargs="client_kwargs",
    signed="signed_urls",
)
_COMPRESSED = (".gz", ".gzip", ".tgz", ".bz2", ".zst", ".br", ".xz")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class HttpEngine:
    """Plain web servers: a HEAD tells the size, and GETs fetch ranges.

    A directory is what its index page links to.
    """

    conditional = True
    secrets: Collection[Any] = ()

    def __init__(self, options: Mapping[str, Any], timeout_s: float) -> None:
        found = _NAMES.meant(options)
        found = {**_NAMES.meant(found.pop("client_kwargs", {}), "['client_kwargs']"), **found}
        headers = dict(found.get("headers", {}))
        if "token" in found:
            headers["Authorization"] = f"Bearer {found['token']}"
        self._client = HttpClient(timeout_s, headers=headers, verify=found.get("verify"))
        self._signed: Mapping[str, str] = found.get("signed", {})
        self._logins = _logins(self._signed.values(), found.get("auth"))

    def resolved(self, location: str) -> str:
        return location

    def status(self, path: str) -> FileStatus | None:
        url = self._url(path)
        try:
            answer = self._client.send("HEAD", url, {})
        except RequestError as error:
            if error.failure is Failure.MISSING or error.failure is Failure.TRANSIENT:
                raise
            answer = None  # signed for GET alone, or not allowed
        if answer is not None:
            self._client.drop(answer)
            length = _length(answer)
            if length is not None and "text/html" not in (answer.header("Content-Type") or ""):
                return FileStatus(path, length, _mark(answer))
            if urlsplit(path).path.endswith("/"):
                return None
        return self._status_by_get(path, url)

    def _status_by_get(self, path: str, url: str) -> FileStatus | None:
        try:
            answer = self._client.send("GET", url, {"Range": "bytes=0-0"})
        except RequestError as error:
            if "HTTP 416" not in error.detail:
                raise
            answer = self._client.send("GET", url, {})  # an empty file has no first byte
        self._client.drop(answer)
        found = _CONTENT_RANGE.fullmatch(answer.header("Content-Range") or "")
        if answer.status == 206 and found and found[3] != "*":
            return FileStatus(path, int(found[3]), _mark(answer))
        if "text/html" in (answer.header("Content-Type") or ""):
            return None  # an index page, or what a site shows instead of nothing
        length = _length(answer)
        if length is None:
            raise RequestError(Failure.REFUSED, "its size is not known, so parts cannot be read")
        return FileStatus(path, length, _mark(answer))

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        root = directory.rstrip("/") + "/"
        pending = [root]
        seen = set(pending)
        while pending:
            files, directories = self._links(pending.pop())
            yield from (FileStatus(path, UNKNOWN_SIZE, None) for path in files)
            fresh = [path for path in directories if path not in seen]
            if not recursive:
                yield from (path.rstrip("/") for path in fresh)
                return
            seen.update(fresh)
            pending.extend(fresh)

    def _links(self, directory: str) -> tuple[list[str], list[str]]:
        """Files and directories that an index page links to, right below it."""
        answer = self._client.send("GET", self._url(directory), {})
        if "text/html" not in (answer.header("Content-Type") or ""):
            self._client.drop(answer)
            return [], []
        page = _Links()
        page.feed(self._client.read_all(answer).decode("utf-8", "replace"))
        below = set()
        for link in page.found:
            url = urljoin(directory, link).partition("#")[0]
            above, _, name = url.rstrip("/").rpartition("/")
            if unquote(above) == unquote(directory.rstrip("/")) and name and "?" not in url:
                name = re.sub("%3D", "=", name, flags=re.IGNORECASE)  # as partitions are named
                below.add(directory + name + "/" * url.endswith("/"))
        return (
            sorted(url for url in below if not url.endswith("/")),
            sorted(url for url in below if url.endswith("/")),
        )

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        return self._fetch(self._url(path), start, stop, etag, size)

    def _fetch(
        self,
        url: str,
        start: int,
        stop: int,
        etag: str | None,
        size: int | None,
        client: HttpClient | None = None,
    ) -> Any:
        client = client or self._client
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if etag is not None and etag.startswith('"'):
            headers["If-Match"] = etag
        try:
            answer = client.send("GET", url, headers)
        except RequestError as error:
            if "HTTP 416" in error.detail:
                raise RequestError(Failure.CHANGED, "it is shorter by now") from None
            raise
        if etag is not None and _mark(answer) not in (None, etag):
            client.drop(answer)
            raise RequestError(Failure.CHANGED, "it has another etag by now")
        if size is not None and _whole_length(answer) not in (None, size):
            client.drop(answer)
            raise RequestError(Failure.CHANGED, "it has another size by now")
        return self._read(client, answer, start, stop)

    def _read(self, client: HttpClient, answer: Answer, start: int, stop: int) -> bytearray:
        """The bytes that were asked for, of an answer that may be another or hold more."""
        try:
            _check_encoding(answer)
            skip = _skipped(answer, start, stop)
        except RequestError:
            client.drop(answer)
            raise
        return client.read(answer, stop - start, skip=skip)

    def _url(self, path: str) -> str:
        """The URL to ask, with what must not be shown."""
        if path in self._signed:
            return self._signed[path]
        parts = urlsplit(path)
        login = self._logins.get(parts.netloc, self._logins.get(""))
        return path if login is None else parts._replace(netloc=f"{login}@{parts.netloc}").geturl()


def _check_encoding(answer: Answer) -> None:
    """Whether bytes are those of the file. One that is compressed itself may be sent as such."""
    encoding = (answer.header("Content-Encoding") or "identity").strip().lower()
    if encoding == "identity" or urlsplit(answer.url).path.lower().endswith(_COMPRESSED):
        return
    detail = f"the server sends it compressed ({encoding[:20]}), so parts cannot be read"
    raise RequestError(Failure.REFUSED, detail)


def _skipped(answer: Answer, start: int, stop: int) -> int:
    """Bytes before those that were asked for: all of them, if a server sends the whole file."""
    if answer.status == 206:
        found = _CONTENT_RANGE.fullmatch(answer.header("Content-Range") or "")
        if found is None or int(found[1]) != start or int(found[2]) < stop - 1:
            said = answer.header("Content-Range")
            detail = f"bytes {start}-{stop - 1} were asked for, and {said} came"
            raise RequestError(Failure.TRANSIENT, detail)
        return 0
    return start


def _mark(answer: Answer) -> str | None:
    etag = answer.header("ETag")
    if etag is not None:
        return etag
    changed = answer.header("Last-Modified")
    try:
        return None if changed is None else parsedate_to_datetime(changed).isoformat()
    except ValueError:
        return changed


def _whole_length(answer: Answer) -> int | None:
    """The size of a file of which a part came, or all."""
    if answer.status != 206:
        return _length(answer)
    found = _CONTENT_RANGE.fullmatch(answer.header("Content-Range") or "")
    return int(found[3]) if found is not None and found[3] != "*" else None


def _length(answer: Answer) -> int | None:
    length = answer.header("Content-Length") or ""
    return int(length) if length.isdecimal() else None


def _logins(urls: Any, auth: Any) -> dict[str, str]:
    """``user:password`` by host; that of the options holds for every host."""
    found = {}
    if auth is not None:
        user, _, password = ":".join(auth).partition(":") if _is_pair(auth) else ("", "", "")
        if not user:
            raise OptionError("storage option 'auth' for HTTP must be a user and a password")
        found[""] = f"{quote(user, safe='')}:{quote(password, safe='')}"
    for url in urls:
        userinfo, _, host = urlsplit(url).netloc.rpartition("@")
        if userinfo:
            found[host] = userinfo
    return found


def _is_pair(auth: Any) -> bool:
    return isinstance(auth, tuple | list) and all(isinstance(part, str) for part in auth)


class _Links(HTMLParser):
    """Collects what a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser for each tag."""
        self.found.extend(value for name, value in attrs if tag == "a" and name == "href" and value)
