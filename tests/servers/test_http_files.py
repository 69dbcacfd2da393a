"""Tests that the HTTP server does what the tests of storage expect of it."""

from __future__ import annotations

import pytest

from servers.http_files import HttpServer
from servers.processes import ask


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=-30", 206, b"0123456789"),
        ("bytes=5-500", 206, b"56789"),
        ("bytes=10-", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=0-1,4-5", 200, b"0123456789"),
        ("bytes=4-2", 200, b"0123456789"),
    ],
)
def test_ranges(http_server: HttpServer, asked: str, status: int, body: bytes) -> None:
    http_server.put("/a", b"0123456789")
    got = ask(http_server.port, "GET", "/a", headers={"Range": asked})
    assert (got[0], got[2]) == (status, body)
    assert (got[1].get("content-range", "").endswith("/10")) == (status != 200)


def test_conditions_on_the_etag(http_server: HttpServer) -> None:
    http_server.put("/a", b"old")
    _, headers, _ = ask(http_server.port, "HEAD", "/a")
    etag = headers["etag"]
    assert headers["content-length"] == "3"
    assert ask(http_server.port, "GET", "/a", headers={"If-Match": etag})[0] == 200
    http_server.put("/a", b"new body")
    assert ask(http_server.port, "GET", "/a", headers={"If-Match": etag})[0] == 412
    ranged = {"If-Range": etag, "Range": "bytes=0-1"}
    assert ask(http_server.port, "GET", "/a", headers=ranged)[2] == b"new body"
    since = {"If-Unmodified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"}
    assert ask(http_server.port, "GET", "/a", headers=since)[0] == 412


def test_index_page_links_what_is_in_the_folder(http_server: HttpServer) -> None:
    for name in ("d/b c.csv", "d/a.csv", "d/deep/x.csv", "other"):
        http_server.put(name, b"1")
    status, headers, page = ask(http_server.port, "GET", "/d/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.count(b"<a href=") == 3
    assert b'<a href="b%20c.csv">b c.csv</a>' in page
    assert b'<a href="deep/">deep/</a>' in page
    assert ask(http_server.port, "GET", "/nothing/")[0] == 404


def test_users_tokens_and_redirects(http_server: HttpServer) -> None:
    http_server.put("/a", b"secret")
    http_server.redirects["/moved"] = "/a"
    assert ask(http_server.port, "GET", "/moved")[1]["location"] == "/a"
    http_server.access.users["ada"] = "pass:word"
    http_server.access.tokens.add("tok")
    tried = {"": 401, "Basic YWRhOnBhc3M6d29yZA==": 200, "Bearer tok": 200, "Bearer old": 401}
    for authorization, status in tried.items():
        headers = {"Authorization": authorization}
        assert ask(http_server.port, "GET", "/a", headers=headers)[0] == status
    assert [request.status for request in http_server.log] == [302, 401, 200, 200, 401]
