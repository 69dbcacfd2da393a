"""Canaries where something goes wrong: servers, options, filesystems, reading."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from obstore.store import S3Store
from secrets_given import Case, Vault, of_http, vault  # noqa: F401  # fixtures
from secrets_searched import ACCOUNT_KEY, KEY, SECRET, TOKEN, Output, found_in, output  # noqa: F401  # fixtures
from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.faults import Answer
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, file_of

from headrace import StructuredDataset
from headrace.errors import HeadraceError


class Echo(AnsweringServer):
    """Answers with an error that repeats all that it was asked, as careless servers do."""

    def __init__(self) -> None:
        self.status = 403
        self.as_xml = False
        super().__init__(self._repeat)

    def _repeat(self, asked: HttpRequest) -> Reply:
        if asked.method == "HEAD" and self.status != 403:  # so that a listing is asked for
            return 404, {}, b""
        heard = asked.head.raw.decode("latin-1") + asked.body.decode("latin-1")
        values = " ".join(line.partition(": ")[2] for line in heard.splitlines())
        if self.as_xml:
            said = f"<Error><Code>InvalidToken</Code><Token-0>{heard}</Token-0></Error>"
        else:
            said = f"{values.rpartition('=')[0]} {values} {asked.target} {heard}"
        return self.status, {"Content-Type": "text/plain"}, said.encode()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.stop()


def troubles(url: str) -> dict[str, Case]:
    """Locations on a server that is not what it should be, with secrets for all protocols."""
    keys = {"key": KEY, "secret": SECRET, "token": TOKEN}
    azure = {"account_name": "me", "endpoint_url": url}
    string = f"AccountName=me;AccountKey={ACCOUNT_KEY};BlobEndpoint={url}"
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return {
        "s3": Case("s3://b/d", {**keys, "endpoint_url": url}),
        "s3, function": Case("s3://b/d", lambda: {**keys, "endpoint_url": url}),
        "s3, environment": Case(
            "s3://b/d", {"endpoint_url": url}, dict(zip(names, keys.values(), strict=True))
        ),
        "azure, key": Case("az://c/d", {**azure, "account_key": ACCOUNT_KEY}),
        "azure, signature": Case(
            "az://c/d", {**azure, "sas_token": f"sv=1&se=2&sig={quote(SECRET, safe='')}"}
        ),
        "azure, string": Case("az://c/d", {"connection_string": string}),
        "azure, token": Case("az://c/d", {**azure, "token": TOKEN}),
        "gcs": Case("gs://b/d", {"base_url": url, "token": TOKEN}),
        "hub": Case("hf://datasets/me/data", {"token": TOKEN, "endpoint": url}),
        "hub, environment": Case(
            "hf://datasets/me/data", {}, {"HF_TOKEN": TOKEN, "HF_ENDPOINT": url}
        ),
        **{f"http, {name}": case for name, case in of_http(url).items()},
    }


def fails(
    output: Output, case: Case, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> BaseException:
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    options = {"retries": 1, "timeout_s": 60, **more}
    with pytest.raises(HeadraceError) as caught:
        StructuredDataset(case.path, storage_options=case.options, **options)
    output.add_error(caught.value)
    return caught.value


@pytest.mark.parametrize("name", list(troubles("http://x")))
def test_servers_that_repeat_what_they_hear(
    echo: Echo, output: Output, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = troubles(echo.url)[name]
    for echo.status in (400, 401, 404, 412, 500):
        fails(output, case, monkeypatch, retries=0)
    echo.status, echo.as_xml = 403, True
    fails(output, case, monkeypatch)
    echo.as_xml = False
    fails(output, case, monkeypatch)
    assert any(found_in(f"{request.target} {request.authorization}") for request in echo.log) or (
        "key" in name or "s3" in name or "string" in name
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "http://bad host", "ftp://x"]
)
def test_servers_that_are_not_there(
    output: Output, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, case in troubles(url).items():
        if url.startswith("http") or not name.startswith("http"):
            fails(output, case, monkeypatch, retries=0)
            for variable in case.environment:
                monkeypatch.delenv(variable)


def test_answers_that_are_no_answers(
    http_server: HttpServer, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reply in (
        (200, {"Content-Type": "application/json"}, b"{nothing"),
        (200, {"Content-Type": "text/html"}, b"<a href='x'>"),
        (302, {"Location": f"http://me:{TOKEN}@127.0.0.1:1/x?sig={TOKEN}"}, b""),
        (302, {"Location": f"http://127.0.0.1:1/x?code={TOKEN}"}, b""),
        (302, {"Location": "http://[bad"}, b""),
        (206, {"Content-Range": f"bytes {TOKEN}"}, b""),
        (200, {"Last-Modified": f"{TOKEN}"}, b""),
    ):
        http_server._respond = lambda asked, reply=reply: (reply[0], dict(reply[1]), reply[2])
        for name, case in troubles(http_server.url).items():
            if name != "s3, environment":
                fails(output, case, monkeypatch, retries=0)


BAD_OPTIONS: dict[str, tuple[str, Any]] = {
    "s3, unknown": ("s3://b/d", {"secrt": SECRET}),
    "s3, unknown inside": ("s3://b/d", {"client_kwargs": {"secrt": SECRET}}),
    "s3, one of two": ("s3://b/d", {"key": KEY}),
    "s3, other of two": ("s3://b/d", {"secret": SECRET}),
    "s3, token alone": ("s3://b/d", {"token": TOKEN}),
    "s3, twice": ("s3://b/d", {"key": KEY, "access_key_id": TOKEN, "secret": SECRET}),
    "s3, no str": ("s3://b/d", {"key": [KEY], "secret": {"a": SECRET}}),
    "s3, region": ("s3://b/d", {"key": KEY, "secret": SECRET, "region": [TOKEN]}),
    "s3, flag": ("s3://b/d", {"anon": TOKEN}),
    "s3, config": ("s3://b/d", {"config_kwargs": {"x": TOKEN}}),
    "s3, endpoint": ("s3://b/d", {"endpoint_url": f"http://me:{TOKEN}@"}),
    "s3, line break": (
        "s3://b/d",
        {"key": KEY, "secret": SECRET, "token": TOKEN + "\n", "endpoint_url": "http://127.0.0.1:1"},
    ),
    "s3, userinfo": (f"s3://me:{TOKEN}@b/d", {}),
    "s3, query": (f"s3://b/d?X-Amz-Signature={TOKEN}", {}),
    "s3, expiry": ("s3://b/d", lambda: {"key": KEY, "secret": SECRET, "expires_at": TOKEN}),
    "azure, unknown": ("az://c/d", {"acount_key": ACCOUNT_KEY}),
    "azure, bad key": ("az://c/d", {"account_name": "me", "account_key": TOKEN}),
    "azure, no str": ("az://c/d", {"account_name": "me", "account_key": [ACCOUNT_KEY]}),
    "azure, bad string": ("az://c/d", {"connection_string": f"AccountKey={ACCOUNT_KEY}"}),
    "azure, string of nothing": ("az://c/d", {"connection_string": TOKEN}),
    "azure, bad signature": ("az://c/d", {"account_name": "me", "sas_token": f"{TOKEN}&%%"}),
    "azure, credential": ("az://c/d", {"account_name": "me", "credential": {"a": TOKEN}}),
    "gcs, unknown": ("gs://b/d", {"tokn": TOKEN}),
    "gcs, key": ("gs://b/d", {"token": {"private_key": TOKEN, "type": "service_account"}}),
    "gcs, key as text": ("gs://b/d", {"service_account_key": f'{{"private_key": "{TOKEN}"'}),
    "gcs, list": ("gs://b/d", {"token": [TOKEN]}),
    "gcs, file": ("gs://b/d", {"token": f"/{TOKEN}.json"}),
    "gcs, line break": ("gs://b/d", {"token": TOKEN + "\n", "base_url": "http://127.0.0.1:1"}),
    "http, unknown": ("http://127.0.0.1:1/d", {"tokn": TOKEN}),
    "http, line break": ("http://127.0.0.1:1/d", {"token": TOKEN + "\n"}),
    "http, header": ("http://127.0.0.1:1/d", {"headers": {"X": TOKEN + "€"}}),
    "http, auth": ("http://127.0.0.1:1/d", {"auth": TOKEN}),
    "http, bad URL": (f"http://me:{TOKEN}@[::1/d", {}),
    "http, bad port": (f"http://me:{TOKEN}@127.0.0.1:port/d", {}),
    "hub, unknown": ("hf://datasets/me/data", {"tokn": TOKEN}),
    "hub, line break": ("hf://datasets/me/data", {"token": TOKEN + "\n"}),
    "hub, bad path": ("hf://me", {"token": TOKEN}),
    "vault, at once": ("vault://d", {"combination": TOKEN, "fails": "at once"}),
    "vault, unknown": ("vault://d", {"combination": TOKEN, "password": SECRET, "use_listings": 1}),
    "vault, missing": ("vault://d", {"combination": TOKEN, "fails": "missing"}),
    "vault, denied": ("vault://d", {"combination": [SECRET], "fails": "denied"}),
    "vault, broken": ("vault://d", {"combination": {"x": TOKEN.encode()}, "fails": "broken"}),
    "no protocol": ("nosuch://d", {"combination": TOKEN}),
    "http, unknown parameter": (f"http://127.0.0.1:1/d?code={TOKEN}", {}),
    "http, bad URL with a parameter": (f"http://[::1/d?code={TOKEN}", {}),
    "webdav, unknown parameter": (f"nosuch://h/d?code={TOKEN}", {}),
    "two stores": ([f"http://me:{TOKEN}@h/d", f"https://h/d?sig={TOKEN}", "s3://b"], {}),
    "no function": ("s3://b/d", lambda: [TOKEN]),
    "no mapping": ("s3://b/d", TOKEN),
}


@pytest.mark.parametrize("name", list(BAD_OPTIONS))
def test_options_that_are_wrong(
    vault: str, output: Output, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    path, options = BAD_OPTIONS[name]
    if name == "vault, unknown":
        options = {**options, "fails": "missing"}
    fails(output, Case(path, options), monkeypatch, retries=0)


@pytest.mark.parametrize("fault", ["missing", "denied", "broken"])
def test_filesystems_that_are_given_and_fail(
    vault: str, output: Output, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Vault(combination={"x": [TOKEN]}, fails=fault)
    fails(output, Case("/d"), monkeypatch, filesystem=files, retries=0)


def test_object_stores_that_are_given_and_fail(
    echo: Echo, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(
        "b",
        access_key_id=KEY,
        secret_access_key=SECRET,
        token=TOKEN,
        region="us-east-1",
        endpoint=echo.url,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    for echo.status in (400, 403, 404, 500):
        fails(output, Case("d"), monkeypatch, filesystem=store, retries=0)


def test_a_secret_at_the_edge_of_what_is_shown(
    http_server: HttpServer, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a secret is one too, and must not be left over by cutting a text."""
    for before in range(540, 601, 3):
        body = b"." * before + SECRET.encode() * 3
        http_server._respond = lambda asked, body=body: (403, {}, body)
        error = fails(output, Case(f"{http_server.url}/a", {"headers": {"X": SECRET}}), monkeypatch)
        assert len(str(error)) < 900
        assert SECRET[:6] not in str(error)


