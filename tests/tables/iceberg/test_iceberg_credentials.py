"""Credentials of catalogs reach those who read files, in every process, and nobody else."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

from typing import Any

import pytest
from numbered_tables import ids_in, loader_of, make_table, numbers
from secrets_of_tables import (  # noqa: F401  # fixtures
    KEY,
    SECRET,
    ProxyTo,
    Serve,
    Shown,
    look_at,
    nothing_of_amazon_is_around,
    s3_words,
    shown,
)
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog
from writers.data_files import append_rows
from writers.delete_files import append_equality_deletes, append_position_deletes

from headrace.errors import AccessDeniedError, OptionError
from headrace.tables.iceberg.credentials import storage_options


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
