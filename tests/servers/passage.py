"""The requests of one client of the proxy, on their way to the server, and their answers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import unquote

from servers.faults import (
    Answer,
    CutShort,
    Drip,
    Request,
    Reset,
    SlowFirstByte,
    Stall,
    WholeBody,
    WrongLength,
)
from servers.wire import BODILESS_STATUSES, Head, Wire, answer_bytes, is_chunked

if TYPE_CHECKING:
    from servers.proxy import FaultProxy


class Passage:
    """A client's connection, and the connection to the server that its requests are sent on."""

    def __init__(self, proxy: FaultProxy, client: Wire, ends: contextlib.ExitStack) -> None:
        self._proxy, self._client = proxy, client
        self._server: Wire | None = None
        ends.callback(self._hang_up)

    def serve(self) -> None:
        while (head := self._client.read_head()) is not None:
            if not self._exchange(head):
                return

    def _exchange(self, head: Head) -> bool:
        """Forward one request and return its answer; return True if the connection stays open."""
        proxy, request = self._proxy, _request_of(head)
        answer = proxy.intercept(request) if proxy.intercept else None
        if answer is None:
            proxy.log.append(request)
            if proxy.latency_s:
                time.sleep(proxy.latency_s)
            answer = request.fault = proxy.fault_for(request)
        if isinstance(answer, SlowFirstByte) and self._client.closes_within(answer.seconds):
            return False
        if isinstance(answer, Answer):
            return self._answer_instead(head, request, answer)
        if isinstance(answer, WholeBody):
            head = head.without(b"range").without(b"x-ms-range").without(b"if-range")
        reply = self._forward(head)
        return self._pass_back(request, reply)

    def _answer_instead(self, head: Head, request: Request, answer: Answer) -> bool:
        self._take_body(head)
        body = b"" if request.method == "HEAD" else answer.body
        request.status, request.body_bytes = answer.status, len(body)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        self._client.sock.sendall(answer_bytes(answer.status, headers, body))
        return True

    def _take_body(self, head: Head) -> None:
        if head.value(b"expect"):
            self._client.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        for _ in self._client.read_body(head):
            pass

    def _forward(self, head: Head) -> Head:
        """Send the request; send it again if the kept connection turns out to be dead."""
        if not head.value(b"content-length") and not is_chunked(head):
            if self._server is not None:
                with contextlib.suppress(ConnectionError):
                    self._server.sock.sendall(head.raw)
                    if (reply := self._server.read_head()) is not None:
                        return reply
            self._dial().sock.sendall(head.raw)
        else:
            self._forward_with_body(head)
        reply = self._server.read_head()
        while reply is not None and _status_of(reply) < 200:
            reply = self._server.read_head()
        if reply is None:
            raise ConnectionError("the server closed instead of answering")
        return reply

    def _forward_with_body(self, head: Head) -> None:
        server = self._dial()
        if head.value(b"expect"):
            self._client.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = head.without(b"expect")
        server.sock.sendall(head.raw)
        for piece in self._client.read_body(head):
            server.sock.sendall(piece)

    def _dial(self) -> Wire:
        self._hang_up()
        self._server = Wire(socket.create_connection(self._proxy.upstream))
        return self._server

    def _hang_up(self) -> None:
        if self._server is not None:
            self._server.sock.close()
            self._server = None

    def _pass_back(self, request: Request, reply: Head) -> bool:
        status = _status_of(reply)
        length = _body_length(request, reply, status)
        last = (reply.value(b"connection") or "").lower() == "close"
        if last or reply.raw.startswith(b"HTTP/1.0"):
            reply = Head(b"HTTP/1.1" + reply.without(b"connection").raw[8:])
        fault = request.fault
        if isinstance(fault, WrongLength):
            if not length:
                raise ValueError(f"{request} has no Content-Length to falsify")
            reply = reply.with_value(b"content-length", str(length + fault.by))
        request.status = status
        if length is None and is_chunked(reply):
            pieces = self._server.read_chunked()
        else:
            pieces = self._server.read_pieces(length)
        if isinstance(fault, Reset | CutShort | Stall | Drip):
            return self._break_off(request, fault, reply, pieces)
        until_closed = length is None and not is_chunked(reply)
        self._pour(request, reply, pieces, expected=length)
        if last:
            self._hang_up()
        return not (until_closed or isinstance(fault, WrongLength))

    def _pour(
        self,
        request: Request,
        reply: Head,
        pieces: Iterator[bytes | memoryview],
        *,
        expected: int | None,
    ) -> None:
        """Send head and body; the head goes out with the first piece if that is available."""
        sock, bucket = self._client.sock, self._proxy.bucket
        head: bytes = reply.raw
        for piece in pieces:
            bucket.take(len(piece))
            request.body_bytes += len(piece)
            if head and len(piece) <= 65536:
                sock.sendall(head + piece)
            else:
                if head:
                    sock.sendall(head)
                sock.sendall(piece)
            head = b""
        if head:
            sock.sendall(head)
        if expected is not None and request.body_bytes < expected:
            raise ConnectionError("the server broke off within the body")

    def _break_off(
        self,
        request: Request,
        fault: Reset | CutShort | Stall | Drip,
        reply: Head,
        pieces: Iterator[bytes | memoryview],
    ) -> bool:
        left, rest = fault.after_bytes, b""
        if isinstance(fault, Drip) and left is None:
            self._drip(request, fault, chain([reply.raw], pieces))
            return False
        if left is None:
            request.status = 0
            self._client.reset()
            return False
        self._client.sock.sendall(reply.raw)
        while left and (piece := next(pieces, None)) is not None:
            piece, rest = piece[:left], piece[left:]
            left -= len(piece)
            self._proxy.bucket.take(len(piece))
            request.body_bytes += len(piece)
            self._client.sock.sendall(piece)
        if isinstance(fault, Reset):
            self._client.reset()
        elif isinstance(fault, Stall):
            self._client.wait_for_close()
        elif isinstance(fault, Drip):
            self._drip(request, fault, chain([rest], pieces))
        return False

    def _drip(self, request: Request, drip: Drip, pieces: Iterator[bytes | memoryview]) -> None:
        """Send a few bytes at a time until all are sent or the client closes."""
        for piece in pieces:
            for start in range(0, len(piece), drip.at_once):
                if self._client.closes_within(drip.seconds):
                    return
                drop = piece[start : start + drip.at_once]
                request.body_bytes += len(drop)
                self._client.sock.sendall(drop)


