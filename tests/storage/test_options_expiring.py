"""Credentials that expire while data is read, and functions that give fresh ones."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from expiring_keys import KeyFile
from numbered_rows import ALL_IDS, Source, ids_of, put_all
from servers.faults import EXPIRED_TOKEN_400, EXPIRED_TOKEN_403, INTERNAL_ERROR, Answer, Request
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import OptionError, ReadError, StatefulLoader, WorkerError
from headrace.storage import _options as storage_options_module
from headrace.storage import resolve_options

BUCKET = "expiring"


@pytest.fixture
def source(s3_server: S3Server, proxy_to: Callable[..., FaultProxy]) -> Source:
    s3_server.make_bucket(BUCKET)
    put_all(lambda name, body: s3_server.put(BUCKET, name, body))
    return Source("s3", proxy_to(s3_server.url, latency_s=0.02), BUCKET)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path, "AKIAOLD")


def slowly(source: Source, **options: Any) -> StatefulLoader:
    """Reads little ahead, so that most of an epoch comes after its first batch."""
    return source.loader(prefetch_bytes="48KiB", batch_size=25, prefetch_factor=1, **options)


def read_over_expiry(
    source: Source, keys: KeyFile, loader: StatefulLoader, answer: Answer
) -> list[int]:
    """An epoch whose key is replaced, and then rejected, when all workers have begun."""
    batches = iter(loader)
    found = ids_of([next(batches), next(batches)])
    keys.write("AKIANEW")
    source.proxy.log.clear()
    source.proxy.reject_keys("AKIAOLD", answer=answer)
    return found + ids_of(batches)


def requests_of(source: Source, key: str) -> int:
    return len(source.proxy.requests(key_id=key))


@pytest.mark.parametrize(
    ("workers", "answer"), [(0, EXPIRED_TOKEN_400), (2, EXPIRED_TOKEN_403)], ids=["400", "403"]
)
def test_a_key_expires_in_mid_epoch(
    source: Source, keys: KeyFile, workers: int, answer: Answer
) -> None:
    options = keys.options(endpoint_url=source.proxy.url)
    loader = slowly(source, storage_options=options, num_workers=workers)
    found = read_over_expiry(source, keys, loader, answer)
    assert sorted(found) == ALL_IDS
    assert requests_of(source, "AKIANEW") > 0
    rejected = len(source.proxy.requests(status=answer.status))
    assert rejected > 0
    assert loader.stats()["retries"] == rejected
    callers = keys.calls()
    assert callers[0] == os.getpid()
    if workers:
        assert callers.count(os.getpid()) == 1
        assert len(set(callers[1:])) == 2
        assert len(callers) == 1 + 2 * 2
    else:
        assert len(callers) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_token_for_a_web_server(
    http_server: HttpServer, proxy_to: Callable[..., FaultProxy], keys: KeyFile, workers: int
) -> None:
    put_all(lambda name, body: http_server.put(f"{BUCKET}/{name}", body))
    http_server.access.tokens |= {"AKIAOLD", "AKIANEW"}
    source = Source("http", proxy_to(http_server.url, latency_s=0.02), BUCKET)
    loader = slowly(source, storage_options=keys.token(), num_workers=workers)
    found = read_over_expiry(source, keys, loader, Answer(401, {}, b"expired"))
    assert sorted(found) == ALL_IDS
    assert requests_of(source, "AKIAOLD") > 0
    assert requests_of(source, "AKIANEW") > 0


def test_many_threads_that_are_rejected_ask_once(source: Source, keys: KeyFile) -> None:
    options = keys.options(endpoint_url=source.proxy.url, pause_s=0.2)
    loader = source.loader(storage_options=options)
    keys.write("AKIANEW")
    source.proxy.reject_keys("AKIAOLD")
    source.proxy.log.clear()
    rejected_together = threading.Barrier(3)
    first_ones = iter(range(rejected_together.parties))

    def hold(request: Request) -> None:
        if next(first_ones, None) is not None:
            rejected_together.wait(60)

    source.proxy.intercept = hold
    assert ids_of(loader) == ALL_IDS
    assert requests_of(source, "AKIAOLD") >= 3
    assert len(keys.calls()) == 2
    assert loader.stats()["retries"] == len(source.proxy.requests(status=403))


# --- before they expire


@pytest.mark.parametrize(
    "moment", [1900000000, datetime.fromtimestamp(1900000000, UTC), "2030-03-17T17:46:40Z"]
)
def test_times_of_expiry(moment: Any) -> None:
    resolved = resolve_options(lambda: {"key": "AKIA", "expires_at": moment})
    assert (resolved.options, resolved.expires_at) == ({"key": "AKIA"}, 1900000000.0)


def test_a_key_is_replaced_before_it_expires(
    source: Source, keys: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def options() -> dict[str, Any]:
        given.append(f"AKIA{len(given)}")
        expires_at = time.time() + 3600 * len(given) ** 2
        return {**source.options, "key": given[-1], "expires_at": expires_at}

    loader = slowly(source, storage_options=options)
    batches = iter(loader)
    found = ids_of([next(batches)])
    assert given == ["AKIA0"]
    later = SimpleNamespace(time=lambda: time.time() + 3590)
    monkeypatch.setattr(storage_options_module, "time", later)
    source.proxy.log.clear()
    found += ids_of(batches)
    assert found == ALL_IDS
    assert given == ["AKIA0", "AKIA1"]
    asked = [request.key_id for request in source.proxy.log]
    assert asked.count("AKIA1") > asked.count("AKIA0")  # of those that were under way
    assert asked[-1] == "AKIA1"
    assert loader.stats()["retries"] == 0


def test_short_lived_keys_are_not_asked_for_at_every_request(source: Source, keys: KeyFile) -> None:
    options = keys.options(endpoint_url=source.proxy.url, lasts_s=59)
    assert ids_of(source.loader(storage_options=options)) == ALL_IDS
    assert len(keys.calls()) == 1


def test_workers_replace_their_keys_themselves(source: Source, keys: KeyFile) -> None:
    options = keys.options(endpoint_url=source.proxy.url, lasts_s=0.2)
    loader = slowly(source, storage_options=options, num_workers=2)
    assert sorted(ids_of(loader)) == ALL_IDS
    callers = keys.calls()
    workers = set(callers) - {os.getpid()}
    assert len(workers) == 2
    assert all(callers.count(worker) > 1 for worker in workers)
    assert loader.stats()["retries"] == 0


# --- when there are no better ones


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_has_no_better_key(source: Source, keys: KeyFile, workers: int) -> None:
    options = keys.options(endpoint_url=source.proxy.url)
    loader = slowly(source, storage_options=options, num_workers=workers)
    source.proxy.reject_keys("AKIAOLD")
    with pytest.raises(ReadError) as caught:
        ids_of(loader)
    message = str(caught.value)
    assert "part-0.parquet, bytes " in message
    assert "ExpiredToken" in message
    assert "2 attempts" in message
    assert "check the credentials, and whether they have expired" in message
    assert "AKIAOLD" not in message


def test_keys_that_are_no_function_are_not_tried_twice(source: Source) -> None:
    loader = source.loader()
    source.proxy.reject_keys(source.options["key"])
    source.proxy.log.clear()
    with pytest.raises(ReadError, match=r"ExpiredToken.*\(1 attempt in .* check the credentials"):
        ids_of(loader)
    ranges = [request.range for request in source.proxy.log]
    assert len(ranges) == len({(request.path, request.range) for request in source.proxy.log})


def test_a_fresh_key_does_not_use_up_other_retries(source: Source, keys: KeyFile) -> None:
    loader = source.loader(storage_options=keys.options(endpoint_url=source.proxy.url))
    keys.write("AKIANEW")
    source.proxy.reject_keys("AKIAOLD")
    source.proxy.inject(INTERNAL_ERROR, ranged=True, every=3)
    assert ids_of(loader) == ALL_IDS


class NoMetadataServiceError(RuntimeError):
    """What a user's function raises."""


def test_an_error_of_the_function_reaches_the_user(source: Source) -> None:
    given: list[int] = []

    def options() -> dict[str, Any]:
        given.append(1)
        if len(given) > 1:
            raise NoMetadataServiceError("no answer from the metadata service")
        return source.options

    loader = source.loader(storage_options=options)
    source.proxy.reject_keys(source.options["key"])
    with pytest.raises(NoMetadataServiceError, match="no answer from the metadata service"):
        ids_of(loader)


def test_what_the_function_returns_is_checked(source: Source) -> None:
    with pytest.raises(OptionError, match="storage_options must return a mapping"):
        source.loader(storage_options=lambda: "AKIA")
    with pytest.raises(OptionError, match="'kye'"):
        source.loader(storage_options=lambda: {"kye": "AKIA"})


def test_a_function_that_no_worker_can_be_sent(source: Source) -> None:
    loader = source.loader(storage_options=lambda: source.options, num_workers=2)
    with pytest.raises(WorkerError, match="storage_options cannot be sent to a worker process"):
        ids_of(loader)
