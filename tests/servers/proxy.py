"""A reverse proxy that is slow, narrow or faulty on demand: HTTP/1.1, one thread per connection.

In a test, `FaultProxy(url)` runs in threads of the process and is controlled by its methods; for
benchmarks `python -m servers.proxy_process --upstream URL` (with tests/ on the path) runs it in its
own process. The Host header passes as the client sent it, because it is signed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from servers.faults import EXPIRED_TOKEN_403, Answer, Fault, Request, Rule
from servers.listening import Listener
from servers.passage import Passage
from servers.wire import Wire


class TokenBucket:
    """A limit of bytes per second over all connections; short bursts may run ahead of it."""

    BURST_S = 0.005

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        rate = self.bytes_per_s
        if rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / rate
            wait = self._free_at - now - self.BURST_S
        if wait > 0:
            time.sleep(wait)


class FaultProxy:
    """Forwards to `upstream` ("http://host:port") from its own port on the loopback.

    The proxy waits `latency_s` before it forwards a request; `bytes_per_s` limits the bodies of all
    answers together. Both may be set at any time. `log` has one `Request` for each request, in
    order of arrival. Use it as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        upstream: str,
        *,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        port: int = 0,
    ) -> None:
        place = urlsplit(upstream)
        self.upstream = (place.hostname, place.port or 80)
        self.latency_s = latency_s
        self.log: list[Request] = []
        self.errors: list[BaseException] = []
        self.bucket = TokenBucket()
        self.bucket.bytes_per_s = bytes_per_s
        self._rules: list[Rule] = []
        self._expired: dict[str, Answer] = {}
        self._listener = Listener(self._serve, port=port)
        self.intercept: Callable[[Request], Answer | None] | None = None

    @property
    def url(self) -> str:
        return self._listener.url

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def bytes_per_s(self) -> float | None:
        return self.bucket.bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, value: float | None) -> None:
        self.bucket.bytes_per_s = value

    def start(self) -> FaultProxy:
        self._listener.open()
        return self

    def stop(self) -> None:
        """Close all connections; raise an error of the proxy itself, which a thread would lose."""
        self._listener.close(drop=True)
        if self.errors:
            raise RuntimeError("the proxy itself failed") from self.errors[0]

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def inject(self, fault: Fault, **selection: object) -> Rule:
        """Add a rule (the keywords are those of `Rule`); the first one that strikes is applied."""
        rule = Rule(fault, **selection)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        self._rules.remove(rule)

    def clear(self) -> None:
        """Remove all faults and empty the log; latency and bandwidth stay."""
        self._rules.clear()
        self._expired.clear()
        self.log.clear()

    def reject_keys(self, *key_ids: str, answer: Answer = EXPIRED_TOKEN_403) -> None:
        """Answer requests signed with one of these keys with `answer` from now on."""
        self._expired.update(dict.fromkeys(key_ids, answer))

    def accept_keys(self, *key_ids: str) -> None:
        for key_id in key_ids:
            self._expired.pop(key_id, None)

    def refuse(self, *, drop: bool = True) -> None:
        """Refuse connections until `accept`; if `drop`, end open connections as well."""
        self._listener.close(drop=drop)

    def accept(self) -> None:
        self._listener.open()

    @contextlib.contextmanager
    def refusing(self, *, drop: bool = True) -> Iterator[None]:
        self.refuse(drop=drop)
        try:
            yield
        finally:
            self.accept()

    def refuse_for(self, seconds: float, *, drop: bool = True) -> threading.Timer:
        """Like `refusing`, but return at once and end after `seconds`."""
        self.refuse(drop=drop)
        timer = threading.Timer(seconds, self.accept)
        timer.daemon = True
        timer.start()
        return timer

    def requests(self, method: str | None = None, **fields: object) -> list[Request]:
        """Return the requests in the log with this method and these values of fields."""
        return [
            request
            for request in list(self.log)
            if (method is None or request.method == method)
            and all(getattr(request, name) == value for name, value in fields.items())
        ]

    @property
    def body_bytes(self) -> int:
        return sum(request.body_bytes for request in list(self.log))

    def _serve(self, client: Wire) -> None:
        with contextlib.ExitStack() as ends:
            ends.callback(client.finish)
            try:
                Passage(self, client, ends).serve()
            except OSError:
                return  # one of the two sides has gone: so does the other
            except Exception as error:
                self.errors.append(error)

    def fault_for(self, request: Request) -> Fault | None:
        if self._expired and request.key_id in self._expired:
            return self._expired[request.key_id]
        return next((rule.fault for rule in list(self._rules) if rule.strikes(request)), None)
