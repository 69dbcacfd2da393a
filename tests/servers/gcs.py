"""Google's object store on the loopback: gcp-storage-emulator, in memory. It takes any token.

It ignores page sizes, and obstore's client does not work with it; gcsfs and pyarrow do.
"""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import quote

from servers.processes import ServerProcess, ask_well, free_port

# gcsfs reads it at import. Without it, gcsfs asks Google for the kind of bucket, for minutes.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

_START = """
import socketserver, sys
from gcp_storage_emulator.__main__ import main

# Of many connections at once it would drop some, and a client waits a second to try again.
socketserver.TCPServer.request_queue_size = 256
sys.exit(main())
"""


class GcsServer:
    """`url` is the endpoint (`endpoint_url` of gcsfs, STORAGE_EMULATOR_HOST of others)."""

    project = "test"

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-c", _START, "start", "--in-memory", "--quiet"]
        command += ["--host=127.0.0.1", f"--port={self.port}"]
        self._process = ServerProcess("gcp-storage-emulator", command)
        self._process.wait_until_answers(self.port)

    @property
    def storage_options(self) -> dict[str, object]:
        """The options with which gcsfs reaches the server."""
        return {"endpoint_url": self.url, "project": self.project, "token": "anon"}

    def make_bucket(self, name: str) -> str:
        self._post(f"/storage/v1/b?project={self.project}", json.dumps({"name": name}).encode())
        return name

    def put(self, bucket: str, name: str, body: bytes) -> str:
        """Write or replace an object, and return its generation."""
        if not body:
            return self._put_empty(bucket, name)
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        response = self._post(target, body, kind="application/octet-stream")
        return str(json.loads(response).get("generation", ""))

    def _put_empty(self, bucket: str, name: str) -> str:
        """Upload in parts: the emulator closes the connection on an upload without a body."""
        metadata = json.dumps({"name": name})
        parts = f"--X\r\nContent-Type: application/json\r\n\r\n{metadata}\r\n--X\r\n\r\n\r\n--X--"
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
        response = self._post(target, parts.encode(), kind="multipart/related; boundary=X")
        return str(json.loads(response).get("generation", ""))

    def delete(self, bucket: str, name: str) -> None:
        ask_well(self.port, "DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    def stop(self) -> None:
        self._process.stop()

    def _post(self, target: str, body: bytes, *, kind: str = "application/json") -> bytes:
        return ask_well(self.port, "POST", target, body=body, headers={"Content-Type": kind})[1]
