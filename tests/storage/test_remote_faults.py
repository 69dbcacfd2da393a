"""What networks and servers do to requests: what is survived, and what is said of the rest."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from numbered_rows import ALL_IDS, NAMES, Source, ids_of, make_loader, put_all
from servers.faults import (
    INTERNAL_ERROR,
    SLOW_DOWN,
    TOO_MANY_REQUESTS,
    Answer,
    CutShort,
    Fault,
    Request,
    Reset,
    SlowFirstByte,
    Stall,
    WholeBody,
    WrongLength,
)
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import ReadError, SkippedDataWarning, StatefulLoader
from headrace.storage._remote import _jitter

BUCKET = "faults"
SILENCE_S = 0.7
"""the time-out of tests with servers that fall silent; the others have no need of one"""
FOR_EVER_S = 3600.0


@pytest.fixture(scope="module")
def s3_url(s3_server: S3Server) -> str:
    s3_server.make_bucket(BUCKET)
    put_all(lambda name, body: s3_server.put(BUCKET, name, body))
    return s3_server.url


@pytest.fixture
def http_url(http_server: HttpServer) -> str:
    put_all(lambda name, body: http_server.put(f"{BUCKET}/{name}", body))
    return http_server.url


@pytest.fixture(params=["s3", "http"])
def source(request: pytest.FixtureRequest, proxy_to: Callable[..., FaultProxy]) -> Source:
    """The data set behind a proxy without faults."""
    kind = request.param
    return Source(kind, proxy_to(request.getfixturevalue(f"{kind}_url")), BUCKET)


SURVIVED: dict[str, Fault] = {
    "internal error": INTERNAL_ERROR,
    "slow down": SLOW_DOWN,
    "too many requests": TOO_MANY_REQUESTS,
    "bad gateway": Answer(502),
    "reset before the answer": Reset(),
    "reset within the head's packet": Reset(0),
    "reset within the body": Reset(1000),
    "cut short": CutShort(1000),
    "no body": CutShort(0),
    "stalled body": Stall(1000),
    "first byte too late": SlowFirstByte(FOR_EVER_S),
    "length too small": WrongLength(-7),
}


ON_S3_AS_WELL = ("slow down", "reset within the body", "stalled body")
"""For the others one kind of store is enough: obstore reads both."""


@pytest.mark.parametrize(
    ("source", "fault"),
    [("http", fault) for fault in SURVIVED.values()]
    + [("s3", SURVIVED[name]) for name in ON_S3_AS_WELL],
    indirect=["source"],
    ids=[f"http-{name}" for name in SURVIVED] + [f"s3-{name}" for name in ON_S3_AS_WELL],
)
def test_a_fault_that_passes_costs_retries_and_no_row(source: Source, fault: Fault) -> None:
    loader = source.loader(**time_out_for(fault))
    rule = source.proxy.inject(fault, ranged=True, skip=3, first=4)
    assert ids_of(loader) == ALL_IDS
    assert rule.hits == 4
    check_retries(loader, fault, 4)


def is_silent(fault: Fault) -> bool:
    return isinstance(fault, Stall | SlowFirstByte)


def time_out_for(fault: Fault) -> dict[str, float]:
    return {"timeout_s": SILENCE_S} if is_silent(fault) else {}


def check_retries(loader: StatefulLoader, fault: Fault, expected: int) -> None:
    """Where silence is a failure, a machine that is slow for a moment causes some of its own."""
    retries = loader.stats()["retries"]
    assert retries >= expected if is_silent(fault) else retries == expected


@pytest.mark.parametrize("fault", [INTERNAL_ERROR, Reset(), CutShort(20)], ids=str)
def test_faults_while_files_are_found_are_survived_and_counted(
    source: Source, fault: Fault
) -> None:
    rule = source.proxy.inject(fault, method="GET", every=2)
    loader = source.loader()
    source.proxy.remove(rule)
    assert rule.hits >= 2
    assert loader.stats()["retries"] == rule.hits
    assert ids_of(loader) == ALL_IDS


def test_a_head_that_fails_is_asked_again(source: Source) -> None:
    rule = source.proxy.inject(SLOW_DOWN, method="HEAD", first=2)
    loader = make_loader(f"{source.folder}/{NAMES[1]}", storage_options=source.options)
    assert rule.hits == loader.stats()["retries"] == 2
    assert ids_of(loader) == ALL_IDS[600:1200]


def test_a_length_too_large(source: Source) -> None:
    rule = source.proxy.inject(WrongLength(7), ranged=True, skip=5, first=3)
    loader = source.loader()
    assert ids_of(loader) == ALL_IDS
    assert rule.hits == loader.stats()["retries"] == 3


def test_a_slow_first_byte_within_the_time_out_is_no_fault(source: Source) -> None:
    loader = source.loader()
    rule = source.proxy.inject(SlowFirstByte(0.3), ranged=True, every=5)
    assert ids_of(loader) == ALL_IDS
    assert rule.hits >= 3
    assert loader.stats()["retries"] == 0


def test_the_whole_object_instead_of_a_range_once(source: Source) -> None:
    loader = source.loader()
    rule = source.proxy.inject(WholeBody(), ranged=True, skip=4, first=2)
    assert ids_of(loader) == ALL_IDS
    assert rule.hits == 2
    assert loader.stats()["retries"] == (2 if source.options else 0)


def test_a_web_server_that_knows_no_ranges_is_read(
    http_url: str, proxy_to: Callable[..., FaultProxy]
) -> None:
    source = Source("http", proxy_to(http_url), BUCKET)
    source.proxy.inject(WholeBody(), ranged=True)
    loader = source.loader()
    assert ids_of(loader) == ALL_IDS
    assert not source.proxy.requests(status=206)
    assert loader.stats()["retries"] == 0


# --- what does not pass

ON_THE_WEB = pytest.mark.parametrize("source", ["http"], indirect=True)
"""For what does not depend on the kind of store: S3 is read by the same client."""
PERMANENT: dict[str, tuple[Fault, str]] = {
    "internal error": (INTERNAL_ERROR, "500.*InternalError"),
    "slow down": (SLOW_DOWN, "503.*SlowDown"),
    "too many requests": (TOO_MANY_REQUESTS, "429"),
    "reset before the answer": (Reset(), "reset by peer"),
    "reset within the body": (Reset(100), "reset by peer"),
    "cut short": (CutShort(100), "ended too early"),
    "stalled body": (Stall(100), "time-out"),
    "stalled head": (SlowFirstByte(FOR_EVER_S), "time-out"),
    "length too small": (WrongLength(-7), "bytes came, and not"),
}


def permanent_failure(source: Source, fault: Fault, cause: str, **options: Any) -> list[Request]:
    """Fail on the last row group of the third file; the requests for it."""
    loader = source.loader(**time_out_for(fault), **options)
    source.proxy.log.clear()
    rule = source.proxy.inject(fault, ranged=True, path=NAMES[2], where=_is_last_group)
    with pytest.raises(ReadError) as caught:
        ids_of(loader)
    asked = [request for request in list(source.proxy.log) if request.fault is fault]
    assert rule.hits == len(asked) > 0
    message = str(caught.value)
    start, stop = _range(asked[0])
    assert f"{source.folder}/{NAMES[2]}, bytes {start}-{stop}: " in message
    attempts = f"{len(asked)} attempt{'s' if len(asked) != 1 else ''} in "
    assert re.search(cause, message), message
    assert attempts in message
    check_retries(loader, fault, len(asked) - 1)
    return asked


def _range(request: Request) -> tuple[int, int]:
    first, last = re.findall(r"\d+", request.range or "")
    return int(first), int(last) + 1


def _is_last_group(request: Request) -> bool:
    return _range(request)[0] > 60_000


@ON_THE_WEB
@pytest.mark.parametrize(("fault", "cause"), PERMANENT.values(), ids=PERMANENT)
def test_a_fault_that_stays_is_an_error_that_tells_all(
    source: Source, fault: Fault, cause: str
) -> None:
    assert len(permanent_failure(source, fault, cause, retries=2)) == 3


@ON_THE_WEB
def test_without_retries_the_first_failure_is_the_last(source: Source) -> None:
    assert len(permanent_failure(source, INTERNAL_ERROR, "500", retries=0)) == 1


@ON_THE_WEB
def test_pauses_grow_and_are_drawn_at_random(source: Source) -> None:
    before, drawn = random.getstate(), _jitter.get().getstate()
    gaps = gaps_of(permanent_failure(source, SLOW_DOWN, "503", retries=4))
    assert len(gaps) == 4
    for number, gap in enumerate(gaps):
        assert 0.05 * 2**number <= gap < 30
    assert random.getstate() == before  # the sequence of the module belongs to the user
    assert _jitter.get().getstate() != drawn


def gaps_of(asked: list[Request]) -> list[float]:
    """The time between requests; a slow machine makes it longer, and never shorter."""
    return [after.at_s - before.at_s for before, after in pairwise(asked)]


@ON_THE_WEB
def test_time_ends_attempts_as_well(source: Source) -> None:
    asked = permanent_failure(source, INTERNAL_ERROR, "500", retries=1000, max_elapsed_s=1.0)
    assert len(asked) <= 5  # the pauses before a sixth are more than 1 second at the least


def test_s3_that_knows_no_ranges_is_an_error(
    s3_url: str, proxy_to: Callable[..., FaultProxy]
) -> None:
    source = Source("s3", proxy_to(s3_url), BUCKET)
    assert len(permanent_failure(source, WholeBody(), "does not answer range", retries=1)) == 2


def test_what_is_refused_is_not_asked_again(source: Source) -> None:
    assert len(permanent_failure(source, Answer(400, {}, b"no"), "400 Bad Request")) == 1


@pytest.mark.parametrize(("source", "workers"), [("s3", 0), ("http", 2)], indirect=["source"])
def test_a_permanent_failure_may_be_skipped(source: Source, workers: int) -> None:
    loader = source.loader(on_error="skip", retries=1, num_workers=workers)
    source.proxy.inject(INTERNAL_ERROR, ranged=True, path=NAMES[2], where=_is_last_group)
    with pytest.warns(SkippedDataWarning, match="skipped:") as warned:
        found = ids_of(loader)
    assert sorted(found) == [row for row in ALL_IDS if not 1650 <= row < 1800]
    (reason,) = loader.stats()["skipped_chunks"]
    assert re.search(rf"{NAMES[2]}, bytes \d+-\d+: .*500.*\(2 attempts in", reason)
    assert [str(warning.message) for warning in warned] == [f"skipped: {reason}"]
    assert loader.stats()["retries"] == 1


# --- nobody there


def test_refused_connections_for_a_while(source: Source) -> None:
    loader = source.loader(retries=20)
    batches = iter(loader)
    found = ids_of([next(batches)])
    source.proxy.refuse_for(0.3)
    source.proxy.log.clear()
    assert found + ids_of(batches) == ALL_IDS


def test_refused_connections_for_ever(source: Source) -> None:
    loader = source.loader(retries=2)
    with source.proxy.refusing(), pytest.raises(ReadError) as caught:
        ids_of(loader)
    expected = rf"{NAMES[0]}, bytes \d+-\d+: .*[Rr]efused.*\(3 attempts in"
    assert re.search(expected, str(caught.value))


def test_refused_connections_while_files_are_found(source: Source) -> None:
    with source.proxy.refusing(), pytest.raises(ReadError) as caught:
        source.loader(retries=1)
    assert re.search(rf"{source.folder}.*[Rr]efused.*\(2 attempts in", str(caught.value))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/a.parquet", {"key": "k", "secret": "s", "endpoint_url": "http://no.invalid"}),
        ("http://no.invalid/bucket/a.parquet", {}),
    ],
    ids=["s3", "http"],
)
def test_a_host_without_an_address(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ReadError) as caught:
        make_loader(url, storage_options=options, retries=2)
    assert re.search(
        rf"{url}: .*(Name or service|name resolution|nodename).*\(3 attempts in",
        str(caught.value),
    )
