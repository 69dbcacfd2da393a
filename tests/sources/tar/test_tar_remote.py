"""Tars elsewhere: few requests, and nothing wrong."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

import logging
import pickle
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from tars_made import Member, tar_bytes
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

from headrace import TarShards
from headrace.errors import AccessDeniedError, FileChangedError, ReadError, StaleIndexError
from headrace.sources.tar import index_tars


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
    monkeypatch.setattr("headrace.sources.tar.shards._REMOTE_BLOCK_BYTES", 100_000)
    shards = TarShards(served(http_server), metadata=indices / "meta")
    assert len(shards) == 120
    seen_since(http_server)
    samples = shards.samples()
    first = next(samples)
    until = time.monotonic() + 60
    while fetched_bytes(ranges(http_server.log)) < 250_000 and time.monotonic() < until:
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
    kept = list((tmp_path / "home" / "headrace" / "indexes").iterdir())
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
    for path in (tmp_path / "home" / "headrace" / "indexes").iterdir():
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
    shards = TarShards(url, metadata=indices / "stale" / "a.idx.arrow")
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
        lambda: shards.payloads.column(np.array([2]), np.array([14])),
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
