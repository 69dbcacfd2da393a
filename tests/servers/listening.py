"""A listener on a loopback port that can be closed and opened again, and its connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from servers.wire import Wire, set_reset_on_close


class Listener:
    """Calls `serve` in a daemon thread for each connection; `serve` has to close the connection."""

    def __init__(self, serve: Callable[[Wire], None], *, port: int = 0) -> None:
        self.port = port
        self._serve = serve
        self._listening: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._live: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listen, on the same port as before if the listener was open before."""
        if self._listening is not None:
            return
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(1024)
        self.port = listening.getsockname()[1]
        self._listening = listening
        self._accepting = threading.Thread(
            target=self._accept, args=(listening,), name=f"accept:{self.port}", daemon=True
        )
        self._accepting.start()

    def close(self, *, drop: bool) -> None:
        """Refuse connections; if `drop`, end open connections as well."""
        listening, self._listening = self._listening, None
        if listening is not None:
            # Closing alone would leave accept() waiting, and a forked child's copy listening.
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            self._accepting.join()
            listening.close()
        if drop:
            with self._lock:
                for sock in self._live:
                    _end(sock)

    def join(self, seconds: float) -> None:
        """Wait until all connections have been served, but not longer than `seconds` for each."""
        with self._lock:
            serving = list(self._live.values())
        for thread in serving:
            thread.join(seconds)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            serving = threading.Thread(target=self._run, args=(sock,), daemon=True)
            with self._lock:
                self._live[sock] = serving
            serving.start()

    def _run(self, sock: socket.socket) -> None:
        try:
            self._serve(Wire(sock))
        finally:
            with self._lock:
                self._live.pop(sock, None)


def _end(sock: socket.socket) -> None:
    """End the connection for both sides and wake its thread; data that was not sent is lost."""
    with contextlib.suppress(OSError):
        set_reset_on_close(sock)
        sock.shutdown(socket.SHUT_RDWR)
