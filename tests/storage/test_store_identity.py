"""The same path in two stores: rows of one never come as those of the other."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from servers.http_files import HttpServer

from headrace import FileChangedError, StructuredDataset
from headrace.storage import store_for


def store_identity(protocol: str, options: dict[str, Any]) -> str:
    return store_for(f"{protocol}://place/file", options).identity


def parquet(start: int, rows: int = 1_000) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"id": pa.array(range(start, start + rows))})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue()


def ids(dataset: StructuredDataset) -> list[int]:
    return [value for batch in dataset for value in batch["id"].tolist()]


def test_two_stores_in_memory() -> None:
    stores = [MemoryStore(), MemoryStore()]
    for number, store in enumerate(stores):
        store.put("part.parquet", parquet(10_000 * number))
    for number, store in enumerate(stores):
        dataset = StructuredDataset("part.parquet", filesystem=store, split_rows=100)
        assert ids(dataset) == list(range(10_000 * number, 10_000 * number + 1_000))


def test_two_folders_whose_files_have_the_same_time(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "val")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.parquet").write_bytes(parquet(10_000 * number))
        os.utime(tmp_path / name / "part.parquet", (1_000_000_000, 1_000_000_000))
    for number, name in enumerate(("train", "val")):
        below = pafs.SubTreeFileSystem(str(tmp_path / name), pafs.LocalFileSystem())
        dataset = StructuredDataset("part.parquet", filesystem=below, split_rows=100)
        assert ids(dataset) == list(range(10_000 * number, 10_000 * number + 1_000))


def test_two_stores_that_share_a_cache(tmp_path: Path) -> None:
    stores = [MemoryStore(), MemoryStore()]
    for number, store in enumerate(stores):
        store.put("part.parquet", parquet(10_000 * number))
    for number, store in enumerate(stores):
        dataset = StructuredDataset("part.parquet", filesystem=store, cache_dir=tmp_path)
        assert ids(dataset) == list(range(10_000 * number, 10_000 * number + 1_000))


def test_places_tell_stores_apart_and_credentials_do_not() -> None:
    keys = {"key": "a", "secret": "b"}
    here = store_identity("s3", {**keys, "endpoint_url": "http://here"})
    assert here == store_identity("s3", {"anon": True, "endpoint": "http://here/"})
    assert here != store_identity("s3", {**keys, "client_kwargs": {"endpoint_url": "http://there"}})
    assert here != store_identity("s3", keys)
    string = "AccountName=one;AccountKey=eA==;"
    one = store_identity("az", {"connection_string": string})
    assert one == store_identity("az", {"connection_string": string.replace("eA", "eQ")})
    assert one == store_identity("az", {"account_name": "one", "account_key": "eA=="})
    assert one != store_identity("az", {"connection_string": string.replace("one", "two")})
    hub = store_identity("hf", {"endpoint": "http://here", "token": "a"})
    assert hub == store_identity("hf", {"endpoint": "http://here", "token": "b"})
    assert hub != store_identity("hf", {"endpoint": "http://there", "token": "a"})
    gcs = store_identity("gs", {"endpoint_url": "http://here", "token": "anon"})
    assert gcs == store_identity("gs", {"endpoint_url": "http://here", "anon": True})
    assert gcs != store_identity("gs", {"endpoint_url": "http://there", "anon": True})
    first, second = ({"target_protocol": "memory", "target_options": {"a": a}} for a in "ab")
    assert store_identity("dir", {**first, "path": "/a"}) != store_identity(
        "dir", {**second, "path": "/a"}
    )


def test_a_file_of_another_size_on_a_server_without_etags(http_server: HttpServer) -> None:
    http_server.sends_etag = False
    http_server.sends_time = False
    url = http_server.put("/rows.parquet", parquet(0, 50_000))
    dataset = StructuredDataset(url, batch_size=100, split_rows=1_000)
    assert dataset.files[0].etag is None
    http_server.put("/rows.parquet", parquet(1_000_000, 51_000))
    with pytest.raises(FileChangedError, match=r"rows\.parquet"):
        ids(dataset)
