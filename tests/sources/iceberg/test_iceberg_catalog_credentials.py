"""Credentials of catalogs reach those who read files, in every process, and nobody else."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from numbered_tables import ids_in, loader_of, make_table, numbers
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import clear_manifest_cache
from secrets_of_tables import (  # noqa: F401  # fixtures
    KEY,
    MARK,
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
from servers.faults import EXPIRED_TOKEN_400, EXPIRED_TOKEN_403, Answer
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog
from writers.data_files import append_rows
from writers.delete_files import append_equality_deletes, append_position_deletes

from headrace import IcebergDataset, StatefulLoader
from headrace.errors import AccessDeniedError, OptionError
from headrace.sources.iceberg._catalog import storage_options

EXPIRY = "s3.session-token-expires-at-ms"


def with_deletes(catalog: WritingCatalog) -> list[int]:
    """A table with position deletes and equality deletes; the ids that are left."""
    table = make_table(catalog)
    path = append_rows(table, numbers(120, 40))[0]
    append_position_deletes(table, {path: range(20)})
    append_equality_deletes(table, ["id"], [(3,), (150,)])
    return [one for one in (*range(120), *range(140, 160)) if one not in (3, 150)]


def data_requests(proxy: FaultProxy) -> list[Any]:
    return [one for one in list(proxy.log) if "/data/" in one.path]


@pytest.mark.parametrize(
    ("how", "num_workers"),
    [
        ("sql", 2),
        ("rest", 0),
        ("defaults", 0),
        ("vended", 0),
        ("vended apart", 2),
        ("vended over given", 0),
    ],
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


def test_storage_options_of_the_user_win(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    serve_catalog: Serve,
    proxy_to: ProxyTo,
    shown: Shown,
) -> None:
    expected = with_deletes(s3_catalog)
    vended, own = proxy_to(s3_server.url), proxy_to(s3_server.url)
    server = serve_catalog(s3_catalog, vended={**s3_words(vended.url), "s3.access-key-id": "AKIAV"})
    options = {"key": KEY, "secret": SECRET, "endpoint_url": own.url, "region": "us-east-1"}
    loader, dataset = loader_of("db.t", server.properties, num_workers=2, storage_options=options)
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


class Lending:
    """A table of many files whose keys are lent by a REST catalog, and lent anew."""

    def __init__(self, catalog: WritingCatalog, serve: Serve, proxy: FaultProxy) -> None:
        make_table(catalog, files=6)
        self.proxy = proxy
        self.server = serve(catalog, vended=s3_words(proxy.url), token=TOKEN)
        self.config = {**self.server.properties, "token": TOKEN}
        self.lend("AKIA1")

    def lend(self, key: str, **more: str) -> None:
        self.server.vended |= {"s3.access-key-id": key, **more}

    def loader(self, **options: Any) -> tuple[StatefulLoader, IcebergDataset]:
        """Reads little ahead, so that most of an epoch comes after its first batch."""
        slowly = {"prefetch_bytes": "1KiB", "prefetch_factor": 1}
        return loader_of("db.t", self.config, **{**slowly, **options})

    def loads(self) -> int:
        return sum("/tables/t" in request.target for request in self.server.log)


@pytest.fixture
def lending(
    s3_catalog: WritingCatalog, s3_server: S3Server, serve_catalog: Serve, proxy_to: ProxyTo
) -> Lending:
    return Lending(s3_catalog, serve_catalog, proxy_to(s3_server.url))


@pytest.mark.parametrize(
    ("answer", "num_workers", "as_object"),
    [(EXPIRED_TOKEN_403, 0, False), (EXPIRED_TOKEN_400, 0, True), (EXPIRED_TOKEN_403, 2, True)],
    ids=["403", "400", "workers"],
)
def test_lent_keys_that_expire_within_an_epoch_are_renewed(
    lending: Lending, shown: Shown, num_workers: int, as_object: bool, answer: Answer
) -> None:
    if as_object:
        lending.config = load_catalog("c", **lending.config)
    loader, dataset = lending.loader(num_workers=num_workers)
    batches = iter(loader)
    first = [next(batches), next(batches)]
    lending.lend("AKIA2")
    lending.proxy.clear()
    lending.proxy.reject_keys("AKIA1", answer=answer)
    assert sorted(ids_in([*first, *batches])) == list(range(240))
    assert {one.key_id for one in lending.proxy.log} == {"AKIA1", "AKIA2"}
    assert lending.loads() == 1 + max(1, num_workers)
    assert sorted(ids_in(loader)) == list(range(240))
    look_at(shown, loader, dataset)


def wait_until_quiet(proxy: Any) -> None:
    """Forget requests until none comes any more: readers wait to be emptied."""
    while True:
        proxy.clear()
        time.sleep(0.7)
        if not proxy.log:
            return


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lent_keys_are_renewed_before_they_expire(lending: Lending, num_workers: int) -> None:
    """The catalog says when; the store is never asked with a key that has expired."""
    end_ms = int(1000 * time.time()) + 3000
    lending.lend("AKIA1", **{EXPIRY: str(end_ms)})
    loader, _ = lending.loader(num_workers=num_workers)
    batches = iter(loader)
    first = [next(batches)]
    lending.lend("AKIA2", **{EXPIRY: str(end_ms + 10**7)})
    time.sleep(max(0.0, end_ms / 1000 - time.time()))
    # A request that was signed just before the end may still be on its way.
    wait_until_quiet(lending.proxy)
    lending.proxy.reject_keys("AKIA1")
    assert sorted(ids_in([*first, *batches])) == list(range(240))
    assert {one.key_id for one in lending.proxy.log} == {"AKIA2"}


def test_a_copy_of_a_dataset_renews_keys_by_itself(lending: Lending) -> None:
    _, dataset = lending.loader()
    copy = pickle.loads(pickle.dumps(dataset))
    assert MARK not in repr(dataset.epochs.pipeline.reader.store)
    lending.lend("AKIA2")
    lending.proxy.clear()
    lending.proxy.reject_keys("AKIA1")
    assert sorted(ids_in(copy)) == list(range(240))
    assert lending.proxy.log[-1].key_id == "AKIA2"


def test_a_catalog_that_does_not_renew_says_why(lending: Lending, shown: Shown) -> None:
    loader, _ = lending.loader(num_workers=2)
    lending.server.token = "another"
    lending.proxy.reject_keys("AKIA1")
    with pytest.raises(
        AccessDeniedError, match=r"db\.t.*check the credentials in catalog_config"
    ) as e:
        list(loader)
    shown.add_error(e.value)


def test_keys_that_the_store_denies_for_good(lending: Lending, shown: Shown) -> None:
    # One request at a time: one that begins after another has renewed the keys renews them again.
    loader, _ = lending.loader(prefetch_bytes=1)
    lending.proxy.reject_keys("AKIA1")
    with pytest.raises(AccessDeniedError, match="ExpiredToken") as caught:
        list(loader)
    assert lending.loads() == 2
    shown.add_error(caught.value)


def test_keys_are_lent_by_a_catalog_that_signs_for_others(lending: Lending) -> None:
    lending.server.defaults = {"s3.signer": "S3V4RestSigner"}
    loader, _ = lending.loader()
    lending.lend("AKIA2")
    lending.proxy.reject_keys("AKIA1")
    assert sorted(ids_in(loader)) == list(range(240))


def test_a_state_takes_a_table_back_whose_keys_have_expired(
    lending: Lending, s3_catalog: WritingCatalog
) -> None:
    loader, dataset = lending.loader()
    state = loader.state_dict()
    append_rows(s3_catalog.load_table("db.t"), numbers(240, 10))
    dataset.refresh()
    lending.lend("AKIA2")
    lending.proxy.reject_keys("AKIA1")
    clear_manifest_cache()
    loader.load_state_dict(state)
    assert sorted(ids_in(loader)) == list(range(240))


def test_a_catalog_that_is_down_while_keys_are_good(lending: Lending) -> None:
    end_ms = int(1000 * time.time()) + 4000
    lending.lend("AKIA1", **{EXPIRY: str(end_ms)})
    loader, _ = lending.loader()
    batches = iter(loader)
    first = [next(batches)]
    lending.server.stop()
    time.sleep(max(0.0, end_ms / 1000 - 0.9 - time.time()))  # it is time to ask again
    first.append(next(batches))
    assert len(ids_in(first)) == 20


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
        ("s3", {"s3.access-key-id": "k", "s3.session-token-expires-at-ms": "1500"}, 1.5),
        ("s3", {"s3.access-key-id": "k", "s3.session-token-expires-at-ms": "soon"}, "k"),
        ("gs", {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "2500"}, 2.5),
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
    with pytest.raises(OptionError, match="give your own keys as storage_options="):
        storage_options(said, "s3")
    assert storage_options({**said, "s3.access-key-id": "k"}, "s3") == {"key": "k"}