@pytest.mark.parametrize(("fault", "workers"), [("403", 2), ("404", 0), ("cut", 2)])
def test_failures_while_reading(
    s3_server: S3Server,
    proxy_to: Callable[..., FaultProxy],
    output: Output,
    workers: int,
    fault: str,
) -> None:
    bucket = s3_server.make_bucket(f"secrets-{uuid4().hex[:12]}")
    for index in range(4):
        s3_server.put(bucket, f"d/{index}.parquet", file_of(rows=20_000))
    proxy = proxy_to(s3_server.url)
    options = {"key": KEY, "secret": SECRET, "token": TOKEN, "endpoint_url": proxy.url}
    loader, _ = StructuredDataset.create_dataloader(
        f"s3://{bucket}/d", num_workers=workers, storage_options=options, retries=0
    )
    body = f"<Error><Token-0>{TOKEN}</Token-0>{KEY} {SECRET}</Error>".encode()
    proxy.inject(Answer(500 if fault == "cut" else int(fault), {}, body), method="GET")
    with pytest.raises(HeadraceError) as caught:
        list(loader)
    output.add_error(caught.value)
    output.add("stats", loader.stats())
    output.add("loader", loader)


def test_what_is_skipped(
    s3_server: S3Server, proxy_to: Callable[..., FaultProxy], output: Output
) -> None:
    bucket = s3_server.make_bucket(f"secrets-{uuid4().hex[:12]}")
    for index in range(2):
        s3_server.put(bucket, f"d/{index}.parquet", file_of())
    proxy = proxy_to(s3_server.url)
    proxy.inject(Answer(500, {}, f"{TOKEN} {SECRET}".encode()), path="1.parquet", method="GET")
    options = {"key": KEY, "secret": SECRET, "token": TOKEN, "endpoint_url": proxy.url}
    loader, _ = StructuredDataset.create_dataloader(
        f"s3://{bucket}/d", num_workers=0, storage_options=options, retries=0, on_error="skip"
    )
    assert sum(len(batch["id"]) for batch in loader) == ROWS
    stats = loader.stats()
    assert "1.parquet" in repr(stats)
    output.add("stats", stats)
