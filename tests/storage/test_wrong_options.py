"""Options that are unknown, wrong or out of place, and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import certifi
import pytest
from nothing_around import KEYS, _nothing_around  # noqa: F401  # fixtures

from headrace.errors import OptionError, ReadError
from headrace.storage import Access, RetryPolicy, store_for
from headrace.storage.options import azure_options, gcs_options, gcsfs_options


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("s3://b", ["key", "secret", "token", "endpoint_url", "client_kwargs", "anon", "profile"]),
        ("az://c", ["account_name", "account_key", "connection_string", "sas_token"]),
        ("gs://b", ["token", "project", "anon", "endpoint_url"]),
        ("http://h/x", ["auth", "headers", "token"]),
        ("hf://datasets/a/b", ["endpoint", "token"]),
    ],
)
def test_an_unknown_option_lists_the_known_ones(url: str, known: list[str]) -> None:
    with pytest.raises(OptionError, match=r"'colour', which is not known.*; known are") as caught:
        store_for(url, {"colour": "hunter2"})
    said = str(caught.value)
    assert "hunter2" not in said
    assert [name for name in known if name not in said.partition("known are")[2]] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "hunter2"}, "needs both key and secret"),
        ({"secret": "hunter2"}, "needs both key and secret"),
        ({"token": "hunter2"}, "needs both key and secret"),
        ({"key": "a", "access_key": "hunter2"}, "names access_key_id twice"),
        ({"key": "a", "secret": 5}, "must be strs"),
        ({**KEYS, "token": "hunter2\n"}, "'token' for S3 holds characters that cannot be sent"),
        ({"anon": "hunter2"}, "'anon' must be True or False"),
        ({"use_ssl": 1}, "'use_ssl' must be True or False"),
        ({"config_kwargs": {"hunter": 1}}, "'hunter', which is not known; known are s3"),
        ({"endpoint_url": "http://bad host"}, "'endpoint_url' must be a URL"),
        ({"endpoint_url": "ftp://h"}, "'endpoint_url' must be a URL"),
        ({"endpoint_url": "http://h:port"}, "'endpoint_url' must be a URL"),
        ({"endpoint_url": 5}, "'endpoint_url' must be a URL"),
        ({"verify": "/no/such/file"}, "'verify' names no readable file"),
        ({"verify": 1}, "'verify' must be True, False, or the path of a file"),
        ({"use_ssl": False}, "use_ssl=False for S3 needs an endpoint_url"),
        ({"profile": "nobody"}, "no AWS profile is called 'nobody'"),
    ],
)
def test_options_of_s3_that_are_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        store_for("s3://b", options)
    assert "hunter2" not in str(caught.value)


def test_certificates_of_all_object_stores(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"PEM")
    for parsed in (azure_options, gcs_options):
        assert parsed({"verify": bundle})[1] == {"root_certificate": b"PEM"}
        assert parsed({"verify": str(bundle)})[1] == {"root_certificate": b"PEM"}
        assert parsed({"verify": False})[1] == {"allow_invalid_certificates": True}
        assert parsed({"verify": True})[1] == parsed({})[1] == {}
        for wrong in (5, tmp_path / "none"):
            with pytest.raises(OptionError, match="'verify'"):
                parsed({"verify": wrong})
    for wrong in (False, bundle):
        with pytest.raises(OptionError, match=r"'verify' does not go with endpoint_url.*gcsfs"):
            gcsfs_options({"endpoint_url": "https://h:1", "verify": wrong})


@pytest.mark.parametrize("url", ["s3://b/x", "az://c/x", "gs://b/x"])
def test_certificates_reach_the_client(url: str, tmp_path: Path) -> None:
    """One that is none is refused by the client itself; a bundle of good ones is not."""
    keys = {
        "s3": {**KEYS, "endpoint_url": "https://127.0.0.1:1"},
        "az": {"account_name": "a", "account_key": "a2V5", "endpoint": "https://127.0.0.1:1"},
        "gs": {"token": "anon", "base_url": "https://127.0.0.1:1"},
    }[url[:2]]
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    policy = RetryPolicy(retries=0)
    for bundle, said in ((wrong, "(?i)certificate|pem|builder"), (certifi.where(), "refused")):
        access = Access(storage_options={**keys, "verify": bundle}, retry=policy)
        with pytest.raises(ReadError, match=f"(?i){said}"):
            access.store_for([url])[0].status(url)


@pytest.mark.parametrize("given", [5, "key", ["key"], lambda: 5, {"credentials": lambda: 5}])
def test_options_that_are_none(given: Any) -> None:
    with pytest.raises(OptionError, match="mapping"):
        store_for("s3://b", given)


def test_options_beside_a_filesystem() -> None:
    with pytest.raises(OptionError, match="no effect beside filesystem"):
        Access(storage_options={"key": "x"}, filesystem=object())
    with pytest.raises(OptionError, match="fsspec or pyarrow, or a store of obstore, not a object"):
        Access(filesystem=object()).store_for(["a"])
