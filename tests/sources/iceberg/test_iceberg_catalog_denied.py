"""Catalogs and stores that let in whom they know, and nobody else; no error says a secret."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from numbered_tables import ids_in, loader_of, make_table
from pyiceberg.catalog import load_catalog
from secrets_of_tables import (  # noqa: F401  # fixtures
    SECRET,
    TOKEN,
    ProxyTo,
    Serve,
    Shown,
    look_at,
    nothing_of_amazon_is_around,
    s3_words,
    shown,
)
from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.faults import xml_answer
from servers.rest_catalog import RestCatalogServer
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog
from writers.delete_files import append_position_deletes

from headrace.errors import AccessDeniedError, HeadraceError, ReadError

DENIED = xml_answer(403, "AccessDenied")


# --- who is asked for the table


def oauth(server: RestCatalogServer) -> dict[str, str]:
    return {"oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}


def test_a_token(catalog: WritingCatalog, serve_catalog: Serve, shown: Shown) -> None:
    make_table(catalog)
    server = serve_catalog(catalog, token=TOKEN)
    loader, dataset = loader_of("db.t", {**server.properties, "token": TOKEN})
    assert sorted(ids_in(loader)) == list(range(120))
    assert {request.authorization for request in server.log} == {f"Bearer {TOKEN}"}
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

    def respond(asked: HttpRequest) -> Reply:
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
    with pytest.raises(HeadraceError) as caught:
        loader_of("db.t", config)
    assert echo.log
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


@pytest.mark.parametrize(("deletes", "num_workers"), [(False, 0), (True, 2)])
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
    with pytest.raises(HeadraceError) as caught:
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
