"""Files of web servers."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.http_files import HttpServer, respond_with
from servers.proxy import FaultProxy
from store_contract import ROWS, Place, StoreContract, file_of, ids

from headrace import StructuredDataset
from headrace.errors import NothingFoundError, OptionError, ReadError

EVERYTHING = list(range(ROWS))


class TestHttp(StoreContract):
    @pytest.fixture
    def place(self, http_server: HttpServer) -> Place:
        put = lambda path, body: http_server.put(f"top/{path}", body)  # noqa: E731
        return Place(f"{http_server.url}/top", put, encoded=True)


class TestHttpOfUnescapedPaths(StoreContract):
    """What is no URL, strictly, but what people write; %, # and ? have to be escaped."""

    odd_names = ("with space.parquet", "ünïcödé-データ.parquet", "a+b.parquet", "sq[0].parquet")

    @pytest.fixture
    def place(self, http_server: HttpServer) -> Place:
        put = lambda path, body: http_server.put(f"to p/{path}", body)  # noqa: E731
        return Place(f"{http_server.url}/to p", put)

    def test_odd_folders(self, place: Place) -> None:
        place.put("a b/ü=1/x.parquet", file_of())
        assert ids(place.at("a b/ü=1")) == EVERYTHING


def test_a_list_of_urls(http_server: HttpServer) -> None:
    urls = [http_server.put(f"{i}/{i}.parquet", file_of(first=100 * i)) for i in range(3)]
    assert [value // 100 for value in ids(urls)] == [0] * ROWS + [1] * ROWS + [2] * ROWS


def test_index_pages_with_links_of_other_kinds(http_server: HttpServer) -> None:
    http_server.put("a b/x.parquet", file_of())
    http_server.put("a b/y z.parquet", file_of(first=100))
    http_server.put("other.parquet", file_of(first=900))
    page = (
        f'<a href="../">up</a><a href="?C=N;O=D">Name</a><a href="/a%20b/x.parquet#top">x</a>'
        f'<a HREF="{http_server.url}/a%20b/y%20z.parquet">y</a><a name="z">z</a><a href="">.</a>'
        f'<a href="/other.parquet">other</a><a href="http://127.0.0.1:1/a%20b/w.parquet">w</a>'
        f'<a href="mailto:x@y">mail</a><a href="javascript:go()">go</a>'
    )
    http_server._index = lambda path: page.encode() if path.startswith("/a b") else None
    for folder in ("a b", "a%20b", "a b/", "a%20b/"):
        got = ids(f"{http_server.url}/{folder}")
        assert got == [*EVERYTHING, *range(100, 100 + ROWS)], folder


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("password", ["s3cret", "p@ss:w/rd?#%41 ü", "a+b"])
def test_user_and_password(http_server: HttpServer, password: str) -> None:
    http_server.access.users["me"] = password
    http_server.put("d/a.parquet", file_of())
    host = http_server.url.removeprefix("http://")
    escaped = quote(password, safe="")
    for end in ("d/a.parquet", "d", "d/*.parquet"):
        assert ids(f"http://me:{escaped}@{host}/{end}") == EVERYTHING
        for auth in (("me", password), ["me", password]):
            got = ids(f"{http_server.url}/{end}", storage_options={"auth": auth})
            assert got == EVERYTHING
    more = {"client_kwargs": {"auth": ("me", password)}}
    assert ids(f"{http_server.url}/d", storage_options=more) == EVERYTHING
    assert {request.authorization for request in http_server.log} == {basic("me", password)}
    with pytest.raises(ReadError, match=r"HTTP 401.*1 attempt.*check the credentials"):
        ids(f"{http_server.url}/d/a.parquet")


def test_the_url_that_is_shown_holds_no_password(http_server: HttpServer) -> None:
    http_server.access.users["me"] = "s3cret"
    url = http_server.put("d/a.parquet", file_of())
    dataset = StructuredDataset(url.replace("://", "://me:s3cret@"))
    assert [file.path for file in dataset.files] == [url]


@pytest.mark.parametrize(
    "options",
    [
        {"token": "t0ken"},
        {"bearer_token": "t0ken"},
        {"headers": {"Authorization": "Bearer t0ken"}},
        {"headers": {"authorization": "Bearer t0ken"}},
        {"client_kwargs": {"headers": {"Authorization": "Bearer t0ken"}}},
        lambda: {"token": "t0ken"},
    ],
)
def test_a_bearer_token(http_server: HttpServer, options: dict[str, Any]) -> None:
    http_server.access.tokens.add("t0ken")
    http_server.put("d/a.orc", file_of("orc"))
    for end in ("d/a.orc", "d"):
        assert ids(f"{http_server.url}/{end}", "orc", storage_options=options) == EVERYTHING


def test_redirects_on_the_same_host_keep_the_login(http_server: HttpServer) -> None:
    http_server.access.users["me"] = "s3cret"
    http_server.put("new/a.parquet", file_of())
    http_server.redirects["/one.parquet"] = "/new/a.parquet"
    http_server.redirects["/two.parquet"] = f"{http_server.url}/one.parquet"
    host = http_server.url.removeprefix("http://")
    for name in ("one", "two"):
        assert ids(f"http://me:s3cret@{host}/{name}.parquet") == EVERYTHING


@pytest.fixture
def elsewhere() -> Any:
    server = HttpServer()
    yield server
    server.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"auth": ("me", "s3cret")},
        {"token": "t0ken"},
        {"headers": {"Authorization": "Bearer t0ken", "Cookie": "k3y"}},
    ],
)
def test_redirects_to_another_host_do_not(
    http_server: HttpServer, elsewhere: HttpServer, options: dict[str, Any]
) -> None:
    heads = []
    plain = elsewhere._find
    elsewhere._respond = lambda asked: heads.append(asked.head.raw.lower()) or plain(asked)
    http_server.redirects["/a.parquet"] = elsewhere.put("b.parquet", file_of())
    assert ids(f"{http_server.url}/a.parquet", storage_options=options) == EVERYTHING
    assert len(heads) > 1
    for head in heads:
        assert b"authorization" not in head
        assert b"cookie" not in head
    assert all(request.authorization for request in http_server.log if "auth" in options)


