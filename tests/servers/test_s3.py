"""S3 on the loopback, directly and through the proxy, with signed requests."""

from __future__ import annotations

from collections.abc import Callable

import obstore
from obstore.store import S3Store

from servers.faults import SLOW_DOWN
from servers.processes import ask
from servers.proxy import FaultProxy
from servers.s3 import S3Server


def test_objects_are_put_listed_replaced_and_deleted(s3_server: S3Server) -> None:
    s3_server.make_bucket("plain")
    first = s3_server.put("plain", "a/b c+d.bin", b"0123456789")
    assert s3_server.put("plain", "a/b c+d.bin", b"other") != first
    assert s3_server.keys("plain") == ["a/b c+d.bin"]
    asked = {"Range": "bytes=1-2", **s3_server.signature}
    _, headers, body = ask(s3_server.port, "GET", "/plain/a/b%20c%2Bd.bin", headers=asked)
    assert (headers["content-range"], body) == ("bytes 1-2/5", b"th")
    s3_server.delete("plain", "a/b c+d.bin")
    assert s3_server.keys("plain") == []


def test_signed_requests_pass_the_proxy(
    s3_server: S3Server, proxy_to: Callable[..., FaultProxy]
) -> None:
    s3_server.make_bucket("proxied")
    s3_server.put("proxied", "a.bin", bytes(300_000))
    proxy = proxy_to(s3_server.url)
    rule = proxy.inject(SLOW_DOWN, first=2)
    store = S3Store(
        "proxied",
        endpoint=proxy.url,
        access_key_id=s3_server.key,
        secret_access_key=s3_server.secret,
        region=s3_server.region,
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    assert len(obstore.get_range(store, "a.bin", start=5, length=200_000)) == 200_000
    assert [request.status for request in proxy.log] == [503, 503, 206]
    assert {request.key_id for request in proxy.log} == {s3_server.key}
    assert rule.hits == 2
