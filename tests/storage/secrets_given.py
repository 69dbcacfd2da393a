"""Locations of every protocol that are read with secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from secrets_searched import KEY, PASSWORD, SECRET, TOKEN
from servers.http_files import HttpServer
from servers.s3 import S3Server
from store_contract import file_of


@dataclass(frozen=True)
class Case:
    """A location that can be read with secrets, and what to say to read it."""

    path: str | list[str]
    options: Any = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


class Vault(MemoryFileSystem):
    """A filesystem of somebody else's, that is careless with what it is told."""

    protocol = "vault"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, *, combination: Any, fails: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.combination, self.fails = combination, fails
        if fails == "at once":
            raise RuntimeError(f"{combination} does not open")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("vault://", "memory://", 1))

    def info(self, path: str, **options: Any) -> Any:
        if self.fails:
            kind = {"missing": FileNotFoundError, "denied": PermissionError}.get(
                self.fails, OSError
            )
            raise kind(f"{path} with {self.combination}")
        return super().info(path, **options)

    def find(self, path: str, **options: Any) -> Any:
        if self.fails:
            raise ValueError(f"{path} with {self.combination}")
        return super().find(path, **options)


@pytest.fixture
def vault() -> Iterator[str]:
    fsspec.register_implementation("vault", Vault, clobber=True)
    Vault(combination="x").pipe("/d/a.parquet", file_of())
    yield "vault://d"
    Vault.store.clear()


def of_s3(server: S3Server, url: str) -> dict[str, Case]:
    bucket = server.make_bucket(f"secrets-{uuid4().hex[:12]}")
    server.put(bucket, "d/a.parquet", file_of())
    path = f"s3://{bucket}/d"
    keys = {"key": KEY, "secret": SECRET, "token": TOKEN}
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    ambient = dict(zip(names, keys.values(), strict=True))
    return {
        "keys": Case(path, {**keys, "endpoint_url": url}),
        "client_kwargs": Case(
            path, {"client_kwargs": {**ambient_names(keys), "endpoint_url": url}}
        ),
        "function": Case(path, lambda: {**keys, "endpoint_url": url}),
        "environment": Case(path, {"endpoint_url": url}, ambient),
        "userinfo in the endpoint": Case(
            path, {**keys, "endpoint_url": url.replace("://", f"://me:{TOKEN}@")}
        ),
    }


def ambient_names(keys: dict[str, str]) -> dict[str, str]:
    return {
        "aws_access_key_id": keys["key"],
        "aws_secret_access_key": keys["secret"],
        "aws_session_token": keys["token"],
    }


@pytest.fixture
def open_http(http_server: HttpServer) -> HttpServer:
    http_server.access.users["me"] = PASSWORD
    http_server.access.tokens.add(TOKEN)
    http_server.put("d/a.parquet", file_of())
    return http_server


def of_http(url: str) -> dict[str, Case]:
    host = url.removeprefix("http://")
    login = quote(PASSWORD, safe="")
    file = f"{url}/d/a.parquet"
    return {
        "password in the URL": Case(f"http://me:{login}@{host}/d"),
        "password in the URL of a file": Case(f"http://me:{login}@{host}/d/a.parquet"),
        "auth": Case(f"{url}/d", {"auth": ("me", PASSWORD)}),
        "token": Case(f"{url}/d", {"token": TOKEN}),
        "function": Case(f"{url}/d", lambda: {"token": TOKEN}),
        "headers": Case(
            f"{url}/d", {"headers": {"Authorization": f"Bearer {TOKEN}", "X-Key": SECRET}}
        ),
        "signed": Case(
            f"{file}?X-Amz-Credential={KEY}&X-Amz-Signature={TOKEN}&X-Amz-Security-Token={TOKEN}",
            {"token": TOKEN},
        ),
        "unknown parameter": Case([f"{file}?code={quote(SECRET)}&raw=1"], {"token": TOKEN}),
        "signature of Azure": Case([f"{file}?sv=1&sp=r&sig={quote(SECRET)}"], {"token": TOKEN}),
        "token as user": Case(
            f"http://{TOKEN}@{host}/d", {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        ),
    }
