"""Credentials of S3 that nobody gives because they are around."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from nothing_around import KEYS, _nothing_around  # noqa: F401  # fixtures
from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, file_of, ids

from headrace.errors import MissingExtraError, OptionError, ReadError
from headrace.storage import store_for
from headrace.storage._options import bucket_region, s3_options

EVERYTHING = list(range(ROWS))


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
        self.asked: list[HttpRequest] = []
        super().__init__(self._note)

    def _note(self, asked: HttpRequest) -> Reply:
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
    with pytest.raises(OptionError, match="'half' gave no credentials: PartialCredentialsError"):
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


def test_a_process_that_returns_credentials(bucket: tuple[str, FaultProxy], tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(PROCESS)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    command = f"{sys.executable} {tmp_path}/tell.py {tmp_path}/count"
    write_profiles(tmp_path, bucket[1].url, told=f"credential_process = {command} {later}")
    place = {"endpoint_url": bucket[1].url}
    assert keys_sent(bucket, profile="told", **place) == {"AKPROCESS0", "AKPROCESS1"}, "one a store"


@pytest.mark.parametrize("command", ["false hunter2", "echo hunter2"])
def test_a_process_that_returns_none(tmp_path: Path, command: str) -> None:
    write_profiles(tmp_path, "http://h", bad=f"credential_process = {command}")
    with pytest.raises(OptionError, match="the AWS profile 'bad' gave no credentials") as caught:
        store_for("s3://b", {"profile": "bad"})
    assert "hunter2" not in repr(caught.value)


def test_a_profile_needs_boto3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profiles(tmp_path, "http://h")
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    with pytest.raises(MissingExtraError, match=r"boto3.*'work'.*headrace\[s3\]"):
        store_for("s3://b", {"profile": "work"})
    store_for("s3://b", {"endpoint_url": "http://h"})


class Metadata(AnsweringServer):
    """What a machine of Amazon's asks who it is: the newer kind, with a token, and containers'."""

    def __init__(self) -> None:
        super().__init__(self._tell)

    def _tell(self, asked: HttpRequest) -> Reply:
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


def test_the_role_of_a_machine(
    bucket: tuple[str, FaultProxy],
    metadata: Metadata,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", metadata.url)
    assert keys_sent(bucket, endpoint_url=bucket[1].url) == {"AKROLE"}
    monkeypatch.delenv("AWS_METADATA_ENDPOINT")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)  # of boto3
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\n")
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
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_profiles(tmp_path, "http://h")
    assert key_found() == "AKDEFAULT"
    (tmp_path / "identity").write_text("a-word")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3_server.url)
    assert key_found().startswith("ASIA"), "of a session"


def key_found() -> str:
    keys = s3_options({}).keys
    assert keys is not None
    return str(keys()["access_key_id"])


def test_nobody_knows_any_credentials(
    bucket: tuple[str, FaultProxy], listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", listening.url)
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
