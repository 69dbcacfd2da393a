"""Options that are unknown, wrong or out of place, and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import certifi
import pytest
from nothing_around import KEYS, _nothing_around  # noqa: F401  # fixtures

from headrace.errors import OptionError, ReadError
from headrace.storage import Access, RetryPolicy, store_for
from headrace.storage._options import azure_options, gcs_options, s3_options


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s3://b", {}, "'colour' is not valid for store 'S3'"),
        ("az://c", {}, "'colour' is not valid for store 'MicrosoftAzure'"),
        ("gs://b", {}, "'colour' is not valid for store 'GCS'"),
        ("http://h/x", {}, "'colour'.*known are headers, auth, token, verify"),
        ("hf://datasets/a/b", {}, "'colour'.*known are endpoint, token"),
    ],
)
def test_an_unknown_option_is_named(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        store_for(url, {**options, "colour": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "hunter2"}, "needs both key and secret"),
        ({"secret": "hunter2"}, "needs both key and secret"),
        ({"token": "hunter2"}, "needs both key and secret"),
        ({"key": "a", "access_key": "hunter2"}, "names access_key_id twice"),
        ({"key": "a", "secret": 5}, "must be strs"),
        ({**KEYS, "token": "hunter2\n"}, "'token' holds characters that cannot be sent"),
        ({"anon": "hunter2"}, "failed to parse .* as boolean"),
        ({"config_kwargs": {"hunter": 1}}, "'hunter', which is not known; known are s3"),
        ({"endpoint_url": "http://bad host"}, "'endpoint' must be a URL"),
        ({"endpoint_url": "ftp://h"}, "'endpoint' must be a URL"),
        ({"endpoint_url": "http://h:port"}, "'endpoint' must be a URL"),
        ({"region": 5}, "cannot be used: 'int' object is not an instance of 'str'"),
        ({"endpoint_url": 5}, "'endpoint' must be a URL"),
        ({"verify": "/no/such/file"}, "'verify' must be .* a file of certificates: .*No such file"),
        ({"verify": 1}, "'verify' must be True, False, or a file of certificates"),
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
    for parsed in (azure_options, gcs_options, s3_options):
        assert parsed({"verify": bundle}).client == {"root_certificate": b"PEM"}
        assert parsed({"verify": str(bundle)}).client == {"root_certificate": b"PEM"}
        assert parsed({"verify": False}).client == {"allow_invalid_certificates": True}
        assert parsed({"verify": True}).client == parsed({}).client == {}
        for wrong in (5.5, tmp_path / "none"):
            with pytest.raises(OptionError, match="'verify'"):
                parsed({"verify": wrong})


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
    for bundle, failed, said in (
        (wrong, OptionError, "certificate|pem|builder"),
        (certifi.where(), ReadError, "refused"),
    ):
        access = Access(storage_options={**keys, "verify": bundle}, retry=policy)
        with pytest.raises(failed, match=f"(?i){said}"):
            access.store_for([url])[0].status(url)


@pytest.mark.parametrize("given", [5, "key", ["key"], lambda: 5])
def test_options_that_are_none(given: Any) -> None:
    with pytest.raises(OptionError, match="mapping"):
        store_for("s3://b", given)


@pytest.mark.parametrize("url", ["s3://b", "gs://b", "az://b", "https://h/a", "hf://datasets/o/n"])
def test_functions_within_options_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="'token' is a function; give one function that returns"):
        store_for(url, {"token": lambda: "secret"})


def test_options_beside_a_filesystem() -> None:
    with pytest.raises(OptionError, match="no effect beside filesystem"):
        Access(storage_options={"key": "x"}, filesystem=object())
    with pytest.raises(OptionError, match="fsspec or pyarrow, or a store of obstore, not a object"):
        Access(filesystem=object()).store_for(["a"])
