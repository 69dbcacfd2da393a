"""A Hugging Face hub on the loopback: repositories with commits, and a CDN for their large files.

Like the real hub, it redirects requests for large (LFS) files to another host with a signed link.
That host must not get the hub's token; `cdn.log` shows whether it was sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.http_files import Stored, respond_with

KINDS = ("datasets", "models", "spaces")


@dataclass(frozen=True, slots=True)
class HubFile:
    stored: Stored
    oid: str
    lfs_oid: str | None

    def entry(self, path: str) -> dict[str, object]:
        """Return the file's entry in the listing of a tree."""
        entry = {"type": "file", "oid": self.oid, "size": len(self.stored.body), "path": path}
        if self.lfs_oid is not None:
            pointer = {"oid": self.lfs_oid, "size": len(self.stored.body), "pointerSize": 134}
            entry["lfs"] = pointer
        return entry


@dataclass(slots=True)
class Repository:
    """Commits by sha; `heads` maps each branch to its newest commit."""

    private: bool
    commits: dict[str, dict[str, HubFile]] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, HubFile | None], *, branch: str) -> str:
        tree = {**self.commits.get(self.heads.get(branch, ""), {}), **files}
        sha = secrets.token_hex(20)
        self.commits[sha] = {path: file for path, file in sorted(tree.items()) if file is not None}
        self.heads[branch] = sha
        return sha


class HubServer(AnsweringServer):
    """A hub at `url` (HF_ENDPOINT). Private repositories open to any of `tokens`.

    `page_size` is the number of entries on a page of a listing; the links to further pages lead to
    `next_pages_at`, if another host is named there.
    """

    def __init__(self) -> None:
        self.tokens: set[str] = set()
        self.next_pages_at: str | None = None
        self.page_size = 1000
        self._repositories: dict[str, Repository] = {}
        self._links: dict[str, Stored] = {}
        self.uploads: list[str] = []
        """the SHA-256 of each large file that was sent, in order"""
        self.hold_upload: Callable[[str], None] = lambda oid: None
        """called before an upload is kept; it may wait"""
        self._large: dict[str, bytes] = {}
        self.cdn = AnsweringServer(self._deliver)
        super().__init__(self._find)

    def make_repo(self, repo_id: str, *, private: bool = False, kind: str = "datasets") -> str:
        """Make an empty repository with the branch main, and return its commit."""
        self._repositories[f"{kind}/{repo_id}"] = Repository(private)
        return self.put_all(repo_id, {}, kind=kind)

    def put(
        self, repo_id: str, path: str, body: bytes, *, lfs: bool = True, kind: str = "datasets"
    ) -> str:
        """Write or replace one file in its own commit on main, and return the commit."""
        return self.put_all(repo_id, {path: body}, lfs=lfs, kind=kind)

    def put_all(
        self,
        repo_id: str,
        files: dict[str, bytes | None],
        *,
        lfs: bool = True,
        kind: str = "datasets",
        branch: str = "main",
    ) -> str:
        """Write files (None: delete) in one commit, and return it. Older commits stay readable."""
        made = {
            path: None if body is None else _hub_file(body, lfs=lfs) for path, body in files.items()
        }
        return self._repositories[f"{kind}/{repo_id}"].commit(made, branch=branch)

    def expire_links(self) -> None:
        """Expire all signed links given out so far: the CDN answers 403."""
        self._links.clear()

    def stop(self) -> None:
        super().stop()
        self.cdn.stop()

    def _find(self, request: HttpRequest) -> Reply:
        path, _, query = request.target.partition("?")
        # Split before decoding: a revision may hold an encoded slash (refs%2Fconvert%2Fparquet).
        parts = [unquote(part) for part in path.strip("/").split("/")]
        is_api = parts[0] == "api"
        parts = parts[is_api:]
        if request.method == "POST" and parts == ["repos", "create"]:
            return self._create(json.loads(request.body))
        kind = parts.pop(0) if parts[0] in KINDS else "models"
        if parts[-1] == "batch":
            return self._lfs_batch(json.loads(request.body))
        repo_id, action, rest = "/".join(parts[:2]), (parts[2:3] or ["info"])[0], parts[3:]
        repository = self._repositories.get(f"{kind}/{repo_id}")
        if repository is None or (repository.private and not self._knows(request)):
            return _refusal(404 if self._knows(request) else 401, "RepoNotFound")
        revision = rest[0] if rest else "main"
        sha = repository.heads.get(revision, revision)
        if sha not in repository.commits:
            return _refusal(404, "RevisionNotFound")
        tree, inside = repository.commits[sha], "/".join(rest[1:])
        if not is_api:
            return self._resolve(request, tree.get(inside), sha)
        if action in ("info", "revision"):
            siblings = [{"rfilename": name} for name in tree]
            return _json({"id": repo_id, "sha": sha, "siblings": siblings, "tags": []})
        if action == "preupload":
            return self._preupload(json.loads(request.body), tree)
        if action == "commit":
            return self._commit(repository, request, revision, f"{self.url}/{kind}/{repo_id}")
        if action == "paths-info":
            return self._paths_info(request, tree)
        return self._tree(path, tree, inside, parse_qs(query))

    def _knows(self, request: HttpRequest) -> bool:
        return (request.authorization or "").removeprefix("Bearer ") in self.tokens

    # --- uploads

    def _create(self, wanted: dict[str, Any]) -> Reply:
        repo_id = "/".join(filter(None, [wanted.get("organization"), wanted["name"]]))
        kind = f"{wanted.get('type', 'model')}s"
        there = f"{kind}/{repo_id}" in self._repositories
        if not there:
            self.make_repo(repo_id, private=bool(wanted.get("private")), kind=kind)
        _, headers, body = _json({"url": f"{self.url}/{kind}/{repo_id}", "name": repo_id})
        return 409 if there else 200, headers, body

    def _preupload(self, wanted: dict[str, Any], tree: dict[str, HubFile]) -> Reply:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith(".json") else "lfs",
                "shouldIgnore": False,
                "oid": _oid(tree.get(file["path"])),
            }
            for file in wanted["files"]
        ]
        return _json({"files": modes})

    def _lfs_batch(self, wanted: dict[str, Any]) -> Reply:
        objects = []
        for one in wanted["objects"]:
            entry = {"oid": one["oid"], "size": one["size"], "authenticated": True}
            if one["oid"] not in self._large:
                entry["actions"] = {"upload": {"href": f"{self.cdn.url}/upload/{one['oid']}"}}
            objects.append(entry)
        return _json({"transfer": "basic", "objects": objects})

    def _keep(self, request: HttpRequest) -> Reply:
        oid = request.target.rpartition("/")[2]
        if hashlib.sha256(request.body).hexdigest() != oid:  # as of a client that was killed
            return 400, {}, b"the body is not that of this hash"
        self.uploads.append(oid)
        self.hold_upload(oid)
        self._large[oid] = request.body
        return 200, {}, b""

    def _commit(self, repository: Repository, request: HttpRequest, branch: str, url: str) -> Reply:
        files: dict[str, HubFile | None] = {}
        for line in request.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = _hub_file(base64.b64decode(value["content"]), lfs=False)
            elif entry["key"] == "lfsFile":
                files[value["path"]] = _hub_file(self._large[value["oid"]], lfs=True)
        sha = repository.commit(files, branch=branch)
        return _json({"commitUrl": f"{url}/commit/{sha}", "commitOid": sha})

    # --- reading

    def _paths_info(self, request: HttpRequest, tree: dict[str, HubFile]) -> Reply:
        if "json" in (request.head.value(b"content-type") or ""):
            paths = json.loads(request.body)["paths"]
        else:
            paths = parse_qs(request.body.decode())["paths"]
        entries = _entries(tree, "", recursive=True)
        return _json([entry for entry in entries if entry["path"] in paths])

    def _tree(
        self, path: str, tree: dict[str, HubFile], folder: str, query: dict[str, list[str]]
    ) -> Reply:
        recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = _entries(tree, folder, recursive=recursive)
        if folder and not entries:
            return _refusal(404, "EntryNotFound")
        start = int(query.get("cursor", ["0"])[0])
        stop = start + min(self.page_size, int(query.get("limit", [str(self.page_size)])[0]))
        status, headers, body = _json(entries[start:stop])
        if stop < len(entries):
            kept = "".join(f"{name}={quote(query[name][0])}&" for name in query if name != "cursor")
            headers["Link"] = (
                f'<{self.next_pages_at or self.url}{path}?{kept}cursor={stop}>; rel="next"'
            )
        return status, headers, body

    def _resolve(self, request: HttpRequest, file: HubFile | None, sha: str) -> Reply:
        if file is None:
            return _refusal(404, "EntryNotFound", {"X-Repo-Commit": sha})
        headers = {"X-Repo-Commit": sha, "ETag": f'"{file.oid}"'}
        if file.lfs_oid is None:
            return respond_with(file.stored, request.head, more=headers)
        headers["X-Linked-Etag"] = f'"{file.lfs_oid}"'
        headers["X-Linked-Size"] = str(len(file.stored.body))
        headers["Location"] = self._sign(file)
        return 302, headers, b"Found. Redirecting"

    def _sign(self, file: HubFile) -> str:
        signature = secrets.token_urlsafe(24)
        self._links[signature] = file.stored
        expires = int(time.time()) + 3600
        return f"{self.cdn.url}/{file.lfs_oid}?Expires={expires}&Signature={signature}"

    def _deliver(self, request: HttpRequest) -> Reply:
        if request.method == "PUT":
            return self._keep(request)
        signature = parse_qs(request.target.partition("?")[2]).get("Signature", [""])[0]
        stored = self._links.get(signature)
        if stored is None:
            return 403, {"Content-Type": "application/xml"}, b"<Error>AccessDenied</Error>"
        return respond_with(stored, request.head)


