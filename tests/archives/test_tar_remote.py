"""Tars elsewhere: few requests, nothing fetched twice, nothing wrong, and a cache that lasts."""

from __future__ import annotations

import logging
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from servers.answering import Seen
from servers.faults import CutShort
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from tars_made import Member, members, tar_bytes, write_shards

from penstock import TarShards
from penstock.archives import index_tars
from penstock.archives.opening import access_of
from penstock.errors import AccessDeniedError, FileChangedError, ReadError, StaleIndexError
from penstock.storage import Access, DiskCache, RetryPolicy

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


def seen_since(server: HttpServer) -> list[Seen]:
    found, server.seen[:] = list(server.seen), []
    return found


def ranges(seen: list[Seen]) -> list[Seen]:
    return [one for one in seen if one.method == "GET" and one.target.endswith(".tar")]


def fetched_bytes(seen: list[Seen]) -> int:
    spans = [one.range.removeprefix("bytes=").split("-") for one in seen if one.range]
    return sum(int(last) - int(first) + 1 for first, last in spans)


def impatient(cache: Path | None = None, retries: int = 0) -> Access:
    found = None if cache is None else DiskCache.at(cache, None)
    return Access(retry=RetryPolicy(retries=retries), cache=found)


def payloads_of(shards: TarShards) -> list[bytes]:
    return [sample.bytes for sample in shards.samples()]


EVERYTHING = [payload for shard in SHARDS for _, payload in shard[::2]]


# --- how they are read


def test_samples_of_a_web_server(http_server: HttpServer, indices: Path) -> None:
    urls = served(http_server, indices)
    for source in (urls, f"{http_server.url}/data", f"{http_server.url}/data/*.tar"):
        shards = TarShards(source)
        assert list(shards.shard_names) == [f"shard_{i:04}.tar" for i in range(3)]
        assert not shards.collection.fork_safe
        seen_since(http_server)
        sample = shards.load_sample(1, 30)
        assert (sample.bytes, sample.json["id"]) == (SHARDS[1][60][1], 30)
        asked = ranges(seen_since(http_server))
        assert len(asked) == 1  # image and JSON lie side by side
        assert fetched_bytes(asked) <= sample.size + 4000
        assert payloads_of(shards) == EVERYTHING
        assert shards.open_shard(2).read_sample_json(0) == SHARDS[2][1][1]


def test_a_batch_is_asked_for_side_by_side(
    http_server: HttpServer, indices: Path, proxy_to: Callable[..., FaultProxy]
) -> None:
    """No request waits for another: all are there before the first is answered."""
    served(http_server)
    proxy = proxy_to(http_server.url)
    urls = [f"{proxy.url}/data/shard_{i:04}.tar" for i in range(3)]
    shards = TarShards(urls, metadata=indices / "meta")
    draw = random.Random(0)
    wanted = [(draw.randrange(3), draw.randrange(40)) for _ in range(12)]
    assert len(shards) == 120
    count = len(set(wanted))
    together = threading.Barrier(4)

    def wait_for_the_others(request: Any) -> None:
        if request.method == "GET":
            together.wait(60)

    proxy.log.clear()
    proxy.intercept = wait_for_the_others
    four = [(0, 3), (1, 20), (2, 30), (0, 33)]
    assert [s.bytes for s in shards.load_samples(four)] == [SHARDS[s][2 * n][1] for s, n in four]
    proxy.intercept = None
    proxy.log.clear()
    found = shards.load_samples(wanted)
    assert [s.bytes for s in found] == [SHARDS[s][2 * n][1] for s, n in wanted]
    assert 3 <= len(proxy.log) <= count


def test_samples_that_lie_side_by_side_are_one_request(
    http_server: HttpServer, indices: Path
) -> None:
    shards = TarShards(served(http_server), metadata=indices / "all.idx.arrow")
    assert len(shards) == 120
    seen_since(http_server)
    found = shards.load_samples([(0, n) for n in reversed(range(10, 30))])
    assert [s.number for s in found] == list(reversed(range(10, 30)))
    assert len(ranges(seen_since(http_server))) == 1


