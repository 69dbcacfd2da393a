"""The servers as fixtures: each starts once in a test process, when a test first uses it.

A server that does not start fails the test; it is never a reason to skip one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from servers.azure import AzureServer
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    server = AzureServer()
    yield server
    server.stop()


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.stop()


@pytest.fixture
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.stop()


@pytest.fixture
def proxy_to() -> Iterator[Callable[..., FaultProxy]]:
    """Return a function that starts a proxy: `proxy_to(server.url, latency_s=…)`.

    The proxies are stopped at the end of the test.
    """
    proxies: list[FaultProxy] = []

    def start(upstream: str, **options: object) -> FaultProxy:
        proxies.append(FaultProxy(upstream, **options).start())
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.stop()
