"""Google Cloud Storage: emulators by gcsfs, and the XML API by obstore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from servers.gcs import GcsServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import NAMES_OF_THE_EMULATOR, ROWS, Place, StoreContract, file_of, ids

from headrace.errors import NothingFoundError, OptionError, ReadError


@pytest.fixture(scope="module")
def bucket(gcs_server: GcsServer) -> str:
    name = gcs_server.make_bucket(f"gs-{uuid4().hex[:12]}")
    gcs_server.put(name, "d/a.parquet", file_of())
    return name


class TestGcsEmulator(StoreContract):
    odd_names = NAMES_OF_THE_EMULATOR

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, gcs_server: GcsServer) -> Place:
        bucket = gcs_server.make_bucket(f"gs-{uuid4().hex[:12]}")
        return Place(
            f"gs://{bucket}/top",
            lambda path, body: gcs_server.put(bucket, f"top/{path}", body),
            {"storage_options": gcs_server.storage_options},
        )


class TestGcsXmlApi(StoreContract):
    """The XML API of Google is that of S3, as far as reading goes; moto takes any bearer token.

    It does not know a bucket again whose name has characters that are escaped, as - is here.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, s3_server: S3Server) -> Place:
        bucket = s3_server.make_bucket(f"gs{uuid4().hex[:12]}")
        options = {"base_url": s3_server.url, "bearer_token": "ya29.token"}
        return Place(
            f"gs://{bucket}/top",
            lambda path, body: s3_server.put(bucket, f"top/{path}", body),
            {"storage_options": options},
        )


@pytest.mark.parametrize("protocol", ["gs", "gcs"])
def test_the_emulator_of_the_environment(
    gcs_server: GcsServer, bucket: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    options = {"token": "anon", "project": gcs_server.project}
    assert ids(f"{protocol}://{bucket}/d", storage_options=options) == list(range(ROWS))
    assert ids(f"{protocol}://{bucket}/d", storage_options={"anon": True}) == list(range(ROWS))
    assert ids(f"{protocol}://{bucket}/d") == list(range(ROWS))


def test_a_bucket_that_is_missing(gcs_server: GcsServer) -> None:
    with pytest.raises((NothingFoundError, ReadError), match="no-such-bucket"):
        ids("gs://no-such-bucket/d", storage_options=gcs_server.storage_options)


def sent_tokens(proxy: FaultProxy) -> set[str | None]:
    return {request.key_id for request in proxy.log}


@pytest.fixture
def google(s3_server: S3Server, proxy_to: Callable[..., FaultProxy]) -> tuple[FaultProxy, str]:
    bucket = s3_server.make_bucket(f"gs{uuid4().hex[:12]}")
    s3_server.put(bucket, "d/a.parquet", file_of())
    return proxy_to(s3_server.url), f"gs://{bucket}/d"


@pytest.mark.parametrize("name", ["token", "bearer_token", "access_token"])
def test_a_bearer_token_is_sent(google: tuple[FaultProxy, str], name: str) -> None:
    proxy, path = google
    options = {"base_url": proxy.url, name: "ya29.mine"}
    assert ids(path, storage_options=options) == list(range(ROWS))
    assert sent_tokens(proxy) == {"ya29.mine"}


@pytest.mark.parametrize("options", [{"token": "anon"}, {"anon": True}, {"skip_signature": True}])
def test_nothing_is_sent_if_anonymous(
    google: tuple[FaultProxy, str], options: dict[str, Any]
) -> None:
    proxy, path = google
    with pytest.raises(ReadError, match="check the credentials"):
        ids(path, storage_options={"base_url": proxy.url, **options})
    assert sent_tokens(proxy) == {None}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": 5}, "must be 'anon', 'google_default'.*not a int"),
        ({"token": "/no/such/key.json"}, "does not exist"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        ids("gs://b/a.parquet", storage_options=options)
    assert "no/such" not in str(caught.value)
