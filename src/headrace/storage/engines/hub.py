"""Data sets and models of the Hugging Face hub, pinned to a commit."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from headrace.errors import OptionError
from headrace.storage.engines.http import HttpEngine
from headrace.storage.engines.http_client import HttpClient
from headrace.storage.engines.protocol import Failure, RequestError
from headrace.storage.options.names import Names, server_url
from headrace.storage.store import FileStatus

__all__ = ["HubEngine"]

_NAMES = Names(
    "the Hugging Face hub", token="token", endpoint="endpoint endpoint_url", verify="verify"
)
_PATH = re.compile(
    r"hf://(?:(datasets|spaces)/)?([^/@]+/[^/@]+)(?:@(refs/[^/]+/[^/]+|[^/]+))?(?:/(.*))?"
)
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubEngine(HttpEngine):
    """``hf://datasets/owner/name@revision/path``; what is found carries the commit in its path.

    So all processes and later reads see the same files, whatever is pushed meanwhile. Large
    files come from another host: where, is asked once and kept as long as it is good.
    """

    def __init__(self, options: Mapping[str, Any], timeout_s: float) -> None:
        found = _NAMES.meant(options)
        given = found.get("endpoint") or os.environ.get("HF_ENDPOINT") or _HUB
        token = found.get("token", True)
        if token is True:
            token = _ambient_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__({"headers": headers, "verify": found.get("verify")}, timeout_s)
        self._elsewhere = HttpClient(timeout_s, headers={}, verify=found.get("verify"))
        self.secrets = [token] if isinstance(token, str) else []
        self._endpoint = server_url("endpoint", given)
        self._commits: dict[tuple[str, str, str], str] = {}
        self._targets: dict[str, str] = {}
        self._lock = threading.Lock()

    def resolved(self, path: str) -> str:
        """The path with the commit that its revision names now."""
        return self._shown(*self._parts(path))

    def status(self, path: str) -> FileStatus | None:
        kind, repo, commit, inner = self._parts(path)
        if not inner.rstrip("/"):
            return None
        answer = self._ask(
            f"/api/{kind}/{repo}/paths-info/{commit}", {"paths": [inner.rstrip("/")]}
        )
        with _understood():
            files = [entry for entry in answer if entry["type"] == "file"]
            return self._entry(kind, repo, commit, files[0]) if files else None

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        kind, repo, commit, inner = self._parts(directory)
        deep = "true" if recursive else "false"
        place = quote(inner.strip("/"))
        url: str | None = (
            f"{self._endpoint}/api/{kind}/{repo}/tree/{commit}"
            f"{'/' if place else ''}{place}?recursive={deep}"
        )
        while url is not None:
            answer = self._client.send("GET", url, {})
            following = _NEXT.search(answer.header("Link") or "")
            with _understood():
                for entry in json.loads(self._client.read_all(answer)):
                    if entry["type"] == "file":
                        yield self._entry(kind, repo, commit, entry)
                    elif not recursive:
                        yield self._shown(kind, repo, commit, entry["path"])
            url = self._next(url, following[1]) if following else None

    def _next(self, page: str, link: str) -> str:
        """The next page; not elsewhere, for the token goes with it."""
        url = urljoin(page, link)
        if urlsplit(url)[:2] != urlsplit(page)[:2]:
            raise RequestError(Failure.REFUSED, "the next page of the listing is on another host")
        return url

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        kind, repo, commit, inner = self._parts(path)
        prefix = "" if kind == "models" else f"{kind}/"
        url = f"{self._endpoint}/{prefix}{repo}/resolve/{commit}/{quote(inner)}"
        target = self._targets.get(url)
        if target is not None:
            try:
                return self._fetch(target, start, stop, None, size, self._elsewhere)
            except RequestError as error:
                if error.failure is Failure.TRANSIENT:
                    raise
                self._targets.pop(url, None)  # its signature has expired
        return self._fetch_anew(url, start, stop)

    def _fetch_anew(self, url: str, start: int, stop: int) -> Any:
        answer = self._client.send("GET", url, {"Range": f"bytes={start}-{stop - 1}"})
        if urlsplit(answer.url).netloc != urlsplit(url).netloc:
            self._targets[url] = answer.url
        return self._read(self._client, answer, start, stop)

    def _parts(self, path: str) -> tuple[str, str, str, str]:
        """Kind, repository, commit, and the path in it."""
        found = _PATH.fullmatch(path)
        if found is None or found[2].startswith(("datasets/", "spaces/")):
            raise OptionError(f"{path} is no path of the hub: hf://datasets/OWNER/NAME/PATH is")
        kind, repo, revision, inner = found.groups()
        kind = kind or "models"
        return kind, repo, self._commit(kind, repo, revision or "main"), inner or ""

    def _commit(self, kind: str, repo: str, revision: str) -> str:
        if _COMMIT.fullmatch(revision):
            return revision
        with self._lock:
            known = self._commits.get((kind, repo, revision))
            if known is None:
                at = quote(unquote(revision), safe="")
                answer = self._ask(f"/api/{kind}/{repo}/revision/{at}")
                with _understood():
                    known = self._commits[kind, repo, revision] = str(answer["sha"])
            return known

    def _ask(self, place: str, body: Mapping[str, Any] | None = None) -> Any:
        url = self._endpoint + place
        if body is None:
            answer = self._client.send("GET", url, {})
        else:
            headers = {"Content-Type": "application/json"}
            answer = self._client.send("POST", url, headers, json.dumps(body).encode())
        with _understood():
            return json.loads(self._client.read_all(answer))

    def _entry(self, kind: str, repo: str, commit: str, entry: Mapping[str, Any]) -> FileStatus:
        large = entry.get("lfs") or {}
        size, oid = large.get("size", entry["size"]), large.get("oid", entry.get("oid"))
        return FileStatus(self._shown(kind, repo, commit, entry["path"]), int(size), oid)

    def _shown(self, kind: str, repo: str, commit: str, inner: str) -> str:
        prefix = "" if kind == "models" else f"{kind}/"
        return f"hf://{prefix}{repo}@{commit}/{inner}"


_HUB = "https://huggingface.co"


@contextmanager
def _understood() -> Iterator[None]:
    """What is not the JSON that was asked for may be something in between, for a while."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        detail = f"the answer is not understood ({type(error).__name__})"
        raise RequestError(Failure.TRANSIENT, detail) from None


def _ambient_token() -> str | None:
    """The token of the environment, or the one that the hub's own tools have stored."""
    given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if given:
        return given
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    file = os.environ.get("HF_TOKEN_PATH", os.path.join(home, "token"))
    try:
        with open(file, encoding="utf-8") as stored:
            return stored.read().strip() or None
    except OSError:
        return None