def _request_of(head: Head) -> Request:
    method, target, _ = head.start_line.decode("latin-1").split(" ", 2)
    path, _, query = target.partition("?")
    return Request(
        method=method,
        path=unquote(path) if "%" in path else path,
        query=query,
        range=head.value(b"range") or head.value(b"x-ms-range"),
        key_id=_key_id(head.value(b"authorization"), query),
        if_match=head.value(b"if-match"),
        at_s=time.monotonic(),
    )


def _key_id(authorization: str | None, query: str) -> str | None:
    """Return the access key id or account that signed, or the token itself of a bearer token."""
    if authorization is None:
        _, found, rest = query.partition("X-Amz-Credential=")
        return unquote(rest).partition("/")[0] if found else None
    scheme, _, rest = authorization.partition(" ")
    if scheme.startswith("AWS4-"):
        return rest.partition("Credential=")[2].partition("/")[0]
    return rest.partition(":")[0] if scheme == "SharedKey" else rest


def _status_of(reply: Head) -> int:
    return int(reply.raw[9:12])


def _body_length(request: Request, reply: Head, status: int) -> int | None:
    """Return the size of the body in bytes, or None if only its end shows it."""
    if request.method == "HEAD" or status in BODILESS_STATUSES:
        return 0
    length_field = reply.value(b"content-length")
    return None if length_field is None or is_chunked(reply) else int(length_field)
