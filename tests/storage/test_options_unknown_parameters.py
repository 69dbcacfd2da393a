"""URLs with parameters of which it is not known what they are: used as given, and never shown."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.answering import AnsweringServer, HttpRequest, Reply
from servers.http_files import HttpServer, respond_with
from store_contract import ROWS, file_of

from headrace import StructuredDataset
from headrace.errors import FileChangedError, ReadError

SECRET = "c4n4ry"
FIRST, SECOND = list(range(ROWS)), list(range(100, 100 + ROWS))


class Exact(AnsweringServer):
    """Serves files whose path and query are asked for exactly as they are here."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.sends_etag = True
        self.marks: dict[str, str] = {}
        self._http = HttpServer()
        super().__init__(self._reply)

    def put(self, target: str, body: bytes) -> str:
        self.files[target] = body
        return f"{self.url}{target}"

    def _reply(self, asked: HttpRequest) -> Reply:
        body = self.files.get(asked.target)
        if body is None:
            return 403, {}, f"{asked.target} is not allowed".encode()
        self._http.put("x", body)
        stored = self._http.files["/x"]
        return respond_with(stored, asked.head, sends_etag=self.sends_etag, more=self.marks)

    def stop(self) -> None:
        super().stop()
        self._http.stop()


@pytest.fixture
def server() -> Iterator[Exact]:
    started = Exact()
    yield started
    started.stop()


def ids(dataset: StructuredDataset) -> list[int]:
    return [int(value) for batch in dataset for value in batch["id"]]


@pytest.mark.parametrize("name", ["code", "hmac", "session", "k", "x-unheard-of"])
def test_their_values_are_sent_and_not_shown(server: Exact, tmp_path: Path, name: str) -> None:
    url = server.put(f"/a.parquet?{name}={SECRET}&raw=1", file_of())
    dataset = StructuredDataset(url)
    assert dataset.files[0].path == f"{server.url}/a.parquet?raw=1"
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    dataset.save_manifest(tmp_path / "manifest")
    for shown in (repr(dataset), repr(dataset.splits), json.dumps(state)):
        assert SECRET not in shown
    assert SECRET.encode() not in pickle.dumps(dataset.files)
    assert SECRET.encode() not in (tmp_path / "manifest").read_bytes()
    server.files.clear()
    with pytest.raises(ReadError, match=r"HTTP 403") as caught:
        StructuredDataset(url)
    assert SECRET not in str(caught.value)


def test_a_manifest_is_read_with_urls_that_have_them(server: Exact, tmp_path: Path) -> None:
    urls = [server.put(f"/{i}.parquet?code={SECRET}{i}", file_of(first=100 * i)) for i in range(2)]
    StructuredDataset(urls).save_manifest(tmp_path / "manifest")
    asked = len(server.log)
    dataset = StructuredDataset(urls, manifest=tmp_path / "manifest")
    assert len(server.log) == asked
    assert ids(dataset) == FIRST + SECOND
    renewed = [server.put(f"/{i}.parquet?code=new{i}", file_of(first=100 * i)) for i in range(2)]
    assert ids(StructuredDataset(renewed, manifest=tmp_path / "manifest")) == FIRST + SECOND


def test_files_that_nothing_else_tells_apart_are_numbered(server: Exact, tmp_path: Path) -> None:
    urls = [server.put(f"/get?code={SECRET}{i}", file_of(first=100 * i)) for i in range(2)]
    for given in (urls, urls[::-1]):
        dataset = StructuredDataset(given, format="parquet")
        assert [file.path for file in dataset.files] == [f"{server.url}/get#{n}" for n in (1, 2)]
        assert ids(dataset) == FIRST + SECOND
    dataset.save_manifest(tmp_path / "manifest")
    assert SECRET.encode() not in (tmp_path / "manifest").read_bytes()
    again = StructuredDataset(urls[::-1], format="parquet", manifest=tmp_path / "manifest")
    assert ids(again) == FIRST + SECOND
    server.files = dict(zip(server.files, reversed(server.files.values()), strict=True))
    with pytest.raises(FileChangedError):
        ids(StructuredDataset(urls[::-1], format="parquet", manifest=tmp_path / "manifest"))


def numbers(values: list[int]) -> bytes:
    """A file whose size does not depend on the values."""
    sink = io.BytesIO()
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"id": values}), sink, row_group_size=20, **options)
    return sink.getvalue()


def test_caches_tell_such_files_apart(server: Exact, tmp_path: Path) -> None:
    """The files look alike: size, time of change, and all of their URL that is shown."""
    server.marks = {"Last-Modified": "Sun, 06 Nov 2022 08:49:37 GMT"}
    server.sends_etag = False
    options: Any = {"format": "parquet", "split_rows": 5, "cache_dir": tmp_path / "cache"}
    for number, expected in enumerate((FIRST, SECOND)):
        url = server.put(f"/get?code={SECRET}{number}", numbers(expected))
        dataset = StructuredDataset(url, **options)
        assert dataset.files[0].path == f"{server.url}/get"
        assert ids(dataset) == expected
        assert ids(StructuredDataset(url, **options)) == expected
    assert len({len(body) for body in server.files.values()}) == 1
    assert not [path for path in (tmp_path / "cache").rglob("*") if SECRET in str(path)]
