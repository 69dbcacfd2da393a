"""A Hugging Face hub on the loopback: repositories with commits, and a CDN for their large files.

As on the real one, large (LFS) files are redirected to another host with a signed link, where the
hub's token has no business; `cdn.seen` tells whether it was sent there all the same.
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

from servers.answering import AnsweringServer, Asked, Reply
from servers.http_files import Stored, respond_with

KINDS = ("datasets", "models", "spaces")


@dataclass(frozen=True, slots=True)
class HubFile:
    stored: Stored
    oid: str
    lfs_oid: str | None

    def entry(self, path: str) -> dict[str, object]:
        """As the listing of a tree tells it."""
        told = {"type": "file", "oid": self.oid, "size": len(self.stored.body), "path": path}
        if self.lfs_oid is not None:
            pointer = {"oid": self.lfs_oid, "size": len(self.stored.body), "pointerSize": 134}
            told["lfs"] = pointer
        return told


@dataclass(slots=True)
class Repository:
    """Commits by sha; `heads` names the newest of each branch."""

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
    """`url` is the endpoint (HF_ENDPOINT). Private repositories open to one of `tokens`.

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
        """An empty repository with the branch main; its commit."""
        self._repositories[f"{kind}/{repo_id}"] = Repository(private)
        return self.put_all(repo_id, {}, kind=kind)

    def put(
        self, repo_id: str, path: str, body: bytes, *, lfs: bool = True, kind: str = "datasets"
    ) -> str:
        """Write or replace one file in a commit of its own on main; the commit."""
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
        """Write files (None: delete) in one commit; the commit. Older commits can still be read."""
        made = {
            path: None if body is None else _hub_file(body, lfs=lfs) for path, body in files.items()
        }
        return self._repositories[f"{kind}/{repo_id}"].commit(made, branch=branch)

    def expire_links(self) -> None:
        """No signed link given out so far is good any more: the CDN answers 403."""
        self._links.clear()

    def stop(self) -> None:
        super().stop()
        self.cdn.stop()

    def _find(self, asked: Asked) -> Reply:
        path, _, query = asked.target.partition("?")
        # Split before decoding: a revision may hold an encoded slash (refs%2Fconvert%2Fparquet).
        parts = [unquote(part) for part in path.strip("/").split("/")]
        is_api = parts[0] == "api"
        parts = parts[is_api:]
        if asked.method == "POST" and parts == ["repos", "create"]:
            return self._create(json.loads(asked.body))
        kind = parts.pop(0) if parts[0] in KINDS else "models"
        if parts[-1] == "batch":
            return self._lfs_batch(json.loads(asked.body))
        repo_id, action, rest = "/".join(parts[:2]), (parts[2:3] or ["info"])[0], parts[3:]
        repository = self._repositories.get(f"{kind}/{repo_id}")
        if repository is None or (repository.private and not self._knows(asked)):
            return _refusal(404 if self._knows(asked) else 401, "RepoNotFound")
        revision = rest[0] if rest else "main"
        sha = repository.heads.get(revision, revision)
        if sha not in repository.commits:
            return _refusal(404, "RevisionNotFound")
        tree, inside = repository.commits[sha], "/".join(rest[1:])
        if not is_api:
            return self._resolve(asked, tree.get(inside), sha)
        if action in ("info", "revision"):
            siblings = [{"rfilename": name} for name in tree]
            return _json({"id": repo_id, "sha": sha, "siblings": siblings, "tags": []})
        if action == "preupload":
            return self._preupload(json.loads(asked.body))
        if action == "commit":
            return self._commit(repository, asked, revision, f"{self.url}/{kind}/{repo_id}")
        if action == "paths-info":
            return self._paths_info(asked, tree)
        return self._tree(path, tree, inside, parse_qs(query))

    def _knows(self, asked: Asked) -> bool:
        return (asked.authorization or "").removeprefix("Bearer ") in self.tokens

    # --- uploads

    def _create(self, wanted: dict[str, Any]) -> Reply:
        repo_id = "/".join(filter(None, [wanted.get("organization"), wanted["name"]]))
        kind = f"{wanted.get('type', 'model')}s"
        there = f"{kind}/{repo_id}" in self._repositories
        if not there:
            self.make_repo(repo_id, private=bool(wanted.get("private")), kind=kind)
        _, headers, body = _json({"url": f"{self.url}/{kind}/{repo_id}", "name": repo_id})
        return 409 if there else 200, headers, body

    def _preupload(self, wanted: dict[str, Any]) -> Reply:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith(".json") else "lfs",
                "shouldIgnore": False,
            }
            for file in wanted["files"]
        ]
        return _json({"files": modes})

    def _lfs_batch(self, wanted: dict[str, Any]) -> Reply:
        objects = []
        for one in wanted["objects"]:
            told = {"oid": one["oid"], "size": one["size"], "authenticated": True}
            if one["oid"] not in self._large:
                told["actions"] = {"upload": {"href": f"{self.cdn.url}/upload/{one['oid']}"}}
            objects.append(told)
        return _json({"transfer": "basic", "objects": objects})

    def _keep(self, asked: Asked) -> Reply:
        oid = asked.target.rpartition("/")[2]
        assert hashlib.sha256(asked.body).hexdigest() == oid
        self.uploads.append(oid)
        self.hold_upload(oid)
        self._large[oid] = asked.body
        return 200, {}, b""

    def _commit(self, repository: Repository, asked: Asked, branch: str, url: str) -> Reply:
        files: dict[str, HubFile | None] = {}
        for line in asked.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = _hub_file(base64.b64decode(value["content"]), lfs=False)
            elif entry["key"] == "lfsFile":
                files[value["path"]] = _hub_file(self._large[value["oid"]], lfs=True)
        sha = repository.commit(files, branch=branch)
        return _json({"commitUrl": f"{url}/commit/{sha}", "commitOid": sha})

    # --- reading

    def _paths_info(self, asked: Asked, tree: dict[str, HubFile]) -> Reply:
        if "json" in (asked.head.value(b"content-type") or ""):
            paths = json.loads(asked.body)["paths"]
        else:
            paths = parse_qs(asked.body.decode())["paths"]
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

    def _resolve(self, asked: Asked, file: HubFile | None, sha: str) -> Reply:
        if file is None:
            return _refusal(404, "EntryNotFound", {"X-Repo-Commit": sha})
        headers = {"X-Repo-Commit": sha, "ETag": f'"{file.oid}"'}
        if file.lfs_oid is None:
            return respond_with(file.stored, asked.head, more=headers)
        headers["X-Linked-Etag"] = f'"{file.lfs_oid}"'
        headers["X-Linked-Size"] = str(len(file.stored.body))
        headers["Location"] = self._sign(file)
        return 302, headers, b"Found. Redirecting"

    def _sign(self, file: HubFile) -> str:
        signature = secrets.token_urlsafe(24)
        self._links[signature] = file.stored
        expires = int(time.time()) + 3600
        return f"{self.cdn.url}/{file.lfs_oid}?Expires={expires}&Signature={signature}"

    def _deliver(self, asked: Asked) -> Reply:
        if asked.method == "PUT":
            return self._keep(asked)
        signature = parse_qs(asked.target.partition("?")[2]).get("Signature", [""])[0]
        stored = self._links.get(signature)
        if stored is None:
            return 403, {"Content-Type": "application/xml"}, b"<Error>AccessDenied</Error>"
        return respond_with(stored, asked.head)


def _hub_file(body: bytes, *, lfs: bool) -> HubFile:
    oid = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    digest = hashlib.sha256(body).hexdigest()
    etag = f'"{digest if lfs else oid}"'
    return HubFile(Stored(body, etag, time.time()), oid, digest if lfs else None)


def _entries(tree: dict[str, HubFile], folder: str, *, recursive: bool) -> list[dict[str, object]]:
    """Files and folders within a folder, sorted by path."""
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
