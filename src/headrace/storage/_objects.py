"""Read S3, Google Cloud Storage, Azure and web servers with obstore.

Only the synchronous methods of obstore are used, in threads of the library: a process that exits
while its asynchronous methods run aborts. Retries of obstore are off, because the library counts
its own.
"""

from __future__ import annotations

import os
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import lru_cache, partial
from html.parser import HTMLParser
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import obstore
from obstore import exceptions
from obstore.store import HTTPStore

from headrace.model import DataFileInfo
from headrace.storage._engine import (
    Engine,
    RequestError,
    StoreFailure,
    complete,
    longest_wait,
)
from headrace.storage._options import (
    bucket_region,
    http_options,
    new_store,
    refuse_wrong_options,
    store_options,
)
from headrace.storage._threads import NativeLibrary

_OBSTORE = NativeLibrary("an object store or a web server")
_PAGE = 1000
_MOST_STORES = 128
"""Largest number of stores with their own connections that are kept; each signed URL has one."""
_NO_RETRY = {"max_retries": 0, "retry_timeout": timedelta(0)}


class ObstoreEngine(Engine):
    """Reads and writes with stores of obstore, which are made on first use.

    The least recently used stores are dropped.
    """

    library = _OBSTORE

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._lock = threading.Lock()
        self._stores = lru_cache(_MOST_STORES)(self._with_limits)

    def _make(self, name: Any, client: dict[str, Any]) -> Any:
        """Return a store for a bucket or URL, with some client options."""
        raise NotImplementedError

    def _store(self, name: Any, size: int) -> Any:
        """Return the store of a bucket or URL for answers of some size.

        obstore limits the time of an answer by an option of the store. So there is one store for
        answers of up to 1 KiB, one for up to 4 KiB, for up to 16 KiB, and so on.
        """
        bits = max(size - 1, 0).bit_length()
        with self._lock:
            try:
                return self._stores(name, bits + bits % 2)
            except (exceptions.BaseError, TypeError, ValueError) as error:
                raise RequestError(StoreFailure.REFUSED, _detail(error)) from None

    def _with_limits(self, name: Any, bits: int) -> Any:
        silence = timedelta(seconds=self._timeout_s)
        limit = timedelta(seconds=longest_wait(self._timeout_s, 1 << bits))
        limits = {"connect_timeout": silence, "read_timeout": silence, "timeout": limit}
        return self._make(name, limits)

    def _place(self, path: str, size: int = 0) -> tuple[Any, str, str]:
        """Return the store of a path, its key in the store, and the text before the key.

        Args:
            path: The object.
            size: The number of bytes that are sent or received.
        """
        raise NotImplementedError

    def status(self, path: str) -> DataFileInfo | None:
        store, key, root = self._place(path)
        return _status(root, obstore.head(store, key)) if key else None

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[DataFileInfo | str]:
        store, key, root = self._place(directory)
        if not recursive:
            found = obstore.list_with_delimiter(store, key or None)
            yield from (_status(root, meta) for meta in found["objects"])
            yield from (root + prefix for prefix in found["common_prefixes"])
            return
        offset = after.removeprefix(root) or None
        for page in store.list(key or None, offset=offset, chunk_size=_PAGE):
            yield from (_status(root, meta) for meta in page)

    def fetch(self, file: DataFileInfo, start: int, stop: int) -> Any:
        answer = self._get(file, stop - start, range=(start, stop))
        return complete(answer.bytes(), stop - start)

    def _get(self, file: DataFileInfo, wanted: int = 0, **how: Any) -> Any:
        """Return the answer to a GET.

        Args:
            file: The object; if it has an etag or a size, the answer must have the same.
            wanted: The number of bytes of the answer that are read.
            how: Options of the request.
        """
        store, key, _ = self._place(file.path, wanted)
        if file.etag is not None and file.etag.startswith('"'):
            how["if_match"] = file.etag
        answer = obstore.get(store, key, options=how)
        self._check(answer, file.etag, file.file_size)
        return answer

    def _check(self, answer: Any, etag: str | None, size: int | None) -> None:
        """Raise an error if an answer is of another version than the requested one."""
        if etag is not None and _mark(answer.meta) != etag:
            raise RequestError(StoreFailure.CHANGED, "it has another etag by now")
        if size is not None and int(answer.meta["size"]) != size:
            raise RequestError(StoreFailure.CHANGED, "it has another size by now")

    def put(self, file: str, path: str) -> None:
        store, key, _ = self._place(path, os.path.getsize(file))
        _writing(obstore.put, store, key, Path(file))

    def delete(self, path: str) -> None:
        store, key, _ = self._place(path)
        _writing(obstore.delete, store, key)

    def _failure(self, error: Exception) -> RequestError:
        return _request_error(error)


