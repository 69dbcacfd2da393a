"""Tars on a web server, with their indices, and what was asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.answering import LoggedRequest
from servers.http_files import HttpServer
from tars_made import members, tar_bytes, write_shards

from headrace import TarShards
from headrace.sources.tar import index_tars
from headrace.storage import Access, DiskCache, RetryPolicy

SHARDS = [members(40, seed, size=40_000) for seed in range(3)]
TARS = list(map(tar_bytes, SHARDS))


@pytest.fixture(autouse=True)
def _own_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def indices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of each tar, by the name of its file."""
    folder = tmp_path_factory.mktemp("indices")
    write_shards(folder / "data", SHARDS)
    index_tars(folder / "data", folder / "meta")
    index_tars(folder / "data", one_file=folder / "all.idx.arrow")
    return folder


def served(server: HttpServer, indices: Path | None = None) -> list[str]:
    """The URLs of the tars, with their indices beside them if there are any."""
    if indices is not None:
        for path in sorted((indices / "meta").iterdir()):
            server.put(f"data/{path.name}", path.read_bytes())
    return [server.put(f"data/shard_{i:04}.tar", tar) for i, tar in enumerate(TARS)]


def seen_since(server: HttpServer) -> list[LoggedRequest]:
    found, server.log[:] = list(server.log), []
    return found


def ranges(seen: list[LoggedRequest]) -> list[LoggedRequest]:
    return [one for one in seen if one.method == "GET" and one.target.endswith(".tar")]


def fetched_bytes(seen: list[LoggedRequest]) -> int:
    spans = [one.range.removeprefix("bytes=").split("-") for one in seen if one.range]
    return sum(int(last) - int(first) + 1 for first, last in spans)


def impatient(cache: Path | None = None, retries: int = 0) -> Access:
    found = None if cache is None else DiskCache.at(cache, None)
    return Access(retry=RetryPolicy(retries=retries), cache=found)


def payloads_of(shards: TarShards) -> list[bytes]:
    return [sample.bytes for sample in shards.samples()]


EVERYTHING = [payload for shard in SHARDS for _, payload in shard[::2]]
