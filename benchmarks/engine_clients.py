"""Clients of S3 other than the library, which fetch byte ranges of an object in several threads."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from remote_store import BUCKET, endpoint, storage_options

__all__ = ["CLIENTS", "Ranges"]

Ranges = Sequence[tuple[int, int]]
"""first byte, and the byte after the last"""
Fetch = Callable[[Ranges], int]
"""fetches all ranges and returns the number of bytes"""


def _in_threads(fetch: Callable[[int, int], int], threads: int) -> Fetch:
    pool = ThreadPoolExecutor(threads)
    return lambda ranges: sum(pool.map(lambda one: fetch(*one), ranges))


def obstore_get(key: str, threads: int) -> Fetch:
    """Use ``obstore.get`` with an etag, as the library does."""
    import obstore
    from obstore.store import S3Store

    options = storage_options()
    store = S3Store(
        BUCKET,
        access_key_id=options["key"],
        secret_access_key=options["secret"],
        endpoint=options["endpoint_url"],
        region=options["client_kwargs"]["region_name"],
        client_options={"allow_http": True},
    )
    etag = obstore.head(store, key)["e_tag"]

    def fetch(start: int, stop: int) -> int:
        answer = obstore.get(store, key, options={"range": (start, stop), "if_match": etag})
        return len(answer.bytes())

    return _in_threads(fetch, threads)


def pyarrow_read_at(key: str, threads: int) -> Fetch:
    """Use one file of its ``S3FileSystem``, opened beforehand."""
    from pyarrow.fs import S3FileSystem

    options = storage_options()
    filesystem = S3FileSystem(
        access_key=options["key"],
        secret_key=options["secret"],
        endpoint_override=options["endpoint_url"],
        region=options["client_kwargs"]["region_name"],
    )
    file = filesystem.open_input_file(f"{BUCKET}/{key}")
    return _in_threads(lambda start, stop: len(file.read_at(stop - start, start)), threads)


def s3fs_cat_file(key: str, threads: int) -> Fetch:
    filesystem = _s3fs()
    path = f"{BUCKET}/{key}"

    def fetch(start: int, stop: int) -> int:
        return len(filesystem.cat_file(path, start=start, end=stop))

    return _in_threads(fetch, threads)


def s3fs_cat_ranges(key: str, threads: int) -> Fetch:
    """Use one call for all ranges, run by the event loop of fsspec."""
    filesystem = _s3fs()

    def fetch(ranges: Ranges) -> int:
        starts, stops = [list(part) for part in zip(*ranges, strict=True)]
        paths = [f"{BUCKET}/{key}"] * len(ranges)
        contents = filesystem.cat_ranges(paths, starts, stops, batch_size=threads, on_error="raise")
        return sum(map(len, contents))

    return fetch


def _s3fs() -> Any:
    from s3fs import S3FileSystem

    return S3FileSystem(**storage_options(), config_kwargs={"max_pool_connections": 64})


def bare_http(key: str, threads: int) -> Fetch:
    """Send unsigned requests on a connection for each thread: the minimum cost in Python."""
    place = urlsplit(endpoint()).netloc
    mine = threading.local()

    def fetch(start: int, stop: int) -> int:
        if not hasattr(mine, "connection"):
            mine.connection = http.client.HTTPConnection(place)
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        mine.connection.request("GET", f"/{BUCKET}/{key}", headers=headers)
        return len(mine.connection.getresponse().read())

    return _in_threads(fetch, threads)


CLIENTS: dict[str, Callable[[str, int], Fetch]] = {
    "obstore, `get`": obstore_get,
    "pyarrow, `S3FileSystem`, `read_at`": pyarrow_read_at,
    "s3fs, `cat_file` in threads": s3fs_cat_file,
    "s3fs, `cat_ranges`": s3fs_cat_ranges,
    "`http.client`, unsigned": bare_http,
}
"""the first is the reference for the others"""
