"""Read repositories of the Hugging Face hub, pinned to a commit, with huggingface_hub."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from headrace.errors import MissingExtraError, OptionError
from headrace.model import DataFileInfo
from headrace.storage._engine import Engine, RequestError, StoreFailure
from headrace.storage._objects import WebEngine
from headrace.storage._options import hub_options

_PATH = re.compile(
    r"hf://(?:(datasets|spaces)/)?([^/@]+/[^/@]+)(?:@(refs/[^/]+/[^/]+|[^/]+))?(?:/(.*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_KINDS = {None: "model", "datasets": "dataset", "spaces": "space"}


class HubEngine(Engine):
    """Reads ``hf://datasets/owner/name@revision/path``.

    ``resolved`` puts the commit into a path, so that all processes and later reads see the same
    files, even if others are pushed. Large files come from another host by a signed link, which is
    requested once and kept while it is valid. A file in the cache of huggingface_hub is read from
    there.
    """

    def __init__(self, options: Any, timeout_s: float) -> None:
        try:
            import huggingface_hub
        except ImportError:
            raise MissingExtraError.for_extra(
                "hub", "huggingface_hub, which reads hf://,"
            ) from None
        token, endpoint = hub_options(options)
        if token is None or token is True:
            token = huggingface_hub.get_token()
        self._hub: Any = huggingface_hub
        self._token = token or False
        self._api = huggingface_hub.HfApi(endpoint=endpoint, token=self._token)
        self.place = self._api.endpoint
        super().__init__(timeout_s)
        self._own_host = WebEngine({"token": token} if token else {}, timeout_s, {})
        self._other_hosts = WebEngine({}, timeout_s, {})
        self.secrets = [token] if token else []
        self._commits: dict[tuple[str, str, str], str] = {}
        self._links: dict[str, str] = {}
        self._lock = threading.Lock()

    def resolved(self, path: str) -> str:
        """Return a path with the commit that its revision names now."""
        return str(self._pinned(path))

    def status(self, path: str) -> DataFileInfo | None:
        place = self._pinned(path)
        if not place.inner.rstrip("/"):
            return None
        ask = partial(self._api.get_paths_info, place.repo, [place.inner.rstrip("/")])
        found = self._in_time(partial(ask, **place.where))
        files = [entry for entry in found if isinstance(entry, self._hub.hf_api.RepoFile)]
        return _status(place, files[0]) if files else None

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[DataFileInfo | str]:
        place = self._pinned(directory)
        parts = (f"{place.kind}s", place.repo, "tree", quote(place.revision, safe=""))
        folder = quote(place.inner.strip("/"), safe="")
        url = "/".join([self._api.endpoint, "api", *parts, *filter(None, [folder])])
        following: str | None = f"{url}?recursive={recursive}&expand=False"
        while following is not None:
            page, following = self._in_time(partial(self._page, following))
            for entry in page:
                if entry["type"] == "file":
                    yield _status(place, self._hub.hf_api.RepoFile(**entry))
                elif not recursive:
                    yield str(place._replace(inner=entry["path"]))

    def _page(self, url: str) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of a listing, and the URL of the next one.

        huggingface_hub would retry without counting, and send the token to any host that a link to
        the next page names.
        """
        utils = self._hub.utils
        headers = utils.build_hf_headers(token=self._token if self._is_own(url) else False)
        answer = utils.get_session().get(url, headers=headers, timeout=self._timeout_s)
        utils.hf_raise_for_status(answer)
        link = answer.links.get("next", {}).get("url")
        return answer.json(), None if link is None else urljoin(url, link)

    def fetch(self, file: DataFileInfo, start: int, stop: int) -> Any:
        place = self._pinned(file.path)
        cached = self._hub.try_to_load_from_cache(place.repo, place.inner, **place.where)
        if isinstance(cached, str):
            with suppress(FileNotFoundError), open(cached, "rb") as copy:
                if os.fstat(copy.fileno()).st_size == file.file_size:
                    copy.seek(start)
                    return copy.read(stop - start)
        url = self._hub.hf_hub_url(
            place.repo, place.inner, endpoint=self._api.endpoint, **place.where
        )
        link = self._links.get(url)
        if link is not None:
            try:
                return self._linked(link, file, start, stop)
            except RequestError as error:
                if error.failure is StoreFailure.TRANSIENT:
                    raise
                self._links.pop(url, None)  # its signature has expired
        ask = partial(self._hub.get_hf_file_metadata, url, token=self._token)
        link = self._links[url] = self._in_time(partial(ask, timeout=self._timeout_s)).location
        return self._linked(link, file, start, stop)

    def _linked(self, link: str, file: DataFileInfo, start: int, stop: int) -> Any:
        """Return bytes of a file from the host that a link names. Only the hub gets the token."""
        web = self._own_host if self._is_own(link) else self._other_hosts
        return web.call(partial(web.fetch, DataFileInfo(link, file.file_size), start, stop))

    def _is_own(self, url: str) -> bool:
        return urlsplit(url)[:2] == urlsplit(self._api.endpoint)[:2]

    def _pinned(self, path: str) -> _HubPath:
        """Return a place at the commit that its revision names; this is requested once."""
        place = _HubPath.of(path)
        if _COMMIT.fullmatch(place.revision):
            return place
        key = place.kind, place.repo, place.revision
        with self._lock:
            if key not in self._commits:
                ask = partial(self._api.repo_info, place.repo, **place.where)
                info = self._in_time(partial(ask, timeout=self._timeout_s))
                self._commits[key] = str(info.sha)
            return place._replace(revision=self._commits[key])

    def _failure(self, error: Exception) -> RequestError:
        """Return the error for one of huggingface_hub, by the status of the answer."""
        status = getattr(getattr(error, "response", None), "status_code", None)
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(status, int):
            return RequestError.of_status(status, f"HTTP {status}: {text}")
        # An answer that is not the expected JSON may come from a proxy, for a while.
        return RequestError(StoreFailure.TRANSIENT, f"{type(error).__name__}: {text}")


class _HubPath(NamedTuple):
    """The parts of a path of the hub."""

    kind: str
    repo: str
    revision: str
    inner: str

    @classmethod
    def of(cls, path: str) -> _HubPath:
        found = _PATH.fullmatch(path)
        if found is None or found[2].startswith(("datasets/", "spaces/")):
            raise OptionError(f"{path} is no path of the hub: hf://datasets/OWNER/NAME/PATH is")
        kind, repo, revision, inner = found.groups()
        return cls(_KINDS[kind], repo, unquote(revision or "main"), inner or "")

    @property
    def where(self) -> dict[str, Any]:
        """Keywords of huggingface_hub that name the repository and its revision."""
        return {"repo_type": self.kind, "revision": self.revision}

    def __str__(self) -> str:
        prefix = "" if self.kind == "model" else f"{self.kind}s/"
        return f"hf://{prefix}{self.repo}@{self.revision}/{self.inner}"


def _status(place: _HubPath, entry: Any) -> DataFileInfo:
    large = entry.lfs
    size, oid = (large.size, large.sha256) if large else (entry.size, entry.blob_id)
    return DataFileInfo(str(place._replace(inner=entry.path)), int(size), etag=oid)
