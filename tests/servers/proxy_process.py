"""The proxy as a process of its own, for benchmarks.

`python -m servers.proxy_process --upstream URL` with tests/ on the path, or `ProxyProcess`.
The process answers paths under /__proxy__/ itself: GET stats, POST set.
"""

from __future__ import annotations

import argparse
import json
import threading
from urllib.parse import parse_qsl

from servers.faults import Answer, Request
from servers.processes import ask_well, free_port, start_module
from servers.proxy import FaultProxy

CONTROL = "/__proxy__/"


class ProxyProcess:
    """A proxy to `upstream` in its own process, until the end of the `with` block or `stop`."""

    def __init__(
        self, upstream: str, *, latency_s: float = 0.0, bytes_per_s: float | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = [f"--upstream={upstream}", f"--port={self.port}", f"--latency-s={latency_s}"]
        if bytes_per_s is not None:
            options.append(f"--bytes-per-s={bytes_per_s}")
        self._process = start_module("servers.proxy_process", *options)
        self._process.wait_until_answers(self.port, CONTROL + "stats")

    def set(self, *, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Other speeds from now on; the statistics begin anew."""
        query = f"latency_s={latency_s}&bytes_per_s={bytes_per_s or 0}"
        ask_well(self.port, "POST", f"{CONTROL}set?{query}")

    def stats(self) -> dict[str, int]:
        """Since the last `set`: `requests`, `body_bytes`, and requests by "METHOD status"."""
        return json.loads(ask_well(self.port, "GET", CONTROL + "stats")[1])

    def stop(self) -> None:
        self._process.stop()

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _control(proxy: FaultProxy, request: Request) -> Answer | None:
    if not request.path.startswith(CONTROL):
        return None
    if request.path == CONTROL + "set":
        values = dict(parse_qsl(request.query))
        proxy.latency_s = float(values["latency_s"])
        proxy.bytes_per_s = float(values["bytes_per_s"]) or None
        proxy.clear()
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(_count(proxy)).encode())


def _count(proxy: FaultProxy) -> dict[str, int]:
    log = list(proxy.log)
    counts = {"requests": len(log), "body_bytes": sum(request.body_bytes for request in log)}
    for request in log:
        name = f"{request.method} {request.status}"
        counts[name] = counts.get(name, 0) + 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="a slow or narrow reverse proxy")
    parser.add_argument("--upstream", required=True, help="http://host:port of the server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.0, help="waited at each request")
    parser.add_argument("--bytes-per-s", type=float, help="cap over all connections")
    given = parser.parse_args()
    proxy = FaultProxy(
        given.upstream, latency_s=given.latency_s, bytes_per_s=given.bytes_per_s, port=given.port
    )
    proxy.intercept = lambda request: _control(proxy, request)
    proxy.start()
    print(proxy.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
