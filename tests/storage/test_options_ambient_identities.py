"""Credentials that nobody gives: those of a service account, and of a machine in Azure."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, file_of, ids

from headrace.errors import AccessDeniedError

WHO = "reader@project.iam.gserviceaccount.com"


def service_account() -> dict[str, str]:
    pem = generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": WHO,
        "private_key_id": "k1",
        "private_key": pem.decode(),
    }


def told(token: str | None) -> dict[str, Any]:
    """What a token says of who has it."""
    assert token is not None
    said = token.split(".")[1]
    found: dict[str, Any] = json.loads(urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    return found


@pytest.mark.parametrize("way", ["environment", "path", "content"])
def test_a_service_account_of_google(
    s3_server: S3Server,
    proxy_to: Callable[..., FaultProxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    bucket = s3_server.make_bucket(f"gs{uuid4().hex[:12]}")
    s3_server.put(bucket, "d/a.parquet", file_of())
    proxy, account, file = proxy_to(s3_server.url), service_account(), tmp_path / "key.json"
    file.write_text(json.dumps(account))
    options: dict[str, Any] = {"base_url": proxy.url}
    if way == "environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    else:
        options["token"] = str(file) if way == "path" else account
    assert ids(f"gs://{bucket}/d", storage_options=options) == list(range(ROWS))
    assert {told(request.key_id)["iss"] for request in proxy.log} == {WHO}


class Azure(AnsweringServer):
    """A store that gives nothing away, and beside it the service that tells a machine its token."""

    def __init__(self) -> None:
        self.tokens_sent: list[str | None] = []
        super().__init__(self._reply)

    def _reply(self, asked: HttpRequest) -> Reply:
        if asked.target.startswith("/identity"):
            about = {"access_token": "ey.mine", "expires_in": "3600", "token_type": "Bearer"}
            about |= {"expires_on": "4102444800", "resource": "https://storage.azure.com"}
            return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()
        self.tokens_sent.append(asked.authorization)
        return 403, {}, b""


def test_the_identity_of_a_machine_in_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Azure()
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/identity")
    monkeypatch.setenv("IDENTITY_HEADER", "here")
    options = {"account_name": "account", "endpoint_url": server.url}
    try:
        with pytest.raises(AccessDeniedError, match="403"):
            ids("az://container/a.parquet", storage_options=options)
    finally:
        server.stop()
    assert server.tokens_sent == ["Bearer ey.mine"]
