"""S3 on the loopback: moto's server, in memory. It takes any key."""

from __future__ import annotations

import re
from urllib.parse import quote

from servers.processes import ServerProcess, ask_well, executable, free_port


class S3Server:
    """An S3 server at `url`; requests are made path-style, and keys are not checked."""

    key = "AKIATESTKEY"
    secret = "test-secret"
    region = "us-east-1"

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._start()

    def _start(self) -> None:
        command = [executable("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = ServerProcess("moto_server", command)
        self._process.wait_until_answers(self.port, "/moto-api/data.json")

    @property
    def storage_options(self) -> dict[str, object]:
        """The options with which fsspec reaches the server."""
        return {"key": self.key, "secret": self.secret, "endpoint_url": self.url}

    @property
    def signature(self) -> dict[str, str]:
        """Return a header that makes a plain request an authenticated one; its value is ignored."""
        scope = f"Credential={self.key}/20260101/{self.region}/s3/aws4_request"
        return {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"}

    def make_bucket(self, name: str) -> str:
        self._ask("PUT", f"/{name}")
        return name

    def put(self, bucket: str, key: str, body: bytes) -> str:
        """Write or replace an object, and return its etag with the quotes."""
        return self._ask("PUT", f"/{bucket}/{quote(key)}", body)[0]["etag"]

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"/{bucket}/{quote(key)}")

    def keys(self, bucket: str) -> list[str]:
        """Return the first 1,000 keys of a bucket."""
        _, listed = self._ask("GET", f"/{bucket}?list-type=2")
        return re.findall(r"<Key>([^<]*)</Key>", listed.decode())

    def _ask(
        self, method: str, target: str, body: bytes | None = None
    ) -> tuple[dict[str, str], bytes]:
        return ask_well(self.port, method, target, body=body, headers=self.signature)

    def restart(self) -> None:
        """End the server and start it again on the same port; its objects are lost."""
        self._process.stop()
        self._start()

    def stop(self) -> None:
        self._process.stop()
