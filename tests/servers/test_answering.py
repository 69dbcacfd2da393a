"""Tests of the answering server: it leaves nothing behind when it is stopped."""

from __future__ import annotations

import socket
import threading

import pytest

from servers.answering import AnsweringServer, HttpRequest, Reply


def ask(server: AnsweringServer) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return client


def test_stop_waits_for_answers_that_are_being_made() -> None:
    began, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def respond(_: HttpRequest) -> Reply:
        began.set()
        may_end.wait()
        order.append("answered")
        return 200, {}, b""

    def stop() -> None:
        server.stop()
        order.append("stopped")

    server = AnsweringServer(respond)
    with ask(server):
        began.wait()
        stopping = threading.Thread(target=stop)
        stopping.start()
        stopping.join(0.2)
        may_end.set()
        stopping.join()
    assert order == ["answered", "stopped"]


def test_an_error_of_the_server_is_raised_when_it_stops() -> None:
    def respond(_: HttpRequest) -> Reply:
        raise KeyError("wrong")

    server = AnsweringServer(respond)
    with ask(server) as client:
        assert client.recv(1) == b""
    with pytest.raises(RuntimeError, match="the server itself failed"):
        server.stop()
