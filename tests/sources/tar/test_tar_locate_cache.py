"""A cache of tars elsewhere: nothing is fetched twice, and it lasts."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.faults import CutShort
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from tars_made import members, tar_bytes
from tars_served import (  # noqa: F401  # fixtures
    EVERYTHING,
    SHARDS,
    TARS,
    _own_cache_of_the_user,
    fetched_bytes,
    impatient,
    indices,
    payloads_of,
    ranges,
    seen_since,
    served,
)
from warm_interpreters import WarmProcess

from headrace import TarShards
from headrace.errors import ReadError
from headrace.sources.tar._locate import IndexCache, access_of
from headrace.storage import DiskCache


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
from headrace import TarShards
cache, *urls = sys.argv[1:]
digest = sha256()
for sample in TarShards(urls, cache_dir=cache).samples():
    digest.update(sample.bytes)
print(digest.hexdigest())
"""


def test_two_processes_share_it(http_server: HttpServer, indices: Path, tmp_path: Path) -> None:
    urls = served(http_server, indices)
    cache = tmp_path / "cache"
    command = ["-c", READ_ALL, cache, *urls]
    with WarmProcess(*command) as first, WarmProcess(*command) as second:
        ended = [first.finish(), second.finish()]
    assert [(one.returncode, one.stderr) for one in ended] == [(0, "")] * 2
    assert ended[0].stdout == ended[1].stdout
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
        assert "cannot be listed; using the cached listing" in caplog.text
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


def test_a_damaged_listing_is_of_no_use(
    http_server: HttpServer, indices: Path, tmp_path: Path
) -> None:
    """Neither wrong files nor an error of Arrow: what is said is that there is no network."""
    folder = served(http_server, indices)[0].rpartition("/")[0]
    TarShards(folder, access=impatient(tmp_path / "cache"))
    [listing] = (tmp_path / "cache/listings").iterdir()
    whole = listing.read_bytes()
    http_server.stop()
    for at in range(40, len(whole), len(whole) // 6):
        listing.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(ReadError) as caught:
            TarShards(folder, access=impatient(tmp_path / "cache"))
        assert http_server.url in str(caught.value)
        assert "manifest" not in str(caught.value)
    listing.write_bytes(whole)
    TarShards(folder, access=impatient(tmp_path / "cache"))


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
    collection = shards.collection
    newest = IndexCache(str(cache)).index_path(collection.store, collection.files[2])
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
