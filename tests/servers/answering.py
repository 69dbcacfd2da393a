"""A small HTTP server in threads of this process: one function answers all requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from servers.listening import Listener
from servers.wire import Head, Wire, answer_bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `target` is path and query as they were sent."""

    method: str
    target: str
    head: Head
    body: bytes

    @property
    def authorization(self) -> str | None:
        return self.head.value(b"authorization")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came in, and the status it got."""

    method: str
    target: str
    range: str | None
    authorization: str | None
    status: int


Reply = tuple[int, dict[str, str], bytes]


PATIENCE_S = 60.0


class AnsweringServer:
    """Runs from the start until `stop`; `seen` has an entry for each request.

    `stop` waits for answers that are being made: what they are made of may be gone afterwards. An
    error of the function that answers is raised there and not lost in a thread.
    """

    def __init__(self, respond: Callable[[Asked], Reply]) -> None:
        self.seen: list[Seen] = []
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
                wire.sock.sendall(self._answer(Asked(method, target, head, wire.read_all(head))))
        except OSError:
            return
        except Exception as error:
            self.errors.append(error)
        finally:
            wire.finish()

    def _answer(self, asked: Asked) -> bytes:
        status, headers, body = self._respond(asked)
        self.seen.append(
            Seen(
                asked.method, asked.target, asked.head.value(b"range"), asked.authorization, status
            )
        )
        headers["Content-Length"] = str(len(body))
        return answer_bytes(status, headers, b"" if asked.method == "HEAD" else body)
