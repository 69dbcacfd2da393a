"""Canaries in every option of every protocol, and a search of everything that comes out."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import traceback
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, quote_plus
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from obstore.store import S3Store
from servers.answering import AnsweringServer, Asked, Reply
from servers.azure import AzureServer
from servers.faults import Answer
from servers.gcs import GcsServer
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from store_contract import ROWS, chain, file_of

from penstock import StructuredDataset
from penstock.cli import main
from penstock.errors import PenstockError
from penstock.storage import Access
from penstock.storage.redaction import Redaction, has_secret, public_url, without_secrets

MARK = "c4n4ry"
KEY = f"AKIA{MARK}key"
SECRET = f"{MARK}/se+cret=="
TOKEN = f"{MARK}.token_"
PASSWORD = f"{MARK}:p@ss w/rd"
ACCOUNT_KEY = b64encode(f"{MARK} account key".encode()).decode()


def written(secret: str) -> set[str]:
    """How a secret may be written."""
    return {
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        b64encode(secret.encode()).decode().rstrip("="),
        json.dumps(secret)[1:-1],
    }


CANARIES = {form for one in (SECRET, TOKEN, PASSWORD, ACCOUNT_KEY) for form in written(one)}
CANARIES |= {MARK, b64encode(f"me:{PASSWORD}".encode()).decode().rstrip("=")}


def found_in(output: bytes | str) -> set[str]:
    data = output.encode() if isinstance(output, str) else output
    return {canary for canary in CANARIES if canary.encode() in data}


class Output:
    """Everything that people, logs and files get to see; canaries in it fail the test."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes | str]] = []

    def add(self, what: str, output: Any) -> None:
        text = output if isinstance(output, bytes | str) else f"{output}\n{output!r}"
        self.seen.append((what, text))

    def add_error(self, error: BaseException) -> None:
        for one in chain(error):
            self.add(f"{type(one).__name__}", str(one))
            self.add(f"{type(one).__name__}, repr", repr(one))
            self.add(f"{type(one).__name__}, args", repr(one.args))
            self.add(f"{type(one).__name__}, attributes", repr(vars(one)))
        self.add("traceback", "".join(traceback.format_exception(error)))

    def add_folder(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            self.add("a path in the cache", str(path))
            if path.is_file():
                self.add(f"the content of {path.name}", path.read_bytes())

    def check(self) -> None:
        assert self.seen
        leaks = [(what, found_in(text), text) for what, text in self.seen if found_in(text)]
        assert not leaks, "\n".join(f"{what}: {text!r}"[:1500] for what, _, text in leaks[:5])


class Collecting(logging.Handler):
    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.getMessage()} {record.args!r} {record.exc_info!r}"
        self._output.add(f"log of {record.name}", text)


