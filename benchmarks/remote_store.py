"""A bucket of the data, behind a proxy that is slow or narrow: two processes beside the run.

The arms find it by an environment variable; the proxy counts requests and bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from data import FOLDER, Data

__all__ = [
    "BUCKET",
    "CAP_BYTES_PER_S",
    "NETWORKS",
    "TWO_COLUMNS",
    "BucketBehindProxy",
    "Network",
    "endpoint",
    "location",
    "needed_bytes",
    "network_of",
    "serving",
    "storage_options",
    "traffic",
]

_ENDPOINT = "BENCHMARK_S3_ENDPOINT"
BUCKET = "rows"
_KEY, _SECRET, _REGION = "AKIATESTKEY", "test-secret", "us-east-1"
TWO_COLUMNS = ["f00", "row"]
CAP_BYTES_PER_S = 100e6


@dataclass(frozen=True, slots=True)
class Network:
    """The network between an arm and the bucket."""

    title: str
    latency_s: float
    bytes_per_s: float | None = None


NETWORKS = {
    "20ms": Network("20 ms", 0.02),
    "100ms": Network("100 ms", 0.1),
    "capped": Network("20 ms, 100 MB/s", 0.02, CAP_BYTES_PER_S),
}
"""by the last part of an arm's name"""


def network_of(arm: str) -> Network | None:
    """Return the network between an arm and the bucket; None if the arm reads local files."""
    return NETWORKS.get(arm.rpartition("-")[2])


class BucketBehindProxy:
    """The server and the proxy, while they run."""

    def __init__(self, proxy: Any) -> None:
        self._proxy = proxy

    def prepare(self, network: Network) -> dict[str, str]:
        """Set the proxy for a pass, count from 0, and return the environment of its arm.

        The variables of AWS are for torch-dataloader-utils, which does not use its storage options
        where it reads footers.
        """
        self._proxy.set(latency_s=network.latency_s, bytes_per_s=network.bytes_per_s)
        return {
            _ENDPOINT: self._proxy.url,
            "AWS_ENDPOINT_URL": self._proxy.url,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def serving(folder: Path = FOLDER) -> Iterator[BucketBehindProxy]:
    """Serve a folder; files that are added later are found, but not listed."""
    tests = str(Path(__file__).resolve().parent.parent / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from servers.fast_s3 import FastS3Process
    from servers.proxy_process import ProxyProcess

    with FastS3Process(folder, bucket=BUCKET) as server, ProxyProcess(server.url) as proxy:
        yield BucketBehindProxy(proxy)


# --- in the process of an arm


def location(data: Data, kind: str) -> str:
    """Return the URL of the files of one kind."""
    return f"s3://{BUCKET}/{data.folder(kind).relative_to(FOLDER)}"


def endpoint() -> str | None:
    """Return the URL of the proxy; None if this arm does not use it."""
    return os.environ.get(_ENDPOINT)


def storage_options() -> dict[str, Any]:
    """Return the options of s3fs."""
    return {
        "key": _KEY,
        "secret": _SECRET,
        "endpoint_url": endpoint(),
        "client_kwargs": {"region_name": _REGION},
    }


def traffic() -> tuple[int, int]:
    """Return requests and bytes of answers that went through the proxy in this pass so far."""
    connection = HTTPConnection(urlsplit(endpoint()).netloc)
    try:
        connection.request("GET", "/__proxy__/stats")
        counted = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return counted["requests"], counted["body_bytes"]


@cache
def needed_bytes(data: Data, columns: tuple[str, ...] | None) -> int:
    """Return the bytes of these columns in the Parquet files, according to their footers."""
    total = 0
    for path in data.files("parquet"):
        footer = pq.read_metadata(path)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            chunks = map(group.column, range(group.num_columns))
            total += sum(
                chunk.total_compressed_size
                for chunk in chunks
                if columns is None or chunk.path_in_schema in columns
            )
    return total
