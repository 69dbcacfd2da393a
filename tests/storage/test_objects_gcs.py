"""Google Cloud Storage, by its XML API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, Place, StoreContract, file_of, ids

from headrace.errors import OptionError, ReadError


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