class GivenStore(ObstoreEngine):
    """A store of obstore that a user gives; paths are those of the store."""

    def __init__(self, store: Any, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._given = store
        self.secrets = [getattr(store, "config", None)]

    def _place(self, path: str, size: int = 0) -> tuple[Any, str, str]:
        return self._given, path.strip("/"), ""


class BucketEngine(ObstoreEngine):
    """Reads and writes object stores, with a store of obstore for each bucket or container."""

    def __init__(self, kind: str, options: Mapping[str, Any], timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._kind = kind
        self._options = store_options(kind, options)
        known = {"account_name": environ.get("AZURE_STORAGE_ACCOUNT_NAME"), **self._options.config}
        names = ("endpoint", "base_url", "account_name")
        self.place = " ".join(str(known.get(name)) for name in names)
        keys = self._options.keys
        self.secrets = keys.secrets if keys is not None else ()

    def _make(self, name: str, client: dict[str, Any]) -> Any:
        """Return a store for a bucket, or for ``container@account.dfs.core.windows.net``."""
        config = self._options.config
        if self._kind == "s3" and not config.keys() & {"region", "endpoint"}:
            config = {**config, "region": bucket_region(name)}
        if self._kind == "azure" and "@" in name:
            name, _, host = name.partition("@")
            config = {**config, "account_name": host.partition(".")[0]}
        return new_store(
            self._kind,
            name,
            config,
            {**client, **self._options.client},
            retry_config=_NO_RETRY,
            credential_provider=self._options.keys,
        )

    def _place(self, path: str, size: int = 0) -> tuple[Any, str, str]:
        protocol, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        return self._store(bucket, size), key.rstrip("/"), f"{protocol}://{bucket}/"


# --- web servers

_COMPRESSED = (".gz", ".gzip", ".tgz", ".bz2", ".zst", ".br", ".xz")
_KEPT_IN_PATHS = "/!$&'()*+,;=:@~|[]^\\"
"""Characters of a path that obstore sends as they are."""


class WebEngine(ObstoreEngine):
    """Reads plain web servers: a HEAD returns the size, and GETs fetch ranges.

    The entries of a directory are the links of its index page. There is a store for each host; URLs
    with a query, or with characters that obstore would change, have one each.
    """

    def __init__(
        self, options: Mapping[str, Any], timeout_s: float, signed_urls: Mapping[str, str]
    ) -> None:
        super().__init__(timeout_s)
        self._client, login = http_options(options)
        self._signed = signed_urls
        self._logins = {"": login} if login else {}
        for url in signed_urls.values():
            userinfo, _, host = urlsplit(url).netloc.rpartition("@")
            if userinfo:
                self._logins[host] = unquote(userinfo)
        refuse_wrong_options(lambda: self._make(("http://check", None), {}))

    def _make(self, name: tuple[str, str | None], client: dict[str, Any]) -> Any:
        url, login = name
        headers = dict(self._client["default_headers"])
        if login is not None and "authorization" not in map(str.lower, headers):
            headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        more = {**self._client, "default_headers": headers, "user_agent": "headrace"}
        client = {**client, **more, "allow_http": True}
        return HTTPStore(url, client_options=client, retry_config=_NO_RETRY)

    def _place(self, path: str, size: int = 0) -> tuple[Any, str, str]:
        parts = urlsplit(self._signed.get(path, path))
        host = parts.netloc.rpartition("@")[2]
        login = self._logins.get(host, self._logins.get(""))
        key = unquote(parts.path[1:])
        plain = quote(key, _KEPT_IN_PATHS) == parts.path[1:] and not parts.query
        usual = key and not any(part in ("", ".", "..") for part in key.split("/"))
        if plain and usual:
            url = f"{parts.scheme}://{host}"
        else:
            url, key = parts._replace(netloc=host, fragment="").geturl(), ""
        return self._store((url, login), size), key, ""

    def status(self, path: str) -> DataFileInfo | None:
        file = DataFileInfo(path)
        try:
            answer = self.call(partial(self._get, file, head=True))
        except RequestError as error:
            if error.failure in (StoreFailure.MISSING, StoreFailure.TRANSIENT):
                raise
            answer = self._first_byte(file)  # signed for GET only, or HEAD is not allowed
        if _is_html(answer):
            return None  # an index page, or a page for a missing file
        return DataFileInfo(path, int(answer.meta["size"]), etag=_mark(answer.meta))

    def _first_byte(self, file: DataFileInfo) -> Any:
        try:
            return self.call(partial(self._get, file, range=(0, 1)))
        except RequestError as error:
            if "HTTP 416" not in error.detail and error.detail != _NO_RANGES:
                raise
        return self._get(file)  # an empty file has no first byte

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[DataFileInfo | str]:
        """Yield the files and directories directly below an index page that it links to."""
        directory = directory.rstrip("/") + "/"
        answer = self._get(DataFileInfo(directory))
        if not _is_html(answer):
            return
        page = _Links()
        page.feed(bytes(answer.bytes()).decode("utf-8", "replace"))
        found: dict[DataFileInfo | str, None] = {}
        for link in page.found:
            url = urljoin(directory, link).partition("#")[0]
            above, _, name = url.rstrip("/").rpartition("/")
            if unquote(above) == unquote(directory.rstrip("/")) and name and "?" not in url:
                # Partitions are named so.
                path = directory + re.sub("%3D", "=", name, flags=re.IGNORECASE)
                found[path if url.endswith("/") else DataFileInfo(path)] = None
        yield from found

    def fetch(self, file: DataFileInfo, start: int, stop: int) -> Any:
        try:
            return self.call(partial(super().fetch, file, start, stop))
        except RequestError as error:
            if "HTTP 416" in error.detail:
                raise RequestError(StoreFailure.CHANGED, "it is shorter by now") from None
            if error.detail != _NO_RANGES:
                raise
        data = bytearray()
        for piece in self._get(file, stop).stream():
            data += piece
            if len(data) >= stop:
                break
        return complete(data[start:stop], stop - start)

    def _check(self, answer: Any, etag: str | None, size: int | None) -> None:
        encoding = answer.attributes.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity" and not answer.meta["path"].lower().endswith(_COMPRESSED):
            detail = f"the server sends it compressed ({encoding[:20]}), so parts cannot be read"
            raise RequestError(StoreFailure.REFUSED, detail)
        if _mark(answer.meta) is None:  # the answer does not tell its version
            etag = None
        super()._check(answer, etag, size)


def _is_html(answer: Any) -> bool:
    return "text/html" in answer.attributes.get("Content-Type", "")


class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the target of a link; the parser calls this for each tag."""
        self.found.extend(value for name, value in attrs if tag == "a" and name == "href" and value)


# --- answers and errors of obstore

_STATUS = re.compile(r"status code: ((\d{3}).*)", re.DOTALL)
_FOR_KEYS = re.compile(
    r"Error performing (?:PUT|POST) |//169\.254\.169\.254|//metadata\.google\.internal"
)
"""Requests for credentials: a reader neither puts nor posts objects."""
_LIST = "Error performing list request"
_NO_RANGES = "the server does not answer range requests"
_NAMED_CAUSES = {
    "source: TimedOut": "time-out: the server was silent for too long, or its answer too slow",
    "error: IncompleteBody": "the body ended too early",
    "source: NotPartial": _NO_RANGES,
    "source: TooManyRedirects": "too many redirects",
}
"""Causes that obstore only names, and their meaning."""
_FINAL = ("redirect without LOCATION", "kind: Redirect", "invalid peer certificate")
"""Words of errors that no retry can cure."""
_OTHER_CLIENTS = "give a client that knows such keys as filesystem"
"""Advice for keys with empty parts, or with parts of dots."""


def _status(root: str, meta: Mapping[str, Any]) -> DataFileInfo:
    return DataFileInfo(root + meta["path"], int(meta["size"]), etag=_mark(meta))


def _mark(meta: Mapping[str, Any]) -> str | None:
    """Return the etag or the time of change of an object; None if neither is known."""
    etag, changed = meta["e_tag"], meta["last_modified"]
    if etag is None:
        # If a web server does not give the time, obstore returns 1970.
        return None if changed is None or not changed.timestamp() else str(changed.isoformat())
    return etag if etag.endswith('"') else f'"{etag}"'  # Azure quotes it in some answers only


def _writing(method: Callable[..., Any], *args: Any) -> None:
    """Make a request that writes: a PUT or POST in it is not a request for credentials."""
    try:
        method(*args)
    except Exception as error:
        raise _request_error(error, writing=True) from None


def _request_error(error: Exception, *, writing: bool = False) -> RequestError:
    """Return the error for one of obstore, by its kind and by the status in its text."""
    text, detail = str(error), _detail(error)
    found = _STATUS.search(text)
    status = int(found[2]) if found else None
    if isinstance(error, FileNotFoundError):
        # A server may not support the method.
        return RequestError(StoreFailure.REFUSED if status == 405 else StoreFailure.MISSING, detail)
    if isinstance(error, exceptions.PreconditionError):
        return RequestError(StoreFailure.CHANGED, detail)
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return RequestError(StoreFailure.DENIED, detail)
    if isinstance(error, exceptions.NotSupportedError):
        return RequestError(StoreFailure.REFUSED, _NO_RANGES)
    if isinstance(error, ValueError) or "invalid path" in text:
        return RequestError(StoreFailure.REFUSED, f"{detail}; {_OTHER_CLIENTS}")
    if "Content-Length" in text or "MissingContentLength" in text:
        return RequestError(StoreFailure.REFUSED, "its size is not known, so parts cannot be read")
    if any(words in text for words in _FINAL):
        return RequestError(StoreFailure.REFUSED, detail)
    # A missing object has an error of its own.
    missing = status == 404 and _LIST not in text
    wants_keys = not writing and (missing or _FOR_KEYS.search(text) is not None)
    if wants_keys:
        detail = f"no credentials were got: {_whole_text(error)}"
    if status is None:
        return RequestError(StoreFailure.TRANSIENT, detail, keyless=wants_keys)
    if wants_keys and status < 500:
        return RequestError(StoreFailure.DENIED, detail)
    return RequestError.of_status(status, detail, keyless=wants_keys)


def _detail(error: BaseException) -> str:
    """Return the status and message of the server; without an answer, the message of obstore."""
    text = _whole_text(error)
    found = _STATUS.search(text)
    return f"HTTP {found[1]}" if found else text


def _whole_text(error: BaseException) -> str:
    """Return obstore's message without the structures that follow, but with the innermost cause."""
    text, _, structures = str(error).partition("\n\nDebug source:")
    causes = re.findall(r'(?:message|error): "([^"]+)"', structures)
    causes += [meaning for name, meaning in _NAMED_CAUSES.items() if name in structures]
    cause = f" ({causes[-1]})" if causes else ""
    return " ".join(text.split()) + cause
