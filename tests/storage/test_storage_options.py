"""Options by all of their names, and credentials that nobody gives because they are around."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import certifi
import pytest
from servers.answering import AnsweringServer, Asked, Reply
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, file_of, ids

from penstock.errors import OptionError, ReadError
from penstock.storage import Access, RetryPolicy, store_for
from penstock.storage.options.azure import azure_options
from penstock.storage.options.gcs import gcs_options, gcsfs_options
from penstock.storage.options.s3 import bucket_region, s3_options

EVERYTHING = list(range(ROWS))
AMBIENT = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "STORAGE_EMULATOR_HOST",
)
KEYS = {"key": "AK", "secret": "SK"}


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No profile and no variable of whoever runs the tests."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in AMBIENT:
        monkeypatch.delenv(name, raising=False)


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
        found, _ = azure_options({name: value})
        assert found[meant] == (value.rstrip("/") if isinstance(value, str) else value)


def test_connection_strings_of_azure() -> None:
    string = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a2V5=;EndpointSuffix=x.net"
    assert azure_options({"connection_string": string})[0] == {
        "account_name": "me",
        "account_key": "a2V5=",
        "endpoint": "https://me.blob.x.net",
        "credential_type": "access_key",
    }
    development, _ = azure_options({"connection_string": "UseDevelopmentStorage=true"})
    assert development == {"use_emulator": True}
    other, _ = azure_options({"connection_string": string, "account_name": "you"})
    assert other["account_name"] == "you"


GCS_NAMES = [
    ("token bearer_token access_token", "T", "bearer_token", "T"),
    ("anon anonymous skip_signature", True, "skip_signature", True),
    ("token", "anon", "skip_signature", True),
    ("service_account", "/f", "service_account", "/f"),
    ("service_account_key", '{\n"a": 1}', "service_account_key", '{\n"a": 1}'),
    ("application_credentials", "/f", "application_credentials", "/f"),
    ("base_url", "http://h:1/", "base_url", "http://h:1"),
    ("token", {"type": "service_account"}, "service_account_key", '{"type": "service_account"}'),
]


@pytest.mark.parametrize(("names", "value", "meant", "expected"), GCS_NAMES)
def test_names_of_gcs(names: str, value: Any, meant: str, expected: Any) -> None:
    for name in names.split():
        assert gcs_options({name: value})[0] == {meant: expected}


def test_other_options_of_gcs(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text("{}")
    assert gcs_options({"token": str(key)})[0] == {"application_credentials": str(key)}
    assert gcs_options({"token": key})[0] == {"application_credentials": str(key)}
    for unused in ({"project": "p"}, {"access": "read_only"}, {"token": "google_default"}):
        assert gcs_options(unused) == ({}, {})
    assert gcs_options({"verify": False})[1] == {"allow_invalid_certificates": True}
    emulator = {"endpoint_url": "http://h:1/", "project": "p", "anon": True}
    expected = {"endpoint_url": "http://h:1", "project": "p", "token": "anon"}
    assert gcsfs_options(emulator) == expected
    assert gcsfs_options({"bearer_token": "T"})["token"].token == "T"


# --- what is wrong


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


def test_two_fields_of_options_are_two_options() -> None:
    """Nothing of one store is kept for the next."""
    first, second = (s3_options({"key": name, "secret": "s"}).keys for name in ("a", "b"))
    assert first is not None
    assert second is not None
    assert (first()["access_key_id"], second()["access_key_id"]) == ("a", "b")


# --- what is around


@pytest.fixture
def bucket(s3_server: S3Server, proxy_to: Callable[..., FaultProxy]) -> tuple[str, FaultProxy]:
    """A location, and the proxy that sees by which key it is read."""
    name = s3_server.make_bucket(f"ambient-{uuid4().hex[:12]}")
    s3_server.put(name, "d/a.parquet", file_of())
    s3_server.put(name, "d/b.orc", file_of("orc"))
    return f"s3://{name}/d", proxy_to(s3_server.url)


def keys_sent(location: tuple[str, FaultProxy], **options: Any) -> set[str | None]:
    """Read everything, and see which keys the server saw."""
    path, proxy = location
    proxy.clear()
    assert ids(f"{path}/a.parquet", storage_options=options) == EVERYTHING
    assert ids(f"{path}/b.orc", "orc", storage_options=options) == EVERYTHING
    return {request.key_id for request in proxy.log}


def test_keys_of_the_environment(
    bucket: tuple[str, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert keys_sent(bucket, endpoint_url=bucket[1].url) == {"AKENV"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket[1].url)
    assert keys_sent(bucket) == {"AKENV"}
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert keys_sent(bucket) == {"AKENV"}


def tokens_sent(server: AnsweringServer) -> set[str | None]:
    return {seen.head.value(b"x-amz-security-token") for seen in server.asked}


class Listening(AnsweringServer):
    """Has nothing, and remembers all that it was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        super().__init__(self._note)

    def _note(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        return 404, {}, b""


@pytest.fixture
def listening() -> Iterator[Listening]:
    server = Listening()
    yield server
    server.stop()


def test_a_key_is_not_mixed_with_the_token_of_the_environment(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of the environment")
    url = {"endpoint_url": listening.url}
    store_for("s3://b", {**KEYS, **url}).status("s3://b/x")
    assert tokens_sent(listening) == {None}
    listening.asked.clear()
    store_for("s3://b", {**KEYS, **url, "token": "mine"}).status("s3://b/x")
    assert tokens_sent(listening) == {"mine"}
    listening.asked.clear()
    store_for("s3://b", url).status("s3://b/x")
    assert tokens_sent(listening) == {"of the environment"}
    listening.asked.clear()
    store_for("s3://b", {**url, "anon": True}).status("s3://b/x")
    assert {asked.authorization for asked in listening.asked} == {None}
    assert tokens_sent(listening) == {None}


def write_profiles(folder: Path, url: str, **settings: str) -> None:
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = s\n"
        "[work]\naws_access_key_id = AKWORK\naws_secret_access_key = s\naws_session_token = t\n"
        "[half]\naws_access_key_id = AKHALF\n"
    )
    lines = [f"[profile {name}]\n{text}\n" for name, text in settings.items()]
    (folder / "config").write_text(
        f"[default]\nendpoint_url = {url}\n[profile work]\nregion = eu-west-3\n"
        f"endpoint_url = {url}\n" + "".join(lines)
    )


def test_profiles(
    bucket: tuple[str, FaultProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket[1].url
    write_profiles(tmp_path, url)
    assert keys_sent(bucket) == {"AKDEFAULT"}
    assert keys_sent(bucket, profile="work") == {"AKWORK"}
    assert keys_sent(bucket, profile="work", key="AKMINE", secret="s") == {"AKMINE"}
    assert s3_options({"profile": "work"}).config["region"] == "eu-west-3"
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert keys_sent(bucket) == {"AKWORK"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert keys_sent(bucket) == {"AKENV"}
    assert keys_sent(bucket, profile="work") == {"AKWORK"}, "what is named comes first"
    monkeypatch.delenv("AWS_PROFILE")
    assert keys_sent(bucket, endpoint_url=url) == {"AKENV"}
    with pytest.raises(OptionError, match="'half' has a key and no secret"):
        store_for("s3://b", {"profile": "half"})


def test_a_profile_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(OptionError, match="no AWS profile is called 'nobody'"):
        store_for("s3://b")


PROCESS = """
import json, sys
from pathlib import Path
count = Path(sys.argv[1])
number = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (number + 1))
print(json.dumps({"Version": 1, "AccessKeyId": f"AKPROCESS{number}", "SecretAccessKey": "s",
                  "SessionToken": "t", "Expiration": sys.argv[2]}))
"""


def test_a_process_that_tells_credentials(bucket: tuple[str, FaultProxy], tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(PROCESS)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    command = f"{sys.executable} {tmp_path}/tell.py {tmp_path}/count"
    write_profiles(
        tmp_path,
        bucket[1].url,
        told=f"credential_process = {command} {later}",
        brief=f"credential_process = {command} 2020-01-01T00:00:00Z",
    )
    place = {"endpoint_url": bucket[1].url}
    assert keys_sent(bucket, profile="told", **place) == {"AKPROCESS0", "AKPROCESS1"}, "one a store"
    told = keys_sent(bucket, profile="brief", **place)
    assert len(told) > 2, "they have expired, and others are asked for"


@pytest.mark.parametrize(
    "command",
    ["/no/such/hunter2", "false hunter2", "echo hunter2", "echo '[]' hunter2", "echo 'hunter2", ""],
)
def test_a_process_that_tells_none(tmp_path: Path, command: str) -> None:
    write_profiles(tmp_path, "http://h", bad=f"credential_process = {command}")
    with pytest.raises(OptionError, match="of the AWS profile 'bad' gave no credentials") as caught:
        store_for("s3://b", {"profile": "bad"})
    assert "hunter2" not in repr(caught.value)


class Metadata(AnsweringServer):
    """What a machine of Amazon's asks who it is: the newer kind, with a token, and containers'."""

    def __init__(self) -> None:
        super().__init__(self._tell)

    def _tell(self, asked: Asked) -> Reply:
        later = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = asked.target
        if asked.method == "PUT" and path == "/latest/api/token":
            return 200, {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}, b"a-token"
        if path == "/latest/meta-data/iam/security-credentials/":
            return 200, {}, b"a-role"
        if path.startswith("/latest/meta-data/iam/security-credentials/"):
            known = asked.head.value(b"x-aws-ec2-metadata-token") == "a-token"
            return (200 if known else 401), {}, _credentials("AKROLE", later)
        if path == "/container" and asked.authorization == "a-word":
            return 200, {}, _credentials("AKCONTAINER", later)
        return 404, {}, b""


def _credentials(key: str, later: str) -> bytes:
    told = {
        "Code": "Success",
        "LastUpdated": "2026-01-01T00:00:00Z",
        "Type": "AWS-HMAC",
        "RoleArn": "arn:aws:iam::1:role/a-role",
        "AccessKeyId": key,
        "SecretAccessKey": "s",
        "Token": "t",
        "Expiration": later,
    }
    return json.dumps(told).encode()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    yield server
    server.stop()


@pytest.mark.parametrize("name", ["AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT"])
def test_the_role_of_a_machine(
    bucket: tuple[str, FaultProxy],
    metadata: Metadata,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv(name, metadata.url)
    assert keys_sent(bucket, endpoint_url=bucket[1].url) == {"AKROLE"}


def test_the_role_of_a_container(
    bucket: tuple[str, FaultProxy],
    metadata: Metadata,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "word").write_text("a-word")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "word"))
    assert keys_sent(bucket, endpoint_url=bucket[1].url) == {"AKCONTAINER"}


def test_an_identity_of_the_web_comes_before_a_default_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The client asks for its keys; it does so by https alone, so it is not seen here."""
    write_profiles(tmp_path, "http://h")
    assert s3_options({}).keys is not None
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    assert s3_options({}).keys is None


def test_nobody_knows_any_credentials(
    bucket: tuple[str, FaultProxy], listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", listening.url)
    with pytest.raises(ReadError, match=r"a\.parquet: no credentials were got.*1 attempt in"):
        keys_sent(bucket, endpoint_url=bucket[1].url)


def test_the_region_of_a_bucket() -> None:
    answers = {
        "/here": (200, {"x-amz-bucket-region": "eu-west-3"}, b""),
        "/denied": (403, {"x-amz-bucket-region": "eu-north-1"}, b""),
        "/moved": (301, {"x-amz-bucket-region": "ap-south-1", "Location": "/x"}, b""),
        "/silent": (200, {}, b""),
    }
    server = AnsweringServer(lambda asked: answers.get(asked.target, (404, {}, b"")))
    host = server.url.removeprefix("http://")
    try:
        regions = {name: bucket_region(name, host, secure=False) for name in ("here", "denied")}
        assert regions == {"here": "eu-west-3", "denied": "eu-north-1"}
        assert bucket_region("moved", host, secure=False) == "ap-south-1"
        for unknown in ("silent", "none", "bad name"):
            assert bucket_region(unknown, host, secure=False) == "us-east-1"
    finally:
        server.stop()
    assert bucket_region("here", host, secure=False) == "us-east-1"
