"""Credentials of catalogs reach those who read files, in every process, and nobody else."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from numbered_tables import ids_in, loader_of, make_table, numbers
from pyiceberg.catalog import load_catalog
from servers.answering import AnsweringServer, Asked, Reply
from servers.faults import xml_answer
from servers.proxy import FaultProxy
from servers.rest_catalog import RestCatalogServer
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog
from writers.data_files import append_rows
from writers.delete_files import append_equality_deletes, append_position_deletes

from penstock.errors import AccessDeniedError, OptionError, PenstockError, ReadError
from penstock.tables.iceberg.credentials import storage_options

MARK = "c4n4ry"
KEY = f"AKIA{MARK}KEY"
SECRET = f"{MARK}/se+cret=="
TOKEN = f"{MARK}.token_"
DENIED = xml_answer(403, "AccessDenied")

Serve = Callable[..., RestCatalogServer]
ProxyTo = Callable[..., FaultProxy]


@pytest.fixture(autouse=True)
def nothing_of_amazon_is_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


class Shown:
    """All that people, logs and files get to see."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, bytes]] = []

    def add(self, what: str, shown: Any) -> None:
        text = shown if isinstance(shown, bytes) else f"{shown}\n{shown!r}".encode()
        self.texts.append((what, text))

    def add_error(self, error: BaseException) -> None:
        self.add("traceback", "".join(traceback.format_exception(error)))
        seen: list[BaseException | None] = [None]
        waiting: list[BaseException | None] = [error]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.append(one)
                self.add(type(one).__name__, one)
                self.add("attributes", vars(one))
                waiting += [one.__cause__, one.__context__]


