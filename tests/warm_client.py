"""Become a process that a `warm_server` forks: ``python warm_client.py SERVER -u -c CODE``.

pytest-xdist starts its processes with this as their Python. It imports little: it passes its own
standard files on, waits, and ends as the forked process has ended.
"""

import json
import os
import socket
import sys

FORK_SERVERS = 2
"""what a test process starts: that of multiprocessing, and that of the library"""


def send_order(server: str, order: dict[str, object], files: list[int]) -> socket.socket:
    """Order a process from a server, and return the socket for the news of it.

    The news are two messages of JSON: the number of the process, and its exit status.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"\0{server}")
    socket.send_fds(connection, [json.dumps(order).encode()], files)
    return connection


def main(server: str, *command: str) -> int:
    order = {
        "command": [argument for argument in command if argument != "-u"],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "fork_servers": FORK_SERVERS,
    }
    with send_order(server, order, [0, 1, 2]) as news:
        os.close(0)
        os.close(1)
        news.recv(100)
        status: int = json.loads(news.recv(100))
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
