"""A REST catalog over a catalog of files, for reading."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

from paimon_tables import Warehouse
from pypaimon.catalog.catalog_exception import TableNotExistException

TOKEN = "b34rer-t0ken"


class RestServer:
    """`options` are those of a catalog; `requests` what it was asked, in order."""

    def __init__(self, warehouse: Warehouse, *, lent: dict[str, str] | None = None) -> None:
        self.warehouse = warehouse
        self.lent = lent
        self.table_options: dict[str, str] = {}
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.options = {
            "metastore": "rest",
            "uri": f"http://127.0.0.1:{self._server.server_port}",
            "warehouse": "any",
            "token.provider": "bear",
            "token": TOKEN,
        }

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts == ["v1", "config"]:
            lending = {} if self.lent is None else {"data-token.enabled": "true"}
            return 200, {"defaults": {"prefix": "all"}, "overrides": lending}
        database, name, rest = parts[3], parts[5], parts[6:]
        try:
            table = self.warehouse.catalog.get_table(f"{database}.{name}")
        except TableNotExistException:
            return 404, {
                "message": "none",
                "code": 404,
                "resourceType": "TABLE",
                "resourceName": name,
            }
        root = table.table_path if "://" in table.table_path else f"file://{table.table_path}"
        if not rest:
            schema = _schema(table)
            schema["options"] = {**schema["options"], **self.table_options}
            return 200, {
                "id": "1",
                "name": name,
                "path": root,
                "isExternal": False,
                "schemaId": table.table_schema.id,
                "schema": schema,
            }
        if rest == ["snapshot"]:
            latest = table.snapshot_manager().get_latest_snapshot()
            text = table.file_io.read_file_utf8(f"{table.table_path}/snapshot/snapshot-{latest.id}")
            counts = ("recordCount", "fileSizeInBytes", "fileCount", "lastFileCreationTime")
            return 200, {"snapshot": {"snapshot": json.loads(text), **dict.fromkeys(counts, 0)}}
        if rest == ["token"] and self.lent is not None:
            return 200, {"token": self.lent, "expiresAtMillis": 4_000_000_000_000}
        return 404, {"message": "?", "code": 404}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                path = urlparse(self.path).path
                server.requests.append(path)
                code, body = 401, {"message": "no", "code": 401}
                if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                    code, body = server.answer(path)
                content = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler


def _schema(table: Any) -> dict[str, Any]:
    path = f"{table.table_path}/schema/schema-{table.table_schema.id}"
    stored = json.loads(table.file_io.read_file_utf8(path))
    names = ("fields", "partitionKeys", "primaryKeys", "options")
    return {"comment": None, **{name: stored[name] for name in names}}