def _oid(file: HubFile | None) -> str | None:
    return None if file is None else file.lfs_oid or file.oid


def _hub_file(body: bytes, *, lfs: bool) -> HubFile:
    oid = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    digest = hashlib.sha256(body).hexdigest()
    etag = f'"{digest if lfs else oid}"'
    return HubFile(Stored(body, etag, time.time()), oid, digest if lfs else None)


def _entries(tree: dict[str, HubFile], folder: str, *, recursive: bool) -> list[dict[str, object]]:
    """Return the files and folders within a folder, sorted by path."""
    start = folder + "/" if folder else ""
    found: dict[str, dict[str, object]] = {}
    for path, file in tree.items():
        if not path.startswith(start):
            continue
        names = path[len(start) :].split("/")
        depths = range(1, len(names)) if recursive else range(1, min(len(names), 2))
        for depth in depths:
            inner = start + "/".join(names[:depth])
            oid = hashlib.sha1(inner.encode()).hexdigest()
            found[inner] = {"type": "directory", "oid": oid, "size": 0, "path": inner}
        if recursive or len(names) == 1:
            found[path] = file.entry(path)
    return [found[path] for path in sorted(found)]


def _json(value: object) -> Reply:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _refusal(status: int, code: str, more: dict[str, str] | None = None) -> Reply:
    headers = {"X-Error-Code": code, "X-Error-Message": code, **(more or {})}
    return status, headers, json.dumps({"error": code}).encode()