def test_redirects_without_end(http_server: HttpServer) -> None:
    http_server.redirects["/a.parquet"] = "/b.parquet"
    http_server.redirects["/b.parquet"] = "/a.parquet"
    with pytest.raises(ReadError, match="too many redirects"):
        ids(f"{http_server.url}/a.parquet")


class Signed(AnsweringServer):
    """Serves what a query signs, and that by GET alone, as signed links do."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.http = HttpServer()
        super().__init__(self._signed)

    def _signed(self, asked: HttpRequest) -> Reply:
        body = self.files.get(asked.target)
        if body is None or asked.method != "GET":
            return 403, {}, b"SignatureDoesNotMatch"
        self.http.put("x", body)
        return respond_with(self.http.files["/x"], asked.head)

    def stop(self) -> None:
        super().stop()
        self.http.stop()


QUERIES = {
    "s3": "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20260101&X-Amz-Expires=60"
    "&X-Amz-SignedHeaders=host&X-Amz-Signature=51gn",
    "gcs": "X-Goog-Credential=me%40x&X-Goog-Signature=51gn",
    "azure": "sv=2021-12-02&ss=b&srt=sco&sp=rl&se=2099-01-01T00%3A00%3A00Z&sig=51gn%2B",
    "cdn": "Expires=1&Signature=51gn~&Key-Pair-Id=K",
    "token": "token=51gn",
}


@pytest.mark.parametrize("kind", list(QUERIES))
def test_signed_urls(kind: str) -> None:
    query = QUERIES[kind]
    files = {f"/a/0.parquet?{query}": file_of(), f"/a/1.parquet?{query}": file_of(first=100)}
    server = Signed(files)
    try:
        dataset = StructuredDataset([f"{server.url}{target}" for target in files])
        assert [file.path for file in dataset.files] == [
            f"{server.url}/a/0.parquet",
            f"{server.url}/a/1.parquet",
        ]
        assert len([None for batch in dataset for _ in batch["id"]]) == 2 * ROWS
        with pytest.raises(ReadError, match=r"HTTP 403.*check the credentials"):
            ids(f"{server.url}/a/0.parquet?{query}x")
    finally:
        server.stop()


def test_signed_urls_that_differ_in_their_query() -> None:
    files = {f"/get?id={i}&sig=51gn": file_of(first=100 * i) for i in range(2)}
    server = Signed(files)
    try:
        urls = [f"{server.url}{target}" for target in files]
        assert ids(urls) == [*EVERYTHING, *range(100, 100 + ROWS)]
        with pytest.raises(OptionError, match=r"differ only in what signs them.*id=0") as caught:
            ids([urls[0], urls[0] + "x"])
        assert "51gn" not in str(caught.value)
    finally:
        server.stop()


def answering(http_server: HttpServer, change: Callable[[HttpRequest, Reply], Reply]) -> None:
    plain = http_server._find
    http_server._respond = lambda asked: change(asked, plain(asked))


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_server_that_has_no_head(http_server: HttpServer, status: int) -> None:
    url = http_server.put("a.parquet", file_of())
    empty = http_server.put("empty.csv", b"")
    answering(http_server, lambda asked, r: (status, {}, b"") if asked.method == "HEAD" else r)
    assert ids(url) == EVERYTHING
    assert ids(empty, "csv") == []


def test_a_server_without_etags(http_server: HttpServer) -> None:
    url = http_server.put("a.parquet", file_of())
    http_server.sends_etag = False
    assert ids(url) == EVERYTHING


def test_a_server_without_any_mark_of_a_version(http_server: HttpServer) -> None:
    url = http_server.put("a.parquet", file_of())

    def bare(asked: HttpRequest, reply: Reply) -> Reply:
        status, headers, body = reply
        kept = {name: headers[name] for name in ("Content-Range",) if name in headers}
        return status, kept, body

    answering(http_server, bare)
    assert ids(url) == EVERYTHING


def test_a_server_with_weak_etags(http_server: HttpServer) -> None:
    url = http_server.put("a.parquet", file_of())

    def weak(asked: HttpRequest, reply: Reply) -> Reply:
        status, headers, body = reply
        return status, {**headers, "ETag": 'W/"1"'}, body

    answering(http_server, weak)
    assert ids(url) == EVERYTHING


def test_a_server_that_tells_no_length(http_server: HttpServer) -> None:
    """It sends chunks, of unknown number."""
    url = http_server.put("a.parquet", file_of())

    def chunked(asked: HttpRequest) -> bytes:
        status, headers, body = http_server._find(asked)
        lines = [f"HTTP/1.1 {status} OK", *(f"{k}: {v}" for k, v in headers.items())]
        head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode()
        if asked.method == "HEAD":
            return head
        return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

    http_server._answer = chunked
    with pytest.raises(ReadError, match=r"a\.parquet.*its size is not known"):
        ids(url)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_server_that_compresses_what_it_sends(http_server: HttpServer, format: str) -> None:
    """As text, what a short file is compressed to may be a line without rows."""

    def compressed(asked: HttpRequest, reply: Reply) -> Reply:
        status, headers, _ = reply
        body = gzip.compress(file_of(format, rows=2))
        headers = {"ETag": headers["ETag"], "Content-Encoding": "gzip"}
        return 200 if status == 206 else status, headers, body

    url = http_server.put(f"a.{format}", file_of(format))
    answering(http_server, compressed)
    with pytest.raises(ReadError, match=rf"a\.{format}.*sends it compressed \(gzip\)"):
        ids(url, format)


def test_compressed_files_may_be_said_to_be_so(http_server: HttpServer) -> None:
    encoded = {"Content-Encoding": "gzip"}
    url = http_server.put("a.csv.gz", gzip.compress(file_of("csv")))
    answering(http_server, lambda asked, reply: (reply[0], {**reply[1], **encoded}, reply[2]))
    assert ids(url, "csv") == EVERYTHING


def test_a_page_instead_of_a_file(http_server: HttpServer) -> None:
    """What sites show to those who are not signed in is no data."""
    page = (200, {"Content-Type": "text/html"}, b"<html><a href='/login'>sign in</a></html>")
    answering(http_server, lambda asked, reply: page)
    with pytest.raises(NothingFoundError, match="does not exist"):
        ids(f"{http_server.url}/a.parquet")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokn": "hunter2"}, r"'tokn'.*known are headers, auth, token"),
        ({"client_kwargs": {"x": "hunter2"}}, r"'x', which is not known"),
        ({"token": "hunter2\n"}, "'token' holds.*line break"),
        ({"headers": {"X-Key": "hunter2\r\nHost: x"}}, "failed to parse header value"),
        ({"headers": {"X-Key": 5}}, "'int' object is not an instance of 'str'"),
        ({"auth": "hunter2"}, "'auth' for HTTP must be a user and a password"),
        ({"auth": ("hunter2", 5)}, "'auth' for HTTP must be a user and a password"),
        ({"token": "hunter2", "bearer_token": "hunter3"}, "token twice, by different values"),
    ],
)
def test_options_that_are_wrong(
    http_server: HttpServer, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        ids(http_server.put("a.parquet", file_of()), storage_options=options)
    assert "hunter" not in str(caught.value)
    assert not http_server.log


def test_a_host_that_is_not_there(proxy_to: Callable[..., FaultProxy]) -> None:
    for url in ("http://127.0.0.1:1/a.parquet", "http://no-such-host.invalid/a.parquet"):
        with pytest.raises(ReadError, match=r"a\.parquet: .*2 attempts"):
            ids(url, retries=1)


@pytest.mark.parametrize("password", ["s3cret", "p@ss:w/rd"])
def test_a_proxy_with_user_and_password(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    http_server.put("d/a.parquet", file_of())
    expected = f"Basic {b64encode(f'me:{password}'.encode()).decode()}"

    def pass_on(asked: HttpRequest) -> Reply:
        if asked.head.value(b"proxy-authorization") != expected:
            return 407, {"Proxy-Authenticate": "Basic"}, b""
        return http_server._find(replace(asked, target=urlsplit(asked.target).path))

    proxy = AnsweringServer(pass_on)
    try:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        where = proxy.url.removeprefix("http://")
        monkeypatch.setenv("http_proxy", f"http://me:{quote(password, safe='')}@{where}")
        assert ids("http://data.test/d") == EVERYTHING
        monkeypatch.setenv("http_proxy", f"http://me:wrong@{where}")
        with pytest.raises(ReadError, match="407") as caught:
            ids("http://data.test/d")
        assert "wrong" not in str(caught.value)
    finally:
        proxy.stop()
    assert {request.status for request in proxy.log} == {200, 206, 407}