class _Collecting(logging.Handler):
    def __init__(self, shown: Shown) -> None:
        super().__init__(logging.DEBUG)
        self._shown = shown

    def emit(self, record: logging.LogRecord) -> None:
        self._shown.add(f"log of {record.name}", f"{record.getMessage()} {record.exc_info!r}")


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Fails a test that shows a canary; our logs are added by themselves."""
    collected = Shown()
    ours = [logging.getLogger(name) for name in ("penstock", "pyiceberg")]
    handler = _Collecting(collected)
    for logger in ours:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    yield collected
    for logger in ours:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    assert collected.texts
    leaks = [(what, text) for what, text in collected.texts if MARK.encode() in text]
    assert not leaks, "\n".join(f"{what}: {text!r}"[:1500] for what, text in leaks[:5])


def s3_words(url: str, **more: str) -> dict[str, str]:
    """How pyiceberg names what reaches a server, with canaries."""
    return {
        "s3.endpoint": url,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.session-token": TOKEN,
        "s3.region": "us-east-1",
        **more,
    }


def with_deletes(catalog: WritingCatalog) -> list[int]:
    """A table with position deletes and equality deletes; the ids that are left."""
    table = make_table(catalog)
    path = append_rows(table, numbers(120, 40))[0]
    append_position_deletes(table, {path: range(20)})
    append_equality_deletes(table, ["id"], [(3,), (150,)])
    return [one for one in (*range(120), *range(140, 160)) if one not in (3, 150)]


def data_requests(proxy: FaultProxy) -> list[Any]:
    return [one for one in list(proxy.log) if "/data/" in one.path]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "how", ["sql", "rest", "defaults", "vended", "vended apart", "vended over given"]
)
def test_keys_of_the_catalog_reach_every_reader(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    serve_catalog: Serve,
    proxy_to: ProxyTo,
    shown: Shown,
    how: str,
    num_workers: int,
) -> None:
    expected = with_deletes(s3_catalog)
    proxy = proxy_to(s3_server.url)
    words = s3_words(proxy.url)
    if how == "sql":
        config = {**s3_catalog.properties_for_users, **words}
    elif how == "rest":
        config = {**serve_catalog(s3_catalog).properties, **words}
    elif how == "defaults":
        config = dict(serve_catalog(s3_catalog, defaults=words).properties)
    else:
        server = serve_catalog(s3_catalog, vended=words, vended_apart=how == "vended apart")
        config = dict(server.properties)
    if how == "vended over given":
        config = {**config, **s3_words(proxy.url), "s3.access-key-id": "AKIAOTHER"}
    loader, dataset = loader_of("tests.db.t", config, num_workers=num_workers)
    planned = len(proxy.log)
    assert sorted(ids_in(loader)) == expected
    assert len(data_requests(proxy)) > 4
    assert len(proxy.log) > planned
    assert {request.key_id for request in proxy.log} == {KEY}
    look_at(shown, loader, dataset)


def look_at(shown: Shown, loader: Any, dataset: Any) -> None:
    state = loader.state_dict()
    shown.add("state", json.dumps(state).encode())
    found = dataset._found
    reader = found.reader
    for one in (loader, dataset, found, reader, reader.store, reader.rows, dataset.files):
        shown.add(type(one).__name__, one)
    for one in (dataset.pipeline, dataset._table, dataset._settings, vars(dataset.planner)):
        shown.add(type(one).__name__, one)
    for one in (dataset._table._table, dataset._table._scan, loader.stats(), dataset.splits):
        shown.add(type(one).__name__, one)
    for one in (dataset.files, dataset.plan(), dataset.fingerprint, state, reader.rows):
        shown.add(f"pickle of {type(one).__name__}", pickle.dumps(one))
    shown.add("the copy in another process", pickle.loads(pickle.dumps(dataset)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_storage_options_of_the_user_win(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    serve_catalog: Serve,
    proxy_to: ProxyTo,
    shown: Shown,
    num_workers: int,
) -> None:
    expected = with_deletes(s3_catalog)
    vended, own = proxy_to(s3_server.url), proxy_to(s3_server.url)
    server = serve_catalog(s3_catalog, vended={**s3_words(vended.url), "s3.access-key-id": "AKIAV"})
    options = {"key": KEY, "secret": SECRET, "endpoint_url": own.url, "region": "us-east-1"}
    loader, dataset = loader_of(
        "db.t", server.properties, num_workers=num_workers, storage_options=options
    )
    assert sorted(ids_in(loader)) == expected
    assert not data_requests(vended)
    assert {request.key_id for request in vended.log} == {"AKIAV"}
    assert len(data_requests(own)) == len(own.log) > 0
    assert {request.key_id for request in own.log} == {KEY}
    look_at(shown, loader, dataset)


def test_keys_that_the_catalog_lends_anew(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    serve_catalog: Serve,
    proxy_to: ProxyTo,
) -> None:
    """What is lent with a table is lent again with every load of it."""
    with_deletes(s3_catalog)
    proxy = proxy_to(s3_server.url)
    server = serve_catalog(s3_catalog, vended={**s3_words(proxy.url), "s3.access-key-id": "AKIA1"})
    loader, dataset = loader_of("db.t", server.properties)
    ids_in(loader)
    server.vended["s3.access-key-id"] = "AKIA2"
    append_rows(s3_catalog.load_table("db.t"), numbers(500, 10))
    proxy.clear()
    dataset.refresh()
    assert ids_in(loader)[-1] is not None
    assert {request.key_id for request in proxy.log} == {"AKIA2"}


def test_keys_that_end_are_renewed_by_refresh(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    serve_catalog: Serve,
    proxy_to: ProxyTo,
) -> None:
    expected = with_deletes(s3_catalog)
    proxy = proxy_to(s3_server.url)
    server = serve_catalog(s3_catalog, vended={**s3_words(proxy.url), "s3.access-key-id": "AKIA1"})
    loader, dataset = loader_of("db.t", server.properties)
    state = loader.state_dict()
    proxy.reject_keys("AKIA1")
    with pytest.raises(AccessDeniedError, match="ExpiredToken"):
        list(loader)
    server.vended["s3.access-key-id"] = "AKIA2"
    dataset.refresh()
    loader.load_state_dict(state)
    assert sorted(ids_in(loader)) == expected


# --- who is asked for the table


def oauth(server: RestCatalogServer) -> dict[str, str]:
    return {"oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}


def test_a_token(catalog: WritingCatalog, serve_catalog: Serve, shown: Shown) -> None:
    make_table(catalog)
    server = serve_catalog(catalog, token=TOKEN)
    loader, dataset = loader_of("db.t", {**server.properties, "token": TOKEN})
    assert sorted(ids_in(loader)) == list(range(120))
    assert {one.authorization for one in server.seen} == {f"Bearer {TOKEN}"}
    look_at(shown, loader, dataset)


def test_a_credential_for_which_there_is_a_token(
    catalog: WritingCatalog, serve_catalog: Serve, shown: Shown
) -> None:
    make_table(catalog)
    server = serve_catalog(catalog, token=TOKEN, credential=f"me:{SECRET}")
    config = {**server.properties, "credential": f"me:{SECRET}", **oauth(server)}
    loader, dataset = loader_of("db.t", config)
    assert sorted(ids_in(loader)) == list(range(120))
    look_at(shown, loader, dataset)


@pytest.mark.parametrize(
    ("given", "as_object"),
    [("token", False), ("credential", False), ("nothing", False), ("token", True)],
)
def test_a_catalog_that_lets_nobody_in(
    catalog: WritingCatalog, serve_catalog: Serve, shown: Shown, given: str, as_object: bool
) -> None:
    make_table(catalog)
    server = serve_catalog(catalog, token="right", credential="me:right")
    config: Any = dict(server.properties)
    if given == "token":
        config["token"] = TOKEN
    elif given == "credential":
        config |= {"credential": f"me:{SECRET}", **oauth(server)}
    if as_object:
        server.token, token = None, server.token
        config = load_catalog("c", **config)
        server.token = token
    with pytest.raises(ReadError) as caught:
        loader_of("db.t", config)
    shown.add_error(caught.value)
    assert "db.t" in str(caught.value)
    assert "check the credentials in catalog_config" in str(caught.value)


@pytest.fixture
def echo() -> Iterator[AnsweringServer]:
    """A catalog that answers everything with a refusal in which it repeats what it was told."""

    def respond(asked: Asked) -> Reply:
        said = f"{asked.target} {asked.authorization} {asked.head.value(b'x-more')} {asked.body!r}"
        error = {"message": said, "type": "X", "code": server.status}
        if asked.target.endswith("/tokens"):
            error = {"error": "invalid_client", "error_description": said}
        body = json.dumps(error if "error" in error else {"error": error}).encode()
        return server.status, {"Content-Type": "application/json"}, body

    server = AnsweringServer(respond)
    server.status = 401
    yield server
    server.stop()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 419, 500, 503])
@pytest.mark.parametrize(
    "secrets",
    [
        {"token": TOKEN},
        {"credential": f"me:{SECRET}"},
        {"token": TOKEN, "header.X-More": SECRET},
    ],
    ids=lambda one: "+".join(one),
)
def test_a_catalog_that_repeats_secrets(
    echo: AnsweringServer, shown: Shown, secrets: dict[str, str], status: int
) -> None:
    echo.status = status
    config = {"type": "rest", "uri": echo.url, **secrets, "rest.retry.max-attempts": 1}
    config["oauth2-server-uri"] = f"{echo.url}/v1/oauth/tokens"
    with pytest.raises(PenstockError) as caught:
        loader_of("db.t", config)
    assert echo.seen
    assert "db.t" in str(caught.value)
    assert "***" in str(caught.value)
    shown.add_error(caught.value)


def test_a_token_that_ends_is_told_by_refresh(
    catalog: WritingCatalog, serve_catalog: Serve, shown: Shown
) -> None:
    make_table(catalog)
    server = serve_catalog(catalog, token=TOKEN)
    loader, dataset = loader_of("db.t", {**server.properties, "token": TOKEN})
    server.token = "another"
    with pytest.raises(ReadError, match="check the credentials") as caught:
        dataset.refresh()
    shown.add_error(caught.value)
    assert sorted(ids_in(loader)) == list(range(120))


# --- stores that let nobody in


@pytest.mark.parametrize("part", [".metadata.json", "snap-", "-m0.avro"])
@pytest.mark.parametrize("status", [403, 404])
def test_metadata_that_cannot_be_read(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    proxy_to: ProxyTo,
    shown: Shown,
    part: str,
    status: int,
) -> None:
    make_table(s3_catalog)
    proxy = proxy_to(s3_server.url)
    proxy.inject(DENIED if status == 403 else xml_answer(404, "NoSuchKey"), path=part)
    with pytest.raises(ReadError) as caught:
        loader_of("tests.db.t", {**s3_catalog.properties_for_users, **s3_words(proxy.url)})
    shown.add_error(caught.value)
    assert "tests.db.t" in str(caught.value)
    assert part in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("deletes", [False, True])
def test_data_files_that_cannot_be_read(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    proxy_to: ProxyTo,
    shown: Shown,
    num_workers: int,
    deletes: bool,
) -> None:
    table = make_table(s3_catalog)
    denied = ".parquet"
    if deletes:
        path = table.inspect.files()["file_path"][0].as_py()
        denied = append_position_deletes(table, {path: [1]})[0].rsplit("/", 1)[1]
    proxy = proxy_to(s3_server.url)
    loader, _ = loader_of(
        "tests.db.t",
        {**s3_catalog.properties_for_users, **s3_words(proxy.url)},
        num_workers=num_workers,
    )
    proxy.inject(DENIED, path=denied)
    with pytest.raises(AccessDeniedError) as caught:
        list(loader)
    shown.add_error(caught.value)
    assert denied in str(caught.value)


def test_a_sql_catalog_with_a_password_in_its_address(shown: Shown) -> None:
    with pytest.raises(PenstockError) as caught:
        loader_of("tests.db.t", {"type": "sql", "uri": f"postgresql://me:{TOKEN}@127.0.0.1:1/db"})
    shown.add_error(caught.value)


def test_a_catalog_with_a_password_in_its_address(
    catalog: WritingCatalog, serve_catalog: Serve, shown: Shown
) -> None:
    make_table(catalog)
    server = serve_catalog(catalog, token="right")
    url = server.url.replace("://", f"://me:{TOKEN}@")
    with pytest.raises(ReadError) as caught:
        loader_of("db.t", {"type": "rest", "uri": url})
    shown.add_error(caught.value)


# --- the words


@pytest.mark.parametrize(
    ("protocol", "said", "understood"),
    [
        ("s3", {"client.access-key-id": "k", "client.secret-access-key": "s"}, ("k", "s")),
        ("s3", {"s3.access-key-id": "k", "client.access-key-id": "x"}, ("k", None)),
        ("s3", {"s3.force-virtual-addressing": "true"}, "virtual"),
        ("s3", {"s3.anonymous": "True"}, True),
        ("gs", {"gcs.oauth2.token": "t"}, "t"),
        ("abfss", {"adls.sas-token.acct.dfs.core.windows.net": "s"}, "s"),
        ("hf", {"hf.token": "t"}, "t"),
        ("", {"s3.access-key-id": "k"}, None),
    ],
)
def test_what_properties_mean(protocol: str, said: dict[str, str], understood: Any) -> None:
    options = storage_options(said, protocol)
    if understood is None:
        assert options == {}
    elif isinstance(understood, tuple):
        assert (options.get("key"), options.get("secret")) == understood
    else:
        assert understood in options.values()


@pytest.mark.parametrize(
    "said", [{"s3.signer": "S3V4RestSigner"}, {"s3.role-arn": "arn"}, {"client.role-arn": "arn"}]
)
def test_what_the_catalog_lends_and_is_not_understood(
    s3_catalog: WritingCatalog, serve_catalog: Serve, s3_server: S3Server, said: dict[str, str]
) -> None:
    with pytest.raises(OptionError, match="give storage_options="):
        storage_options(said, "s3")
    assert storage_options({**said, "s3.access-key-id": "k"}, "s3") == {"key": "k"}