@pytest.fixture
def output(capfd: pytest.CaptureFixture[str]) -> Iterator[Output]:
    """Collects logs of every logger at every level, warnings, and what is printed."""
    collected = Output()
    handler = Collecting(collected)
    loggers = [logging.root, *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    logging.root.addHandler(handler)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield collected
    logging.root.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    gc.collect()
    for one in warned:
        collected.add("a warning", str(one.message))
    for printed in capfd.readouterr():
        collected.add("printed", printed)
    collected.check()


def look_at_everything(output: Output, path: Any, folder: Path, **options: Any) -> None:
    """Use all that there is, and collect all that it shows."""
    options.setdefault("num_workers", 0)
    cache = folder / "cache"
    loader, dataset = StructuredDataset.create_dataloader(
        path, batch_size=8, cache_dir=cache, retries=1, **options
    )
    steps = iter(loader)
    next(steps)
    state = loader.state_dict()
    assert sum(len(batch["id"]) for batch in steps) == ROWS - 8
    loader.load_state_dict(state)
    dataset.save_manifest(folder / "manifest")
    found = dataset._found
    for one in (loader, dataset, found, found.listing, found.reader, found.reader.store):
        output.add(type(one).__name__, one)
    output.add("connection", getattr(found.reader.store, "connection", ""))
    output.add("pipeline", dataset.pipeline)
    output.add("planner", repr(vars(dataset.planner)))
    for value in (state, dataset.fingerprint, loader.stats(), list(dataset.files), dataset.splits):
        output.add(type(value).__name__, value)
    for value in (dataset.plan(), dataset.files, dataset.splits, state, dataset.fingerprint):
        output.add(f"pickle of {type(value).__name__}", pickle.dumps(value))
    output.add("manifest", (folder / "manifest").read_bytes())
    output.add_folder(cache)
    _, again = StructuredDataset.create_dataloader(
        path, manifest=folder / "manifest", **{**options, "num_workers": 0}
    )
    output.add("from a manifest", again)


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
        "function inside": Case(path, {"credentials": lambda: keys, "endpoint_url": url}),
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


def test_s3(
    s3_server: S3Server, output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, case in of_s3(s3_server, s3_server.url).items():
        for variable, value in case.environment.items():
            monkeypatch.setenv(variable, value)
        folder = tmp_path / name
        folder.mkdir()
        look_at_everything(output, case.path, folder, storage_options=case.options)
    workers = {"num_workers": 2, "storage_options": of_s3(s3_server, s3_server.url)["keys"].options}
    look_at_everything(output, case.path, tmp_path, **workers)


def test_azure(azure_server: AzureServer, output: Output, tmp_path: Path) -> None:
    """Its key is its own; it is no canary until it is made one here."""
    container = azure_server.make_container(f"secrets-{uuid4().hex[:12]}")
    azure_server.put(container, "d/a.parquet", file_of())
    place = {"account_name": azure_server.account, "endpoint_url": azure_server.url}
    signature = azure_server.sas_token()
    private = {azure_server.key, signature.rpartition("sig=")[2]}
    CANARIES.update(private)
    try:
        for number, options in enumerate(
            (
                {**place, "account_key": azure_server.key},
                {**place, "sas_token": signature},
                {"connection_string": azure_server.connection_string},
            )
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            look_at_everything(output, f"az://{container}/d", folder, storage_options=options)
        output.check()
    finally:
        CANARIES.difference_update(private)


def test_gcs(gcs_server: GcsServer, s3_server: S3Server, output: Output, tmp_path: Path) -> None:
    bucket = f"secrets{uuid4().hex[:12]}"
    for number, (server, place) in enumerate(
        ((gcs_server, "endpoint_url"), (s3_server, "base_url"))
    ):
        server.make_bucket(bucket)
        server.put(bucket, "d/a.parquet", file_of())
        for name in ("token", "bearer_token"):
            folder = tmp_path / f"{number}{name}"
            folder.mkdir()
            options = {place: server.url, name: TOKEN}
            look_at_everything(output, f"gs://{bucket}/d", folder, storage_options=options)


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
        "function inside": Case(f"{url}/d", {"token": lambda: TOKEN}),
        "headers": Case(
            f"{url}/d", {"headers": {"Authorization": f"Bearer {TOKEN}", "X-Key": SECRET}}
        ),
        "signed": Case(
            f"{file}?X-Amz-Credential={KEY}&X-Amz-Signature={TOKEN}&X-Amz-Security-Token={TOKEN}",
            {"token": TOKEN},
        ),
        "signature of Azure": Case([f"{file}?sv=1&sp=r&sig={quote(SECRET)}"], {"token": TOKEN}),
        "token as user": Case(
            f"http://{TOKEN}@{host}/d", {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        ),
    }


@pytest.mark.parametrize("name", list(of_http("http://x")))
def test_http(open_http: HttpServer, output: Output, tmp_path: Path, name: str) -> None:
    case = of_http(open_http.url)[name]
    look_at_everything(output, case.path, tmp_path, storage_options=case.options)


@pytest.mark.parametrize("way", ["option", "function", "environment"])
def test_hub(
    hub_server: HubServer,
    output: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    hub_server.tokens.add(TOKEN)
    hub_server.make_repo("me/data", private=True)
    hub_server.put("me/data", "d/a.parquet", file_of())
    options = {"option": {"token": TOKEN}, "function": lambda: {"token": TOKEN}}.get(way)
    if way == "environment":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    look_at_everything(output, "hf://datasets/me/data", tmp_path, storage_options=options)


@pytest.mark.parametrize(
    "options",
    [
        {"combination": TOKEN},
        {"combination": {"left": [SECRET], "right": TOKEN.encode()}},
        lambda: {"combination": TOKEN},
    ],
)
def test_a_filesystem_of_the_users(
    vault: str, output: Output, tmp_path: Path, options: Any
) -> None:
    look_at_everything(output, vault, tmp_path, storage_options=options)
    given = options() if callable(options) else options
    files = fsspec.filesystem("vault", **given)
    look_at_everything(output, "/d", tmp_path, filesystem=files)
    output.add("access", Access(filesystem=files))
    output.add("access", Access(storage_options=given))


# --- what goes wrong


class Echo(AnsweringServer):
    """Answers with an error that repeats all that it was asked, as careless servers do."""

    def __init__(self) -> None:
        self.status = 403
        self.as_xml = False
        super().__init__(self._repeat)

    def _repeat(self, asked: Asked) -> Reply:
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
    with pytest.raises(PenstockError) as caught:
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
    assert any(found_in(f"{seen.target} {seen.authorization}") for seen in echo.seen) or (
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
    "gcs, unknown of gcsfs": ("gs://b/d", {"tokn": TOKEN, "endpoint_url": "http://127.0.0.1:1"}),
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", ["403", "404", "cut"])
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
    with pytest.raises(PenstockError) as caught:
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


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_command_line(open_http: HttpServer, output: Output, more: list[str]) -> None:
    host = open_http.url.removeprefix("http://")
    login = quote(PASSWORD, safe="")
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert main(["inspect", f"http://me:{login}@{host}/d", *more]) == 0
        assert f"{open_http.url}/d" in out.getvalue()
        for ending in ("none", "d/*.orc", "none?sig=" + TOKEN, "[x"):
            assert main(["inspect", f"http://me:{login}@{host}/{ending}", *more]) != 0
        open_http.access.users.clear()
        assert main(["inspect", f"http://me:{login}@{host}/d", *more]) != 0
    output.add("standard output", out.getvalue())
    output.add("standard error", err.getvalue())


# --- the words themselves


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@h/x", "http://***@h/x"),
        ("http://me:p@w@h/x", "http://***@h/x"),
        ("http://tok@h/x?a=1&sig=b&c=2", "http://***@h/x?a=1&sig=***&c=2"),
        ("GET /x?X-Amz-Signature=b&X-Amz-Security-Token=c done", None),
        (
            "http://h/x?OSSAccessKeyId=b&security-token=c",
            "http://h/x?OSSAccessKeyId=***&security-token=***",
        ),
        ("http://h/x?q-sign-time=b&q-ak=c", "http://h/x?q-sign-time=***&q-ak=***"),
        ("http://h/x?jwt=b&sas=c", "http://h/x?jwt=***&sas=***"),
        ("http://h/x?pwd=b&hdnts=exp=1~hmac=c", "http://h/x?pwd=***&hdnts=***"),
        ("<Token-0>abc</Token-0>", "<Token-0>***</Token-0>"),
        ("<StringToSign>abc", "<StringToSign>***"),
        ("authorization: Bearer abc", "authorization: Bearer ***"),
        ("{'Authorization': 'Basic abc='}", "{'Authorization': 'Basic ***'}"),
        ("x-amz-security-token:abc", "x-amz-security-token:***"),
    ],
)
def test_what_is_hidden(text: str, shown: str | None) -> None:
    if shown is None:
        shown = "GET /x?X-Amz-Signature=***&X-Amz-Security-Token=*** done"
    assert without_secrets(text) == shown
    assert has_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://b/key=1/token=a b/policy=c/expires=2/x.parquet",
        "abfss://c@account.dfs.core.windows.net/d",
        "az://c@account.blob.core.windows.net/d",
        "hf://datasets/o/n@refs/convert/parquet/x",
        "https://h/d?page=2&sort=key",
        "mail me@there, or see http://h/x, and y@z",
    ],
)
def test_what_is_shown(text: str) -> None:
    assert without_secrets(text) == text
    assert not has_secret(text)


def test_urls_that_are_shown() -> None:
    assert public_url("https://u:p@h:1/a%20b?x=1&sig=2&sv=3&y=4#f") == "https://h:1/a%20b?x=1&y=4"
    assert public_url("https://h/a?X-Amz-Date=1&X-Amz-Signature=2") == "https://h/a"


def test_parts_of_secrets_are_hidden() -> None:
    pem = (
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END"
    )
    hide = Redaction(
        {
            "connection_string": "AccountName=me;AccountKey=a/b+c==;EndpointSuffix=x.net",
            "sas_token": "sv=1&sig=q%2Fr%3D",
            "auth": ("user", "pass word"),
            "token": {"private_key": pem},
            "url": "https://me:p%40ss@host/x",
            "endpoint_url": "http://here",
            "region": "us-east-1",
        }
    )
    for secret in ("a/b+c==", "a%2Fb%2Bc%3D%3D", "q/r=", "q%2Fr%3D", "pass word", "p@ss"):
        assert secret not in hide(f"so {secret} is"), secret
    assert "MIIEvQIBADANBgkqhkiG9w0B" not in hide("bad line MIIEvQIBADANBgkqhkiG9w0B!")
    assert "dXNlcjpwYXNzIHdvcmQ" not in hide("Basic dXNlcjpwYXNzIHdvcmQ=")
    assert hide("http://here us-east-1") == "http://here us-east-1"


def test_a_dataset_carries_what_it_was_given_and_nothing_else_does(
    s3_server: S3Server, output: Output
) -> None:
    """The canaries are where they have to be: this would fail if they were lost on the way."""
    case = of_s3(s3_server, s3_server.url)["keys"]
    dataset = StructuredDataset(case.path, storage_options=case.options)
    assert found_in(pickle.dumps(dataset))
    assert not found_in(pickle.dumps(dataset.plan()))
    output.add("environment", repr([name for name in os.environ if MARK in name]))