def test_all_samples_are_read_ahead_and_once(
    http_server: HttpServer, indices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.archives.tar.sequence._BLOCK_BYTES_ELSEWHERE", 100_000)
    shards = TarShards(served(http_server), metadata=indices / "meta")
    assert len(shards) == 120
    seen_since(http_server)
    samples = shards.samples()
    first = next(samples)
    until = time.monotonic() + 60
    while fetched_bytes(ranges(http_server.seen)) < 250_000 and time.monotonic() < until:
        time.sleep(0.01)
    ahead = ranges(seen_since(http_server))
    assert 250_000 <= fetched_bytes(ahead) <= 600_000  # some blocks more than the first
    rest = [sample.bytes for sample in samples]
    assert [first.bytes, *rest] == EVERYTHING
    whole = fetched_bytes(ahead) + fetched_bytes(ranges(seen_since(http_server)))
    assert whole <= sum(map(len, TARS))
    samples = shards.samples()
    next(samples)
    samples.close()  # what is still on its way is nobody's
    assert shards.load_sample(2, 39).bytes == EVERYTHING[-1]


def test_tars_without_an_index_are_scanned_once(
    http_server: HttpServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    urls = served(http_server)
    assert payloads_of(TarShards(urls)) == EVERYTHING
    assert caplog.text.count("has no index") == 3
    kept = list((tmp_path / "home" / "penstock" / "indexes").iterdir())
    assert len(kept) == 3
    caplog.clear()
    seen_since(http_server)
    again = TarShards(urls)
    assert len(again) == 120
    assert ranges(seen_since(http_server)) == []
    assert payloads_of(again) == EVERYTHING
    assert "has no index" not in caplog.text


def test_an_index_that_was_kept_and_is_damaged_is_made_again(
    http_server: HttpServer, tmp_path: Path
) -> None:
    urls = served(http_server)
    assert len(TarShards(urls)) == 120
    for path in (tmp_path / "home" / "penstock" / "indexes").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert payloads_of(TarShards(urls)) == EVERYTHING
    assert payloads_of(TarShards(urls)) == EVERYTHING


def test_names_that_lead_elsewhere_write_nothing_there(
    http_server: HttpServer, tmp_path: Path
) -> None:
    shard: list[Member] = [("../../../evil.jpg", b"up"), (f"{tmp_path}/evil.jpg", b"here")]
    url = http_server.put("a.tar", tar_bytes(shard))
    cache = tmp_path / "deep" / "cache"
    shards = TarShards(url, cache_dir=cache)
    assert payloads_of(shards) == [b"up", b"here"]
    assert not list(tmp_path.rglob("*evil*"))
    inside = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert inside
    assert all(cache in path.parents for path in inside)


def test_a_bucket_with_indices_of_the_hub(
    s3_server: S3Server,
    hub_server: HubServer,
    indices: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Options of one store are not those of the other."""
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    hub_server.make_repo("owner/meta")
    for path in (indices / "meta").iterdir():
        hub_server.put("owner/meta", f"of/tars/{path.name}", path.read_bytes(), lfs=False)
    bucket = s3_server.make_bucket(f"tars-{uuid4().hex[:12]}")
    for number, tar in enumerate(TARS):
        s3_server.put(bucket, f"d/shard_{number:04}.tar", tar)
    shards = TarShards(
        f"s3://{bucket}/d",
        metadata="hf://datasets/owner/meta/of/tars",
        storage_options=s3_server.storage_options,
    )
    assert payloads_of(shards) == EVERYTHING
    assert all(shards.collection._places[i] is not None for i in range(3))
    again = pickle.loads(pickle.dumps(shards))
    assert again.load_sample(1, 1).bytes == SHARDS[1][2][1]


def test_a_repository_of_the_hub(
    hub_server: HubServer, indices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    hub_server.make_repo("owner/data")
    files = {f"sub/shard_{i:04}.tar": tar for i, tar in enumerate(TARS)}
    files |= {f"sub/{p.name}": p.read_bytes() for p in (indices / "meta").iterdir()}
    hub_server.put_all("owner/data", files)
    shards = TarShards("hf://datasets/owner/data/sub", cache_dir=tmp_path / "cache")
    assert payloads_of(shards) == EVERYTHING
    assert list(shards.shard_names) == [f"shard_{i:04}.tar" for i in range(3)]


# --- what goes wrong


def test_a_tar_that_is_another_by_now(http_server: HttpServer, indices: Path) -> None:
    urls = served(http_server, indices)
    shards = TarShards(urls)
    assert shards.load_sample(0, 0).bytes == EVERYTHING[0]
    http_server.put("data/shard_0000.tar", TARS[0][::-1])
    with pytest.raises(FileChangedError, match=r"member '00_0005\.jpg' cannot be read: .*_0000"):
        shards.load_sample(0, 5)
    http_server.delete("data/shard_0001.tar")
    with pytest.raises(FileChangedError, match=r"shard_0001\.tar vanished"):
        shards.load_sample(1, 5)


def test_the_index_of_another_tar_of_the_same_size(http_server: HttpServer, indices: Path) -> None:
    """Its size tells nothing: what lies in front of the payload does."""
    sizes = [(f"{n}.bin", bytes([n]) * 700) for n in range(5)]
    other = [(f"{n}.bin", bytes([n]) * (600 if n == 2 else 700)) for n in range(5)]
    assert len(tar_bytes(sizes)) == len(tar_bytes(other))
    url = http_server.put("x/a.tar", tar_bytes(other))
    (indices / "stale").mkdir()
    (indices / "stale" / "a.tar").write_bytes(tar_bytes(sizes))
    index_tars(indices / "stale" / "a.tar")
    shards = TarShards(url, metadata=indices / "stale" / "a.json")
    assert shards.load_sample(0, 1).bytes == sizes[1][1]
    for ask in (lambda: shards.load_sample(0, 2), lambda: list(shards.samples())):
        with pytest.raises(StaleIndexError, match=r"a\.tar: there is no header of '2\.bin'"):
            ask()


def test_a_read_that_fails_names_tar_and_member(
    http_server: HttpServer, indices: Path, proxy_to: Callable[..., FaultProxy]
) -> None:
    served(http_server, indices)
    proxy = proxy_to(http_server.url)
    shards = TarShards([f"{proxy.url}/data/shard_{i:04}.tar" for i in range(3)], access=impatient())
    assert len(shards) == 120
    proxy.refuse()
    for ask in (
        lambda: shards.load_sample(2, 7),
        lambda: shards.load_samples([(2, 7)]),
        lambda: shards.payloads.views([2], [14]).__enter__(),
        lambda: shards.open_shard(2).read_sample(7),
    ):
        with pytest.raises(ReadError, match=r"member '02_0007\.jpg' cannot be read: .*_0002\.tar"):
            ask()
    proxy.accept()
    assert shards.load_sample(2, 7).bytes == SHARDS[2][14][1]


def test_nobody_is_let_in(http_server: HttpServer, tmp_path: Path, indices: Path) -> None:
    """Which is no reason to go on with what was there before."""
    urls = served(http_server, indices)
    assert len(TarShards(urls, cache_dir=tmp_path / "cache")) == 120
    http_server.access.tokens.add("secret")
    with pytest.raises(AccessDeniedError):
        TarShards(urls, cache_dir=tmp_path / "cache")


# --- the cache


def test_nothing_is_fetched_twice(http_server: HttpServer, indices: Path, tmp_path: Path) -> None:
    urls = served(http_server, indices)
    shards = TarShards(urls, cache_dir=tmp_path / "cache")
    assert payloads_of(shards) == EVERYTHING
    assert ranges(seen_since(http_server))
    for _ in range(2):
        again = TarShards(urls, cache_dir=tmp_path / "cache")
        assert payloads_of(again) == EVERYTHING
        assert again.load_sample(1, 3).bytes == SHARDS[1][6][1]
        assert [one for one in seen_since(http_server) if one.method == "GET"] == []


READ_ALL = """
import sys
from hashlib import sha256
from penstock import TarShards
cache, *urls = sys.argv[1:]
digest = sha256()
for sample in TarShards(urls, cache_dir=cache).samples():
    digest.update(sample.bytes)
print(digest.hexdigest())
"""


def test_two_processes_share_it(http_server: HttpServer, indices: Path, tmp_path: Path) -> None:
    urls = served(http_server, indices)
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", READ_ALL, str(cache), *urls]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert said[0] == said[1]
    assert said[0][1] == ""
    seen_since(http_server)
    assert payloads_of(TarShards(urls, cache_dir=cache)) == EVERYTHING
    assert ranges(seen_since(http_server)) == []


def test_it_is_used_where_there_is_no_network(
    http_server: HttpServer, indices: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls, folder = served(http_server, indices), f"{http_server.url}/data"
    cache = tmp_path / "cache"
    for source in (urls, folder):
        assert payloads_of(TarShards(source, access=impatient(cache))) == EVERYTHING
    half = http_server.put("half/shard_0000.tar", TARS[0])
    meta = indices / "meta"
    TarShards(half, metadata=meta, access=impatient(cache)).load_sample(0, 3)
    http_server.stop()
    for source in (urls, folder):
        caplog.clear()
        shards = TarShards(source, access=impatient(cache))
        assert "cannot be listed; going on with what was found there before" in caplog.text
        assert payloads_of(shards) == EVERYTHING
        assert shards.load_samples([(1, 1)])[0].json["id"] == 1
    offline = TarShards(half, metadata=meta, access=impatient(cache))
    assert offline.load_sample(0, 3).bytes == SHARDS[0][6][1]
    with pytest.raises(ReadError, match=r"member '00_0020\.jpg'"):
        offline.load_sample(0, 20)
    with pytest.raises(ReadError):
        TarShards(f"{folder}/none.tar", access=impatient(cache))  # never listed
    with pytest.raises(ReadError):
        TarShards(urls, access=impatient(tmp_path / "another"))


def test_a_part_of_what_was_listed_is_there_without_network(
    http_server: HttpServer, indices: Path, tmp_path: Path
) -> None:
    urls, folder = served(http_server, indices), f"{http_server.url}/data"
    other = http_server.put("data/deep/one.tar", TARS[2])
    cache = impatient(tmp_path / "cache")
    assert len(TarShards(folder, access=cache)) == 160
    assert len(payloads_of(TarShards(folder, access=cache))) == 160
    http_server.stop()
    one = TarShards(urls[1], access=cache)
    assert payloads_of(one) == [payload for _, payload in SHARDS[1][::2]]
    assert list(one.shard_names) == ["shard_0001.tar"]
    assert one.collection._places[0] is not None
    for source in (f"{folder}/deep", [other]):
        deep = TarShards(source, access=cache)
        assert list(deep.shard_names) == ["one.tar"]
        assert payloads_of(deep) == [payload for _, payload in SHARDS[2][::2]]
    for source in (f"{folder}/none.tar", http_server.url, [urls[0], f"{folder}/none"]):
        with pytest.raises(ReadError):
            TarShards(source, access=cache)


@pytest.mark.parametrize("limit", [1, 6000])
def test_indices_and_listings_stay_within_the_limit(
    http_server: HttpServer, tmp_path: Path, limit: int
) -> None:
    urls, cache = served(http_server), tmp_path / "cache"
    for source in (*urls, urls):
        shards = TarShards(source, cache_dir=cache, cache_bytes=limit)
        assert shards.load_sample(0, 0).bytes
        held = [*cache.glob("indexes/*"), *cache.glob("listings/*")]
        assert sum(path.stat().st_size for path in held) <= limit
    newest = shards.collection._kept_at(2)
    shards.get_shard_file_count(2)
    assert newest is not None
    assert os.path.exists(newest) == (limit > 1)


def test_indices_elsewhere_are_there_without_network(
    http_server: HttpServer, indices: Path, tmp_path: Path
) -> None:
    urls = served(http_server)
    meta = http_server.put("m/all.idx.arrow", (indices / "all.idx.arrow").read_bytes())
    cache = impatient(tmp_path / "cache")
    assert payloads_of(TarShards(urls, metadata=meta, access=cache)) == EVERYTHING
    http_server.stop()
    assert payloads_of(TarShards(urls, metadata=meta, access=cache)) == EVERYTHING


def test_a_new_listing_replaces_the_old_one(
    http_server: HttpServer, tmp_path: Path, indices: Path
) -> None:
    served(http_server, indices)
    folder, cache = f"{http_server.url}/data", impatient(tmp_path / "cache")
    assert TarShards(folder, access=cache).num_shards == 3
    http_server.put("data/shard_0003.tar", tar_bytes(members(2, 9)))
    assert TarShards(folder, access=cache).num_shards == 4
    http_server.stop()
    assert TarShards(folder, access=cache).num_shards == 4


def test_it_stays_within_its_limit(http_server: HttpServer, indices: Path, tmp_path: Path) -> None:
    urls, cache = served(http_server, indices), tmp_path / "cache"
    limit = sum(map(len, TARS)) // 3
    shards = TarShards(urls, cache_dir=cache, cache_bytes=limit)
    for _ in range(2):
        for start in range(0, 40, 5):
            wanted = [(shard, start + n) for shard in range(3) for n in range(5)]
            found = shards.load_samples(wanted)
            assert [s.bytes for s in found] == [SHARDS[s][2 * n][1] for s, n in wanted]
            held = [p for p in cache.rglob("*-*-*") if p.is_file()]
            assert sum(path.stat().st_size for path in held) <= limit
    assert held


def test_half_of_a_download_is_never_seen(
    http_server: HttpServer,
    indices: Path,
    tmp_path: Path,
    proxy_to: Callable[..., FaultProxy],
) -> None:
    """Answers break off: what comes of them is fetched again, or an error, and never short."""
    served(http_server, indices)
    proxy = proxy_to(http_server.url)
    urls = [f"{proxy.url}/data/shard_{i:04}.tar" for i in range(3)]
    shards = TarShards(urls, metadata=indices / "meta", access=impatient(tmp_path / "cache"))
    proxy.inject(CutShort(after_bytes=700), method="GET")
    with pytest.raises(ReadError, match="member"):
        list(shards.samples())
    proxy.clear()
    assert payloads_of(shards) == EVERYTHING


def test_what_is_sent_to_workers_is_small(
    http_server: HttpServer, indices: Path, tmp_path: Path
) -> None:
    """Neither indices nor what was read of tars travel with the stores."""
    shards = TarShards(served(http_server, indices), cache_dir=tmp_path / "cache")
    assert payloads_of(shards) == EVERYTHING
    assert shards.load_sample(0, 39).json["id"] == 39
    scanned = TarShards([http_server.put("x.tar", TARS[0])])
    assert len(scanned) == 40
    assert len(pickle.dumps(shards)) < 10_000
    assert len(pickle.dumps(scanned)) < 10_000
    assert pickle.loads(pickle.dumps(scanned)).load_sample(0, 1).bytes == SHARDS[0][2][1]


def test_access_of_what_a_user_says(tmp_path: Path) -> None:
    access = access_of({"a": 1}, tmp_path / "cache", "1MiB")
    assert access.cache == DiskCache(str(tmp_path / "cache"), 1 << 20)
    assert os.path.isdir(tmp_path / "cache")
