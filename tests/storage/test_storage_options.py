"""Options by all of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nothing_around import KEYS, _nothing_around  # noqa: F401  # fixtures

from headrace.storage._options import azure_options, gcs_options, s3_options

# --- names


@pytest.mark.parametrize("name", ["key", "access_key_id", "aws_access_key_id", "access_key"])
def test_names_of_a_key(name: str) -> None:
    keys = s3_options({name: "AK", "secret": "SK"}).keys
    assert keys is not None
    assert keys()["access_key_id"] == "AK"


@pytest.mark.parametrize(
    "name", ["secret", "secret_access_key", "aws_secret_access_key", "secret_key"]
)
def test_names_of_a_secret(name: str) -> None:
    keys = s3_options({"key": "AK", name: "SK"}).keys
    assert keys is not None
    assert keys()["secret_access_key"] == "SK"


@pytest.mark.parametrize("name", ["token", "session_token", "aws_session_token"])
def test_names_of_a_session_token(name: str) -> None:
    keys = s3_options({**KEYS, name: "T"}).keys
    assert keys is not None
    assert keys() == {
        "access_key_id": "AK",
        "secret_access_key": "SK",
        "token": "T",
        "expires_at": None,
    }


S3_NAMES = [
    ("endpoint_url endpoint endpoint_override aws_endpoint_url", "http://h:1/", "endpoint"),
    ("region region_name aws_region", "eu-west-3", "region"),
    ("anon anonymous skip_signature", True, "skip_signature"),
    ("requester_pays request_payer", True, "request_payer"),
]


@pytest.mark.parametrize(("names", "value", "meant"), S3_NAMES)
def test_names_of_s3(names: str, value: Any, meant: str) -> None:
    expected = value.rstrip("/") if isinstance(value, str) else value
    for name in names.split():
        assert s3_options({name: value}).config[meant] == expected
        inside = s3_options({"client_kwargs": {name: value}})
        assert inside.config[meant] == expected


def test_other_options_of_s3(tmp_path: Path) -> None:
    virtual = {"virtual_hosted_style_request": True}
    assert s3_options({"addressing_style": "virtual"}).config == virtual
    assert s3_options({"config_kwargs": {"s3": {"addressing_style": "virtual"}}}).config == virtual
    assert s3_options({"addressing_style": "path"}).config == {}
    assert s3_options({"config_kwargs": {"signature_version": "s3v4"}}).config == {}
    assert s3_options({"config_kwargs": {"retries": 3, "read_timeout": 1}}).config == {}
    assert s3_options({"endpoint": "h:1"}).config["endpoint"] == "https://h:1"
    assert s3_options({"endpoint": "h:1", "use_ssl": False}).config["endpoint"] == "http://h:1"
    assert s3_options({"endpoint": "http://h:1"}).client["allow_http"] is True
    assert s3_options({"verify": False}).client == {"allow_invalid_certificates": True}
    (tmp_path / "ca.pem").write_bytes(b"PEM")
    assert s3_options({"verify": tmp_path / "ca.pem"}).client == {"root_certificate": b"PEM"}
    assert s3_options({"verify": True}).client == {}
    assert s3_options({**KEYS, "anon": True}).keys is None
    assert s3_options({"key": None, "secret": None, "token": None}).keys is None


def test_what_is_outside_wins_over_what_is_inside() -> None:
    options = s3_options({"region": "a", "client_kwargs": {"region_name": "b"}})
    assert options.config["region"] == "a"


AZURE_NAMES = [
    ("account_name", "me", "account_name"),
    ("account_key", "a2V5", "account_key"),
    ("sas_token sas_key", "sv=1&sig=2", "sas_key"),
    ("token bearer_token", "T", "token"),
    ("tenant_id", "t", "tenant_id"),
    ("client_id", "c", "client_id"),
    ("client_secret", "s", "client_secret"),
    ("endpoint endpoint_url account_url account_host", "https://h:1/", "endpoint"),
    ("anon anonymous skip_signature", True, "skip_signature"),
    ("use_azure_cli", True, "use_azure_cli"),
    ("use_emulator", True, "use_emulator"),
    ("federated_token_file", "/f", "federated_token_file"),
]


@pytest.mark.parametrize(("names", "value", "meant"), AZURE_NAMES)
def test_names_of_azure(names: str, value: Any, meant: str) -> None:
    for name in names.split():
        found = azure_options({name: value}).config
        assert found[meant] == (value.rstrip("/") if isinstance(value, str) else value)


def test_connection_strings_of_azure() -> None:
    string = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a2V5=;EndpointSuffix=x.net"
    assert azure_options({"connection_string": string}).config == {
        "account_name": "me",
        "account_key": "a2V5=",
        "endpoint": "https://me.blob.x.net",
        "credential_type": "access_key",
    }
    development = azure_options({"connection_string": "UseDevelopmentStorage=true"})
    assert development.config == {"use_emulator": True}
    other = azure_options({"connection_string": string, "account_name": "you"})
    assert other.config["account_name"] == "you"


GCS_NAMES = [
    ("anon anonymous skip_signature", True, "skip_signature", True),
    ("token", "anon", "skip_signature", True),
    ("service_account", "/f", "service_account", "/f"),
    ("service_account_key", '{\n"a": 1}', "service_account_key", '{\n"a": 1}'),
    ("application_credentials", "/f", "application_credentials", "/f"),
    ("base_url endpoint_url", "http://h:1/", "base_url", "http://h:1"),
    ("token", {"type": "service_account"}, "service_account_key", '{"type": "service_account"}'),
]


@pytest.mark.parametrize(("names", "value", "meant", "expected"), GCS_NAMES)
def test_names_of_gcs(names: str, value: Any, meant: str, expected: Any) -> None:
    for name in names.split():
        assert gcs_options({name: value}).config == {meant: expected}


def test_other_options_of_gcs(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text("{}")
    assert gcs_options({"token": str(key)}).config == {"application_credentials": str(key)}
    assert gcs_options({"token": key}).config == {"application_credentials": str(key)}
    for unused in ({"project": "p"}, {"access": "read_only"}, {"token": "google_default"}):
        assert gcs_options(unused) == gcs_options({})
    for name in ("token", "bearer_token", "access_token"):
        keys = gcs_options({name: "T"}).keys
        assert keys is not None
        assert keys()["token"] == "T"


# --- what is wrong


def test_two_fields_of_options_are_two_options() -> None:
    """Nothing of one store is kept for the next."""
    first, second = (s3_options({"key": name, "secret": "s"}).keys for name in ("a", "b"))
    assert first is not None
    assert second is not None
    assert (first()["access_key_id"], second()["access_key_id"]) == ("a", "b")
