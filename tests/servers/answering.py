"""A small HTTP server in threads of this process: one function answers all requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from servers.listening import Listener
from servers.wire import Head, Wire, answer_bytes


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that was received. `target` is the path and query as they were sent."""

    method: str
    target: str
    head: Head
    body: bytes

    @property
    def authorization(self) -> str | None:
        return self.head.value(b"authorization")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A line of the server's log: a request, and the status of its answer."""

    method: str
    target: str
    range: str | None
    authorization: str | None
    status: int


Reply = tuple[int, dict[str, str], bytes]


PATIENCE_S = 60.0


class AnsweringServer:
    """A server that runs from its construction until `stop`; `log` has an entry for each request.

    `stop` waits for answers in progress, because what they read may be deleted afterwards. It
    raises an error of the responding function, which would otherwise be lost in a thread.
    """

    def __init__(self, respond: Callable[[HttpRequest], Reply]) -> None:
        self.log: list[LoggedRequest] = []
        self.errors: list[Exception] = []
        self._respond = respond
        self._listener = Listener(self._serve)
        self._listener.open()

    @property
    def url(self) -> str:
        return self._listener.url

    @property
    def port(self) -> int:
        return self._listener.port

    def stop(self) -> None:
        self._listener.close(drop=True)
        self._listener.join(PATIENCE_S)
        if self.errors:
            raise RuntimeError("the server itself failed") from self.errors[0]

    def _serve(self, wire: Wire) -> None:
        try:
            while (head := wire.read_head()) is not None:
                method, target, _ = head.start_line.decode("latin-1").split(" ", 2)
                wire.sock.sendall(
                    self._answer(HttpRequest(method, target, head, wire.read_all(head)))
                )
        except OSError:
            return
        except Exception as error:
            self.errors.append(error)
        finally:
            wire.finish()

    def _answer(self, request: HttpRequest) -> bytes:
        status, headers, body = self._respond(request)
        self.log.append(
            LoggedRequest(
                request.method,
                request.target,
                request.head.value(b"range"),
                request.authorization,
                status,
            )
        )
        headers["Content-Length"] = str(len(body))
        return answer_bytes(status, headers, b"" if request.method == "HEAD" else body)
