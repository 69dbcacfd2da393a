"""HTTP/1.1 on raw sockets: heads, bodies, and pieces of bodies. Written for speed."""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import termios
import time
from collections.abc import Iterator

PIECE_BYTES = 1 << 20
HEAD_END = b"\r\n\r\n"
BODILESS_STATUSES = (204, 304)


class Head:
    """The head of a request or an answer, kept as it was received; fields are not reordered."""

    __slots__ = ("_lower", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._lower = raw.lower()

    @property
    def start_line(self) -> bytes:
        return self.raw[: self.raw.index(b"\r\n")]

    def value(self, name: bytes) -> str | None:
        start, end = self._place(name)
        if start < 0:
            return None
        return self.raw[start + len(name) + 3 : end].strip().decode("latin-1")

    def without(self, name: bytes) -> Head:
        start, end = self._place(name)
        return self if start < 0 else Head(self.raw[:start] + self.raw[end:])

    def with_value(self, name: bytes, value: str) -> Head:
        rest = self.without(name).raw[: -len(HEAD_END)]
        return Head(b"%s\r\n%s: %s%s" % (rest, name, value.encode("latin-1"), HEAD_END))

    def _place(self, name: bytes) -> tuple[int, int]:
        """Return the start and end of a field, or a start of -1 if the head does not have it."""
        start = self._lower.find(b"\r\n" + name + b":")
        return start, self.raw.find(b"\r\n", start + 2)


class Wire:
    """A connected socket, and bytes that were received ahead of their use."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._ahead = b""
        self._buffer: memoryview | None = None

    def read_head(self) -> Head | None:
        """Return the next head, or None if the other side closed before it was complete."""
        ahead = self._ahead
        while (end := ahead.find(HEAD_END)) < 0:
            more = self.sock.recv(65536)
            if not more:
                return None
            ahead += more
        end += len(HEAD_END)
        self._ahead = ahead[end:]
        return Head(ahead[:end])

    def read_pieces(self, length: int | None) -> Iterator[bytes | memoryview]:
        """Yield pieces of the next `length` bytes, or of all bytes until the other side closes.

        A piece is valid until the next one is requested. The iterator ends early if the connection
        does.
        """
        left = length if length is not None else 1 << 62
        if self._ahead:
            piece, self._ahead = self._ahead[:left], self._ahead[left:]
            left -= len(piece)
            yield piece
        if left and self._buffer is None:
            self._buffer = memoryview(bytearray(PIECE_BYTES))
        while left:
            count = self.sock.recv_into(self._buffer[: min(left, PIECE_BYTES)])
            if not count:
                return
            left -= count
            yield self._buffer[:count]

    def read_chunked(self) -> Iterator[bytes | memoryview]:
        """Yield a chunked body with its framing, as received."""
        while True:
            line = self._read_line()
            yield line
            size = int(line.split(b";")[0] or b"0", 16)
            if not size:
                break
            yield from self.read_pieces(size + 2)
        while (line := self._read_line()) != b"\r\n":
            yield line
        yield line

    def read_body(self, head: Head) -> Iterator[bytes | memoryview]:
        """Yield the pieces of the body of a request."""
        if is_chunked(head):
            return self.read_chunked()
        return self.read_pieces(int(head.value(b"content-length") or 0))

    def read_all(self, head: Head) -> bytes:
        return b"".join(bytes(piece) for piece in self.read_body(head))

    def wait_for_close(self) -> None:
        """Wait until the other side has closed, or this one was shut down."""
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass

    def closes_within(self, seconds: float) -> bool:
        """Return True if the other side, which has nothing to send, closes within `seconds`."""
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def reset(self) -> None:
        """Close with RST after all pending data has been sent."""
        with contextlib.suppress(OSError):
            drain(self.sock)
            set_reset_on_close(self.sock)
        self.sock.close()

    def finish(self) -> None:
        """Close with FIN, even if a forked child holds the socket too."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _read_line(self) -> bytes:
        while (end := self._ahead.find(b"\r\n")) < 0:
            more = self.sock.recv(65536)
            if not more:
                raise ConnectionError("closed within a chunked body")
            self._ahead += more
        line, self._ahead = self._ahead[: end + 2], self._ahead[end + 2 :]
        return line


def is_chunked(head: Head) -> bool:
    return (head.value(b"transfer-encoding") or "").lower() == "chunked"


def answer_bytes(status: int, headers: dict[str, str], body: bytes = b"") -> bytes:
    """Return a whole answer, with the length of its body unless the headers already have one."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
    if not any(name.lower() == "content-length" for name in headers):
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + HEAD_END + body


def set_reset_on_close(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def drain(sock: socket.socket, *, patience_s: float = 1.0) -> None:
    """Wait until all sent data has reached the other side, because a reset discards the rest."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        (waiting,) = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0\0\0\0"))
        if not waiting:
            return
        time.sleep(0.002)


REASONS = {
    100: "Continue",
    200: "OK",
    206: "Partial Content",
    301: "Moved Permanently",
    302: "Found",
    304: "Not Modified",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    412: "Precondition Failed",
    416: "Range Not Satisfiable",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
