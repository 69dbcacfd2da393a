"""Data sets and models of the Hugging Face hub, pinned to a commit."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.errors import OptionError
from penstock.storage.engines.http import HttpEngine
from penstock.storage.engines.protocol import Failure, RequestError
from penstock.storage.options.names import Names
from penstock.storage.store import FileStatus

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
        endpoint = found.get("endpoint") or os.environ.get("HF_ENDPOINT") or _HUB
        token = found.get("token", _ambient_token())
        headers = {"Authorization": f"Bearer {token}"} if isinstance(token, str) and token else {}
        super().__init__({"headers": headers, "verify": found.get("verify")}, timeout_s)
        self._endpoint = endpoint.rstrip("/")
        self._commits: dict[tuple[str, str], str] = {}
        self._targets: dict[str, str] = {}
        self._lock = threading.Lock()

    def status(self, path: str) -> FileStatus | None:
        kind, repo, commit, inner = self._parts(path)
        if not inner.rstrip("/"):
            return None
        answer = self._ask(
            f"/api/{kind}/{repo}/paths-info/{commit}", {"paths": [inner.rstrip("/")]}
        )
        files = [entry for entry in answer if entry["type"] == "file"]
        return self._entry(kind, repo, commit, files[0]) if files else None

    def entries(self, directory: str, recursive: bool) -> Iterator[FileStatus | str]:
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
            for entry in json.loads(self._client.read_all(answer)):
                if entry["type"] == "file":
                    yield self._entry(kind, repo, commit, entry)
                elif not recursive:
                    yield self._shown(kind, repo, commit, entry["path"])
            url = following[1] if following else None

    def fetch(self, path: str, start: int, stop: int, etag: str | None) -> Any:
        kind, repo, commit, inner = self._parts(path)
        prefix = "" if kind == "models" else f"{kind}/"
        url = f"{self._endpoint}/{prefix}{repo}/resolve/{commit}/{quote(inner)}"
        target = self._targets.get(url)
        if target is not None:
            try:
                return self._fetch(target, start, stop, None)
            except RequestError as error:
                if error.failure is Failure.TRANSIENT:
                    raise
                self._targets.pop(url, None)  # its signature has expired
        return self._fetch_anew(url, start, stop)

    def _fetch_anew(self, url: str, start: int, stop: int) -> Any:
        answer = self._client.send("GET", url, {"Range": f"bytes={start}-{stop - 1}"})
        if urlsplit(answer.url).netloc != urlsplit(url).netloc:
            self._targets[url] = answer.url
        skip = 0 if answer.status == 206 else start
        return self._client.read(answer, stop - start, skip=skip)

    def _parts(self, path: str) -> tuple[str, str, str, str]:
        """Kind, repository, commit, and the path in it."""
        found = _PATH.fullmatch(path)
        if found is None:
            raise OptionError(f"{path} is no path of the hub: hf://datasets/OWNER/NAME/PATH is")
        kind, repo, revision, inner = found.groups()
        kind = kind or "models"
        return kind, repo, self._commit(kind, repo, revision or "main"), inner or ""

    def _commit(self, kind: str, repo: str, revision: str) -> str:
        if _COMMIT.fullmatch(revision):
            return revision
        with self._lock:
            known = self._commits.get((repo, revision))
            if known is None:
                at = quote(revision, safe="")
                known = self._ask(f"/api/{kind}/{repo}/revision/{at}")["sha"]
                self._commits[repo, revision] = known
            return known

    def _ask(self, place: str, body: Mapping[str, Any] | None = None) -> Any:
        url = self._endpoint + place
        if body is None:
            answer = self._client.send("GET", url, {})
        else:
            headers = {"Content-Type": "application/json"}
            answer = self._client.send("POST", url, headers, json.dumps(body).encode())
        return json.loads(self._client.read_all(answer))

    def _entry(self, kind: str, repo: str, commit: str, entry: Mapping[str, Any]) -> FileStatus:
        large = entry.get("lfs") or {}
        size, oid = large.get("size", entry["size"]), large.get("oid", entry.get("oid"))
        return FileStatus(self._shown(kind, repo, commit, entry["path"]), int(size), oid)

    def _shown(self, kind: str, repo: str, commit: str, inner: str) -> str:
        prefix = "" if kind == "models" else f"{kind}/"
        return f"hf://{prefix}{repo}@{commit}/{inner}"


_HUB = "https://huggingface.co"


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
