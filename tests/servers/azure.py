"""Azure's blob store on the loopback: Azurite, which checks signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import formatdate
from urllib.parse import parse_qsl, quote

from servers.processes import ServerProcess, ask_well, executable, free_port

VERSION = "2021-12-02"
# The account and its key are public, and the same in every installation.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzureServer:
    """`url` is the endpoint of the account: paths are /devstoreaccount1/container/name."""

    account = ACCOUNT
    key = KEY

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        command = [executable("azurite-blob"), "--silent", "--skipApiVersionCheck"]
        command += ["--disableTelemetry", "--inMemoryPersistence"]
        command += ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        self._process = ServerProcess("azurite", command)
        self._process.wait_until_answers(self.port)

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.url};"
        )

    def make_container(self, name: str) -> str:
        self._ask("PUT", f"/{name}", query="restype=container")
        return name

    def put(self, container: str, name: str, body: bytes) -> str:
        """Write or replace a blob, and return its etag."""
        kind = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
        return self._ask("PUT", f"/{container}/{quote(name)}", body=body, headers=kind)[0]["etag"]

    def delete(self, container: str, name: str) -> None:
        self._ask("DELETE", f"/{container}/{quote(name)}")

    def sas_token(self, *, permissions: str = "rl", expiry: str = "2099-01-01T00:00:00Z") -> str:
        """Return a signature for the whole account, without the leading question mark."""
        fields = [ACCOUNT, permissions, "b", "sco", "", expiry, "", "https,http", VERSION, "", ""]
        signed = quote(_sign("\n".join(fields)), safe="")
        return (
            f"sv={VERSION}&ss=b&srt=sco&sp={permissions}&se={quote(expiry, safe='')}"
            f"&spr=https,http&sig={signed}"
        )

    def stop(self) -> None:
        self._process.stop()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[dict[str, str], bytes]:
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION, **(headers or {})}
        target = f"/{ACCOUNT}{path}"
        sent["Authorization"] = f"SharedKey {ACCOUNT}:" + _sign(
            _text_to_sign(method, target, query, sent, len(body or b""))
        )
        return ask_well(self.port, method, f"{target}?{query}", body=body, headers=sent)


def _sign(text: str) -> str:
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _text_to_sign(
    method: str, target: str, query: str, headers: dict[str, str], length: int
) -> str:
    """Return the string to sign of a shared key."""
    own = sorted((name.lower(), value) for name, value in headers.items() if name[:5] == "x-ms-")
    plain = ["", "", str(length or ""), "", headers.get("Content-Type", ""), *[""] * 6]
    resource = f"/{ACCOUNT}{target}" + "".join(
        f"\n{name}:{value}" for name, value in sorted(parse_qsl(query))
    )
    return "\n".join([method, *plain, *(f"{name}:{value}" for name, value in own), resource])
