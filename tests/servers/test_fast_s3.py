"""Tests that the fast server answers as S3 does, and that its proxy counts and slows."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from servers.fast_s3 import FastS3Process
from servers.processes import ask
from servers.proxy_process import ProxyProcess

DEEP = [f"deep/{index:04d}.bin" for index in range(1200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "bucket"
    for name in ("a b+c.bin", "deep-er/x.bin", "zebra.bin", *DEEP):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "big.bin").write_bytes(bytes(range(256)) * 1000)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[FastS3Process]:
    with FastS3Process(folder) as server:
        yield server


def store_at(url: str) -> S3Store:
    return S3Store(
        "bucket",
        endpoint=url,
        access_key_id="any",
        secret_access_key="any",
        region="us-east-1",
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )


def listed(server: FastS3Process, query: str) -> tuple[list[str], list[str], str | None]:
    status, _, body = ask(server.port, "GET", f"/bucket?list-type=2{query}")
    assert status == 200
    keys = re.findall(r"<Key>([^<]*)</Key>", body.decode())
    prefixes = re.findall(r"<CommonPrefixes><Prefix>([^<]*)<", body.decode())
    token = re.search(r"<NextContinuationToken>([^<]*)<", body.decode())
    assert (b"<IsTruncated>true" in body) == (token is not None)
    return keys, prefixes, token and token[1]


def test_objects_and_ranges(server: FastS3Process, folder: Path) -> None:
    store = store_at(server.url)
    assert bytes(obstore.get(store, "a b+c.bin").bytes()) == b"a b+c.bin"
    expected = (folder / "big.bin").read_bytes()
    assert (
        bytes(obstore.get_range(store, "big.bin", start=5, length=200_000)) == (expected[5:200_005])
    )
    tail = ask(server.port, "GET", "/bucket/big.bin", headers={"Range": "bytes=-8"})
    assert (tail[0], tail[2]) == (206, expected[-8:])
    assert tail[1]["content-range"] == "bytes 255992-255999/256000"
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "no.bin")
    assert ask(server.port, "GET", "/bucket/../../etc/passwd")[0] == 404
    assert ask(server.port, "GET", "/bucket/big.bin", headers={"Range": "bytes=256000-"})[0] == 416


def test_a_replaced_object_fails_the_condition(server: FastS3Process, folder: Path) -> None:
    (folder / "changing.bin").write_bytes(b"old")
    _, headers, _ = ask(server.port, "HEAD", "/bucket/changing.bin")
    assert headers["content-length"] == "3"
    condition = {"If-Match": headers["etag"]}
    assert ask(server.port, "GET", "/bucket/changing.bin", headers=condition)[2] == b"old"
    (folder / "changing.bin").write_bytes(b"newer")
    os.utime(folder / "changing.bin", ns=(1, 1))
    assert ask(server.port, "GET", "/bucket/changing.bin", headers=condition)[0] == 412


def test_listing_is_sorted_and_paged(server: FastS3Process) -> None:
    first, _, token = listed(server, "&prefix=deep/")
    second, _, end = listed(server, f"&prefix=deep/&continuation-token={token}")
    assert (first + second, len(first), end) == (DEEP, 1000, None)
    assert listed(server, "&prefix=deep/&start-after=deep/1197.bin")[0] == DEEP[1198:]
    assert listed(server, "&prefix=deep/&max-keys=2")[0] == DEEP[:2]
    objects = obstore.list(store_at(server.url), "deep").collect()
    assert [entry["path"] for entry in objects] == DEEP
    assert objects[0]["size"] == len(DEEP[0])


def test_listing_with_a_delimiter_skips_what_lies_deeper(server: FastS3Process) -> None:
    keys, prefixes, _ = listed(server, "&delimiter=/")
    assert keys == ["a b+c.bin", "big.bin", "zebra.bin"]
    assert prefixes == ["deep-er/", "deep/"]
    found = []
    token: str | None = ""
    while token is not None:
        more = f"&continuation-token={token}" if token else ""
        keys, prefixes, token = listed(server, f"&delimiter=/&max-keys=1{more}")
        found += keys + prefixes
    assert found == ["a b+c.bin", "big.bin", "deep-er/", "deep/", "zebra.bin"]


def test_proxy_in_its_own_process_slows_and_counts(server: FastS3Process) -> None:
    with ProxyProcess(server.url) as proxy:
        store = store_at(proxy.url)
        obstore.get_range(store, "big.bin", start=0, length=100)
        assert proxy.stats() == {"requests": 1, "body_bytes": 100, "GET 206": 1}
        proxy.set(latency_s=0.2)
        before = time.monotonic()
        obstore.get_range(store, "big.bin", start=0, length=100)
        assert time.monotonic() - before > 0.2
        proxy.set(bytes_per_s=512_000)
        before = time.monotonic()
        obstore.get(store, "big.bin").bytes()
        assert time.monotonic() - before > 0.4
        assert proxy.stats()["body_bytes"] == 256_000
