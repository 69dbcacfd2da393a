"""S3 by its own protocol."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pyarrow.dataset as ds
import pytest
from servers.faults import xml_answer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, Place, StoreContract, file_of, ids

from headrace.errors import NothingFoundError, ReadError


class TestS3(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, s3_server: S3Server) -> Place:
        bucket = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
        return Place(
            f"s3://{bucket}/top",
            lambda path, body: s3_server.put(bucket, f"top/{path}", body),
            {"storage_options": s3_server.storage_options},
        )


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    name = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    for index in range(4):
        s3_server.put(name, f"d/{index}.parquet", file_of(first=100 * index))
        s3_server.put(name, f"o/{index}.orc", file_of("orc", first=100 * index))
    return name


@pytest.mark.parametrize(("folder", "format"), [("d", "parquet"), ("o", "orc")])
def test_process_workers(s3_server: S3Server, bucket: str, folder: str, format: str) -> None:
    options = {"storage_options": s3_server.storage_options, "num_workers": 2}
    got = ids(f"s3://{bucket}/{folder}", format, columns=["id"], **options)
    assert sorted(got) == [100 * index + i for index in range(4) for i in range(ROWS)]
    keep = ds.field("id") >= 300
    got = ids(f"s3://{bucket}/{folder}", format, filters=keep, **options)
    assert sorted(got) == [300 + i for i in range(ROWS)]


@pytest.mark.parametrize("protocol", ["s3", "s3a"])
def test_both_names_of_the_protocol(s3_server: S3Server, bucket: str, protocol: str) -> None:
    got = ids(f"{protocol}://{bucket}/d/1.parquet", storage_options=s3_server.storage_options)
    assert got == list(range(100, 100 + ROWS))


@pytest.mark.parametrize("path", ["a.parquet", "d", "d/*.parquet", ""])
def test_a_bucket_that_is_missing(s3_server: S3Server, path: str) -> None:
    with pytest.raises(NothingFoundError, match="no-such-bucket"):
        ids(f"s3://no-such-bucket/{path}", storage_options=s3_server.storage_options)


def test_a_whole_bucket(s3_server: S3Server) -> None:
    name = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    options = {"storage_options": s3_server.storage_options}
    with pytest.raises(NothingFoundError, match=name):
        ids(f"s3://{name}", **options)
    s3_server.put(name, "a.parquet", file_of())
    for path in (f"s3://{name}", f"s3://{name}/", f"s3://{name}/*.parquet"):
        assert ids(path, **options) == list(range(ROWS))


def test_folders_that_are_objects(s3_server: S3Server) -> None:
    """What consoles make of an empty folder is no data file."""
    name = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    for key in ("d/", "d/deep/", "e/"):
        s3_server.put(name, key, b"")
    s3_server.put(name, "d/deep/a.parquet", file_of())
    options = {"storage_options": s3_server.storage_options}
    for path in ("d", "d/", "d/deep", "d/deep/", "d/**/*.parquet", "d/*"):
        assert ids(f"s3://{name}/{path}", **options) == list(range(ROWS)), path
    with pytest.raises(NothingFoundError, match=f"{name}/e"):
        ids(f"s3://{name}/e/", **options)


def test_an_object_that_is_called_like_a_folder(s3_server: S3Server) -> None:
    """A slash says which of them is meant; an empty one is a folder, as it is in a listing."""
    name = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    for key, body in {"d": file_of(first=100), "e": b""}.items():
        s3_server.put(name, key, body)
        s3_server.put(name, f"{key}/a.parquet", file_of())
    options = {"storage_options": s3_server.storage_options}
    assert ids(f"s3://{name}/d", **options) == list(range(100, 100 + ROWS))
    for path in ("d/", "e", "e/"):
        assert ids(f"s3://{name}/{path}", **options) == list(range(ROWS)), path


def test_an_empty_object_where_nothing_may_be_listed(
    s3_server: S3Server, proxy_to: Callable[..., FaultProxy]
) -> None:
    name = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    s3_server.put(name, "a.csv", b"")
    proxy = proxy_to(s3_server.url)
    proxy.inject(xml_answer(403, "AccessDenied"), where=lambda asked: "list-type" in asked.query)
    options = {**s3_server.storage_options, "endpoint_url": proxy.url}
    assert ids(f"s3://{name}/a.csv", "csv", storage_options=options) == []


@pytest.mark.parametrize("key", ["d//a.parquet", "d/./a.parquet", "d/../a.parquet"])
def test_keys_that_the_client_does_not_know(s3_server: S3Server, key: str) -> None:
    name = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    options = {"storage_options": s3_server.storage_options}
    with pytest.raises(ReadError, match=rf"{key}.*path segment.*as filesystem.*1 attempt"):
        ids(f"s3://{name}/{key}", **options)
    s3_server.put(name, "d//a.parquet", file_of())
    with pytest.raises(ReadError, match=r"listing.*empty path segment.*as filesystem.*1 attempt"):
        ids(f"s3://{name}/d", **options)


def test_a_bucket_of_another_region(
    s3_server: S3Server, proxy_to: Callable[..., FaultProxy]
) -> None:
    proxy = proxy_to(s3_server.url)
    proxy.inject(xml_answer(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1"))
    options = {**s3_server.storage_options, "endpoint_url": proxy.url}
    for path in ("s3://elsewhere/a.parquet", "s3://elsewhere"):
        with pytest.raises(ReadError, match=r"incorrectly configured region \(1 attempt"):
            ids(path, storage_options=options)


def test_access_that_is_denied(s3_server: S3Server, bucket: str) -> None:
    options = {"endpoint_url": s3_server.url, "anon": True}
    with pytest.raises(ReadError, match=r"0\.parquet.*403.*1 attempt in.*check the credentials"):
        ids(f"s3://{bucket}/d", storage_options=options)


def test_two_buckets_at_once(s3_server: S3Server, bucket: str) -> None:
    other = s3_server.make_bucket(f"s3-{uuid4().hex[:12]}")
    s3_server.put(other, "x.parquet", file_of(first=900))
    paths = [f"s3://{bucket}/d/0.parquet", f"s3://{other}/x.parquet"]
    got = ids(paths, storage_options=s3_server.storage_options)
    assert sorted(got) == [*range(ROWS), *range(900, 900 + ROWS)]
