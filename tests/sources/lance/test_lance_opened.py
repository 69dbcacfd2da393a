"""Lance datasets in stores: options by the names that all datasets know, or by Lance's own."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_elsewhere import Elsewhere
from servers.azure import AzureServer
from servers.s3 import S3Server

from headrace import LanceDataset
from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.sources.lance.backend import LanceBackend
from headrace.sources.lance.opened import lance_options, located

ROWS = pa.table({"id": range(100)})


@pytest.fixture(autouse=True)
def no_aws_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.fixture(scope="module")
def in_s3(elsewhere: Elsewhere, s3_server: S3Server) -> str:
    uri = f"s3://{s3_server.make_bucket('lances')}/numbers.lance"
    elsewhere.write(uri, ROWS, max_rows_per_file=40, storage_options=by_own_names(s3_server))
    return uri


def by_own_names(server: S3Server) -> dict[str, str]:
    return {
        "aws_access_key_id": server.key,
        "aws_secret_access_key": server.secret,
        "aws_endpoint": server.url,
        "aws_region": server.region,
        "allow_http": "true",
    }


def test_rows_in_s3_by_either_names(elsewhere: Elsewhere, s3_server: S3Server, in_s3: str) -> None:
    nested = {
        "key": s3_server.key,
        "secret": s3_server.secret,
        "client_kwargs": {"endpoint_url": s3_server.url, "region_name": s3_server.region},
    }
    for options in (s3_server.storage_options, nested, by_own_names(s3_server)):
        there = elsewhere.backend(in_s3, storage_options=options)
        assert there.shard_rows().tolist() == [40, 40, 20]
        assert there.take([99, 0, 41])["id"].to_pylist() == [99, 0, 41]
        assert there.slice(30, 60)["id"].to_pylist() == list(range(30, 90))


def test_streaming_from_s3_with_workers(s3_server: S3Server, in_s3: str) -> None:
    loader, _ = LanceDataset.create_dataloader(
        in_s3, storage_options=s3_server.storage_options, num_workers=1, batch_size=16
    )
    assert [number for batch in loader for number in batch["id"].tolist()] == list(range(100))


def test_secrets_are_not_shown(s3_server: S3Server, in_s3: str) -> None:
    secret = "a-secret-nobody-should-see"
    options = {**s3_server.storage_options, "secret": secret}
    backend = LanceBackend(in_s3, storage_options=options)
    shown = repr(backend) + str(vars(backend))
    assert secret not in shown
    assert s3_server.key not in shown
    with pytest.raises(NothingFoundError, match="no version or tag 9") as found:
        LanceBackend(in_s3, version=9, storage_options=options)
    with pytest.raises(ReadError, match=r"s3://lances/other\.lance cannot be opened") as missing:
        LanceBackend("s3://lances/other.lance", storage_options=options)
    for error in (found.value, missing.value):
        assert secret not in str(error)
        assert error.__cause__ is None
        assert error.__context__ is None
    assert secret.encode() in pickle.dumps(backend)  # or workers could not read


def keys_asked_for(uri: str, server: Any) -> tuple[int, list[int]]:
    """With a function for credentials that have always just expired."""
    asked = []

    def options() -> dict[str, Any]:
        asked.append(1)
        return {**server, "expires_at": "2020-01-01T00:00:00Z"}

    backend = LanceBackend(uri, storage_options=options)
    made = len(asked)
    ids = [backend.get_row(row)["id"] for row in (3, 5)]
    return len(asked) - made, ids


def test_credentials_that_expire_are_asked_for_again(
    elsewhere: Elsewhere, s3_server: S3Server, in_s3: str
) -> None:
    asked, ids = elsewhere.call(keys_asked_for, in_s3, s3_server.storage_options)
    assert ids == [3, 5]
    assert asked >= 2


def test_rows_in_azure(elsewhere: Elsewhere, azure_server: AzureServer) -> None:
    container = azure_server.make_container("lances")
    own = {
        "account_name": azure_server.account,
        "account_key": azure_server.key,
        "azure_storage_endpoint": azure_server.url,
        "allow_http": "true",
    }
    uri = f"az://{container}/numbers.lance"
    elsewhere.write(uri, ROWS, storage_options=own)
    by_string = {"connection_string": azure_server.connection_string}
    there = elsewhere.backend(uri, storage_options=by_string)
    assert there.take([99, 0])["id"].to_pylist() == [99, 0]


@pytest.mark.parametrize(
    ("uri", "given", "expected"),
    [
        ("/data/rows.lance", {}, None),
        (
            "s3://b/rows.lance",
            {"key": "K", "secret": "S", "token": "T", "region": "eu-1"},
            {
                "aws_access_key_id": "K",
                "aws_secret_access_key": "S",
                "aws_session_token": "T",
                "aws_region": "eu-1",
            },
        ),
        (
            "s3://b/rows.lance",
            {"anon": True, "endpoint_url": "http://h:1", "client_max_retries": 3},
            {
                "aws_skip_signature": "true",
                "aws_endpoint": "http://h:1",
                "allow_http": "true",
                "client_max_retries": "3",
            },
        ),
        (
            "gs://b/rows.lance",
            {"token": "anon"},
            {"skip_signature": "true"},
        ),
        ("gs://b/rows.lance", {"token": "bearer"}, {"google_storage_token": "bearer"}),
    ],
    ids=["local", "keys", "anonymous", "gcs anonymous", "gcs token"],
)
def test_what_lance_is_told(
    uri: str, given: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert lance_options(uri, given) == (expected, None)


def test_keys_of_a_profile_go_with_the_time_when_they_expire(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {
        "Version": 1,
        "AccessKeyId": "K",
        "SecretAccessKey": "S",
        "Expiration": "2030-01-01T00:00:00Z",
    }
    (tmp_path / "told.json").write_text(json.dumps(told))
    command = f"credential_process = cat {tmp_path}/told.json"
    (tmp_path / "config").write_text(f"[profile mine]\nregion = eu-1\n{command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    uri, given = "s3://b/rows.lance", {"profile": "mine"}
    expected = {"aws_access_key_id": "K", "aws_secret_access_key": "S", "aws_region": "eu-1"}
    options, expires_at = lance_options(uri, given)
    assert options == expected
    assert expires_at is not None
    assert timedelta() < expires_at - datetime.now(UTC) <= timedelta(minutes=30)  # asked for again
    own = {"aws_access_key_id": "A", "aws_secret_access_key": "B"}
    assert lance_options(uri, {**given, **own}) == ({**own, "aws_region": "eu-1"}, None)


def test_options_that_are_not_known() -> None:
    with pytest.raises(OptionError, match="'secrte' is not valid"):
        lance_options("s3://b/rows.lance", {"key": "K", "secret": "S", "secrte": "S"})
    with pytest.raises(OptionError, match="'aws_region' for Lance must be a str"):
        lance_options("s3://b/rows.lance", {"anon": True, "aws_region": ["eu"]})
    with pytest.raises(OptionError, match="credentials must not be in the URL"):
        located("s3://key:secret@bucket/rows.lance")


def test_paths_mean_the_same_in_every_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("rows.lance", Path("rows.lance"), f"file://{tmp_path}/rows.lance", "rows.lance/"):
        assert located(given) == f"{tmp_path}/rows.lance"
    assert located("s3://bucket/rows.lance/") == "s3://bucket/rows.lance"
