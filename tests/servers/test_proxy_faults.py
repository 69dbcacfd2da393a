"""Tests that a client which does not know of the proxy observes each of its faults."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from servers.faults import (
    EXPIRED_TOKEN_400,
    INTERNAL_ERROR,
    SLOW_DOWN,
    TOO_MANY_REQUESTS,
    Answer,
    CutShort,
    Drip,
    Reset,
    SlowFirstByte,
    Stall,
    WholeBody,
    WrongLength,
    slow_down,
)
from servers.http_files import HttpServer
from servers.processes import ask
from servers.proxy import FaultProxy

BODY = bytes(range(256)) * 4096
RANGE = {"Range": "bytes=100-200099"}
PART = BODY[100:200_100]


@pytest.fixture
def proxy(http_server: HttpServer, proxy_to: Callable[..., FaultProxy]) -> Iterator[FaultProxy]:
    http_server.put("/data/a.bin", BODY)
    return proxy_to(http_server.url)


def get(proxy: FaultProxy, path: str = "/data/a.bin", **headers: str) -> bytes:
    return ask(proxy.port, "GET", path, headers=headers or RANGE)[2]


def test_without_faults_everything_passes_unchanged(proxy: FaultProxy) -> None:
    status, headers, body = ask(proxy.port, "GET", "/data/a.bin?x=1", headers=RANGE)
    assert (status, headers["content-range"], body) == (206, "bytes 100-200099/1048576", PART)
    status, headers, body = ask(proxy.port, "HEAD", "/data/a.bin")
    assert (status, headers["content-length"], body) == (200, "1048576", b"")
    first, second = proxy.log
    assert (first.method, first.path, first.query) == ("GET", "/data/a.bin", "x=1")
    assert (first.range, first.status, first.body_bytes) == ("bytes=100-200099", 206, 200_000)
    assert (second.method, second.range, second.body_bytes) == ("HEAD", None, 0)
    assert proxy.body_bytes == 200_000
    assert proxy.requests("HEAD") == [second]


def test_one_connection_carries_many_requests(proxy: FaultProxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    for _ in range(3):
        connection.request("GET", "/data/a.bin", headers=RANGE)
        sock = connection.sock
        assert connection.getresponse().read() == PART
        assert connection.sock is sock
    connection.close()


def test_host_reaches_the_server_as_it_was_sent(proxy_to: Callable[..., FaultProxy]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = proxy_to(f"http://127.0.0.1:{server.getsockname()[1]}")
        heads = []

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                heads.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")

        thread = threading.Thread(target=answer)
        thread.start()
        assert get(proxy, "/", Host="bucket.example:99") == b"until the end"
        thread.join()
    assert b"Host: bucket.example:99\r\n" in heads[0]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (INTERNAL_ERROR, 500, b"InternalError"),
        (SLOW_DOWN, 503, b"SlowDown"),
        (slow_down(retry_after_s=2), 503, b"SlowDown"),
        (TOO_MANY_REQUESTS, 429, b"TooManyRequests"),
        (EXPIRED_TOKEN_400, 400, b"ExpiredToken"),
    ],
)
def test_answers_instead_of_the_server(
    proxy: FaultProxy, http_server: HttpServer, fault: Answer, status: int, code: bytes
) -> None:
    rule = proxy.inject(fault, first=1)
    told, headers, body = ask(proxy.port, "GET", "/data/a.bin")
    assert (told, code in body) == (status, True)
    assert headers.get("retry-after") == fault.headers.get("Retry-After")
    assert http_server.log == []
    assert (rule.hits, proxy.log[0].status, proxy.log[0].fault) == (1, status, fault)
    assert get(proxy) == PART


def test_retry_after_is_sent_where_it_is_given() -> None:
    assert slow_down(retry_after_s=2).headers["Retry-After"] == "2"
    assert "Retry-After" not in SLOW_DOWN.headers


def test_reset_before_the_answer(proxy: FaultProxy) -> None:
    proxy.inject(Reset(), first=1)
    with pytest.raises(ConnectionResetError) as error_info:
        get(proxy)
    # http.client has a separate class for a connection that was closed without a reset.
    assert error_info.type is ConnectionResetError
    assert get(proxy) == PART


@pytest.mark.parametrize("sent", [0, 150_000])
def test_reset_within_the_body(proxy: FaultProxy, sent: int) -> None:
    proxy.inject(Reset(after_bytes=sent))
    connection, answer = opened(proxy)
    assert (answer.status, answer.length) == (206, 200_000)
    assert read_to_the_end(answer) == (PART[:sent], ConnectionResetError)
    connection.close()


def test_body_cut_short(proxy: FaultProxy) -> None:
    proxy.inject(CutShort(after_bytes=1000))
    connection, answer = opened(proxy)
    assert answer.length == 200_000
    assert read_to_the_end(answer) == (PART[:1000], http.client.IncompleteRead)
    connection.close()


def test_stalled_body_waits_until_the_client_closes(proxy: FaultProxy) -> None:
    proxy.inject(Stall(after_bytes=1000), first=1)
    connection, answer = opened(proxy, timeout_s=3)
    assert read_to_the_end(answer) == (PART[:1000], TimeoutError)
    connection.close()
    assert get(proxy) == PART


@pytest.mark.parametrize("after_bytes", [199_997, None])
def test_bytes_that_drip(proxy: FaultProxy, after_bytes: int | None) -> None:
    proxy.inject(Drip(0.01, after_bytes, at_once=1 if after_bytes else 50_000))
    connection, answer = opened(proxy)
    assert read_to_the_end(answer)[0] == PART
    connection.close()


def test_a_drip_ends_when_the_client_closes(proxy: FaultProxy) -> None:
    proxy.inject(Drip(0.01, 1000), first=1)
    connection, answer = opened(proxy)
    assert answer.read(1002) == PART[:1002]
    connection.close()
    assert get(proxy) == PART


def test_content_length_longer_than_the_body(proxy: FaultProxy) -> None:
    proxy.inject(WrongLength(by=10))
    connection, answer = opened(proxy)
    assert answer.length == 200_010
    assert read_to_the_end(answer) == (PART, http.client.IncompleteRead)
    connection.close()


def test_content_length_shorter_than_the_body(proxy: FaultProxy) -> None:
    proxy.inject(WrongLength(by=-10))
    connection, answer = opened(proxy)
    assert answer.length == 199_990
    assert answer.read() == PART[:-10]
    connection.close()
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"GET /data/a.bin HTTP/1.1\r\nHost: x\r\nRange: bytes=100-200099\r\n\r\n")
        said = b"".join(iter(lambda: raw.recv(65536), b""))
    assert said.partition(b"\r\n\r\n")[2] == PART


def test_whole_body_to_a_range_request(proxy: FaultProxy) -> None:
    proxy.inject(WholeBody(), ranged=True)
    status, headers, body = ask(proxy.port, "GET", "/data/a.bin", headers=RANGE)
    assert (status, body) == (200, BODY)
    assert "content-range" not in headers


def test_slow_first_byte(proxy: FaultProxy) -> None:
    rule = proxy.inject(SlowFirstByte(0.3), first=1)
    assert seconds(get, proxy) > 0.3
    assert get(proxy) == PART
    assert rule.hits == 1


def test_a_slow_first_byte_is_not_sent_to_one_who_has_gone(
    proxy: FaultProxy, http_server: HttpServer
) -> None:
    proxy.inject(SlowFirstByte(3600))
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=0.2)
    connection.request("GET", "/data/a.bin", headers=RANGE)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    proxy.clear()
    assert get(proxy) == PART
    assert len(http_server.log) == 1


def test_latency_is_waited_at_each_request(proxy: FaultProxy) -> None:
    proxy.latency_s = 0.1
    assert seconds(get, proxy) > 0.1
    assert seconds(get, proxy) > 0.1


def test_bandwidth_is_shared_by_all_connections(proxy: FaultProxy) -> None:
    proxy.bytes_per_s = 8 * len(BODY)
    readers = [
        threading.Thread(target=get, args=(proxy,), kwargs={"Accept": "*/*"}) for _ in range(4)
    ]

    def read_all() -> None:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    assert 0.45 < seconds(read_all) < 60  # each connection at its own rate would take 0.13


def test_refused_connections(proxy: FaultProxy) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", proxy.port)
    kept.request("GET", "/data/a.bin")
    kept.getresponse().read()
    port = proxy.port
    with proxy.refusing():
        with pytest.raises(ConnectionRefusedError):
            get(proxy)
        assert kept.sock.recv(1) == b""
    kept.close()
    assert get(proxy) == PART
    assert proxy.port == port


def test_refusing_for_a_while(proxy: FaultProxy) -> None:
    timer = proxy.refuse_for(3)
    with pytest.raises(ConnectionRefusedError):
        get(proxy)
    timer.join()
    assert get(proxy) == PART


def test_expired_keys_are_rejected(proxy: FaultProxy) -> None:
    def signed(key_id: str) -> dict[str, str]:
        scope = f"Credential={key_id}/20260101/us-east-1/s3/aws4_request"
        return {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"}

    proxy.reject_keys("OLD")
    status, _, body = ask(proxy.port, "GET", "/data/a.bin", headers=signed("OLD"))
    assert (status, b"ExpiredToken" in body) == (403, True)
    assert ask(proxy.port, "GET", "/data/a.bin", headers=signed("NEW"))[0] == 200
    proxy.accept_keys("OLD")
    assert ask(proxy.port, "GET", "/data/a.bin", headers=signed("OLD"))[0] == 200
    assert [request.key_id for request in proxy.log] == ["OLD", "NEW", "OLD"]


def test_rules_choose_their_requests(proxy: FaultProxy, http_server: HttpServer) -> None:
    http_server.put("/data/b.bin", b"b")

    def statuses(path: str, count: int, **headers: str) -> list[int]:
        return [ask(proxy.port, "GET", path, headers=headers)[0] for _ in range(count)]

    rule = proxy.inject(Answer(500), path="b.bin", every=3, skip=1)
    assert statuses("/data/a.bin", 4) == [200] * 4
    assert statuses("/data/b.bin", 7) == [200, 200, 200, 500, 200, 200, 500]
    assert (rule.matches, rule.hits) == (7, 2)
    proxy.remove(rule)
    proxy.inject(Answer(500), ranged=True, method="GET")
    assert statuses("/data/a.bin", 1) + statuses("/data/a.bin", 1, **RANGE) == [200, 500]
    proxy.clear()
    proxy.inject(Answer(500), where=lambda request: request.query == "strike")
    assert statuses("/data/a.bin?strike", 1) + statuses("/data/a.bin", 1) == [500, 200]


def test_random_faults_are_those_of_the_seed(proxy: FaultProxy) -> None:
    def struck(seed: int) -> list[bool]:
        proxy.clear()
        proxy.inject(Answer(500), probability=0.3, seed=seed)
        return [ask(proxy.port, "HEAD", "/data/a.bin")[0] == 500 for _ in range(60)]

    once = struck(1)
    assert once == struck(1)
    assert once != struck(2)
    assert 5 < sum(once) < 35


def opened(
    proxy: FaultProxy, *, timeout_s: float = 10
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout_s)
    connection.request("GET", "/data/a.bin", headers=RANGE)
    return connection, connection.getresponse()


def read_to_the_end(answer: http.client.HTTPResponse) -> tuple[bytes, type | None]:
    """Return the bytes that could be read, and the type of the error that ended the reading."""
    body = bytearray()
    try:
        while answer.length:
            piece = answer.read1(65536)
            if not piece:
                return bytes(body), http.client.IncompleteRead
            body += piece
    except (OSError, http.client.HTTPException) as error:
        return bytes(body), type(error)
    return bytes(body), None


def seconds(call: Callable[..., object], *arguments: object) -> float:
    before = time.monotonic()
    call(*arguments)
    return time.monotonic() - before
