"""An Iceberg REST catalog on the loopback, over a catalog of pyiceberg that holds the tables.

Enough of the protocol for pyiceberg and DuckDB: configuration, namespaces (nested too), tables,
commits of one table or of several. Tokens and vended credentials are switched on by arguments.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import IcebergBaseModel

from servers.answering import AnsweringServer, HttpRequest, LoggedRequest, Reply

SEPARATOR = "\x1f"
REFUSALS: dict[type[Exception], tuple[int, str]] = {
    NoSuchTableError: (404, "NoSuchTableException"),
    NoSuchNamespaceError: (404, "NoSuchNamespaceException"),
    TableAlreadyExistsError: (409, "AlreadyExistsException"),
    NamespaceAlreadyExistsError: (409, "AlreadyExistsException"),
    NamespaceNotEmptyError: (409, "NamespaceNotEmptyException"),
    CommitFailedException: (409, "CommitFailedException"),
}


class RestCatalogServer:
    """Serves `catalog` at `url` from the start until `stop`; `log` lists the requests.

    `token`: only requests that bear it are answered; it may be changed at any time. `credential`
    ("id:secret") is what a client exchanges for the token. `vended` holds the storage properties of
    a loaded table (`s3.access-key-id` and so on), in its `config` or, with `vended_apart`, in its
    `storage-credentials`; `defaults` are the properties sent to every client.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        token: str | None = None,
        credential: str | None = None,
        vended: dict[str, str] | None = None,
        vended_apart: bool = False,
        defaults: dict[str, str] | None = None,
    ) -> None:
        self.catalog = catalog
        self.token = token
        self.credential = credential
        self.vended = vended or {}
        self.vended_apart = vended_apart
        self.defaults = defaults or {}
        self._one_at_a_time = threading.Lock()
        self._server = AnsweringServer(self._respond)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def log(self) -> list[LoggedRequest]:
        return self._server.log

    @property
    def properties(self) -> dict[str, str]:
        """The properties that pyiceberg's `load_catalog` needs, apart from credentials."""
        return {"type": "rest", "uri": self.url}

    def stop(self) -> None:
        self._server.stop()

    def _respond(self, request: HttpRequest) -> Reply:
        target = urlsplit(request.target)
        path = target.path.removeprefix("/v1/")
        if path == "oauth/tokens":
            return self._give_token(parse_qs(request.body.decode()))
        if self.token is not None and request.authorization != f"Bearer {self.token}":
            return _refusal(401, "NotAuthorizedException", "this token is not known")
        parts = [unquote(part) for part in path.split("/")]
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        body = json.loads(request.body) if request.body else {}
        answer = self._find(request.method, parts)
        if answer is None:
            return _refusal(404, "NotFoundException", f"{request.method} {path} is not served")
        try:
            with self._one_at_a_time:
                result = answer(*(part for part in parts[1::2]), query=query, body=body)
        except tuple(REFUSALS) as refused:
            status, kind = next(
                REFUSALS[known] for known in type(refused).__mro__ if known in REFUSALS
            )
            return _refusal(status, kind, str(refused))
        return _json_reply(result)

    def _find(self, method: str, parts: list[str]) -> Callable[..., Any] | None:
        """Return the handler of a method and a path, in which every second part is a name."""
        named = [part if place % 2 == 0 else "*" for place, part in enumerate(parts)]
        # Two paths have no name in them.
        if parts in (["transactions", "commit"], ["tables", "rename"]):
            named = parts
        return {
            ("GET", "config"): self._config,
            ("GET", "namespaces"): self._list_namespaces,
            ("POST", "namespaces"): self._create_namespace,
            ("GET", "namespaces/*"): self._load_namespace,
            ("HEAD", "namespaces/*"): self._load_namespace,
            ("DELETE", "namespaces/*"): self._drop_namespace,
            ("POST", "namespaces/*/properties"): self._update_namespace,
            ("GET", "namespaces/*/tables"): self._list_tables,
            ("POST", "namespaces/*/tables"): self._create_table,
            ("POST", "namespaces/*/register"): self._register_table,
            ("GET", "namespaces/*/tables/*"): self._load_table,
            ("HEAD", "namespaces/*/tables/*"): self._load_table,
            ("POST", "namespaces/*/tables/*"): self._commit_table,
            ("DELETE", "namespaces/*/tables/*"): self._drop_table,
            ("POST", "transactions/commit"): self._commit_many,
            ("POST", "tables/rename"): self._rename_table,
        }.get((method, "/".join(named)))

    def _give_token(self, form: dict[str, list[str]]) -> Reply:
        given = f"{form.get('client_id', [''])[0]}:{form.get('client_secret', [''])[0]}"
        if self.credential is None or given != self.credential:
            return _json_reply(
                {"error": "invalid_client", "error_description": "unknown"}, status=401
            )
        return _json_reply({"access_token": self.token, "token_type": "bearer", "expires_in": 3600})

    def _config(self, *, query: dict[str, str], body: Any) -> Any:
        return {"defaults": self.defaults, "overrides": {}}

    def _list_namespaces(self, *, query: dict[str, str], body: Any) -> Any:
        parent = _namespace(query["parent"]) if query.get("parent") else ()
        return {"namespaces": self.catalog.list_namespaces(parent)}

    def _create_namespace(self, *, query: dict[str, str], body: Any) -> Any:
        self.catalog.create_namespace(tuple(body["namespace"]), body.get("properties") or {})
        return {"namespace": body["namespace"], "properties": body.get("properties") or {}}

    def _load_namespace(self, namespace: str, *, query: dict[str, str], body: Any) -> Any:
        name = _namespace(namespace)
        return {"namespace": name, "properties": self.catalog.load_namespace_properties(name)}

    def _drop_namespace(self, namespace: str, *, query: dict[str, str], body: Any) -> None:
        self.catalog.drop_namespace(_namespace(namespace))

    def _update_namespace(self, namespace: str, *, query: dict[str, str], body: Any) -> Any:
        done = self.catalog.update_namespace_properties(
            _namespace(namespace), set(body.get("removals") or ()), body.get("updates") or {}
        )
        return {"updated": done.updated, "removed": done.removed, "missing": done.missing}

    def _list_tables(self, namespace: str, *, query: dict[str, str], body: Any) -> Any:
        tables = self.catalog.list_tables(_namespace(namespace))
        return {"identifiers": [{"namespace": name[:-1], "name": name[-1]} for name in tables]}

    def _create_table(self, namespace: str, *, query: dict[str, str], body: Any) -> Any:
        request = CreateTableRequest.model_validate({"location": None, **_complete(body)})
        name = (*_namespace(namespace), request.name)
        described = {
            "schema": request.table_schema,
            "partition_spec": request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            "sort_order": request.write_order or UNSORTED_SORT_ORDER,
            "properties": request.properties,
        }
        if not request.stage_create:
            table = self.catalog.create_table(name, location=request.location, **described)
            return self._loaded(table)
        if self.catalog.table_exists(name):
            raise TableAlreadyExistsError(f"Table already exists: {'.'.join(name)}")
        place = self.catalog._resolve_table_location(
            request.location, ".".join(name[:-1]), request.name
        )
        _make_folders(place)
        return {"metadata": _as_json(new_table_metadata(location=place, **described))} | (
            self._vended_for(place)
        )

    def _register_table(self, namespace: str, *, query: dict[str, str], body: Any) -> Any:
        name = (*_namespace(namespace), body["name"])
        return self._loaded(self.catalog.register_table(name, body["metadata-location"]))

    def _load_table(self, namespace: str, name: str, *, query: dict[str, str], body: Any) -> Any:
        return self._loaded(self.catalog.load_table((*_namespace(namespace), name)))

    def _drop_table(self, namespace: str, name: str, *, query: dict[str, str], body: Any) -> None:
        self.catalog.drop_table((*_namespace(namespace), name))

    def _rename_table(self, *_: str, query: dict[str, str], body: Any) -> None:
        source, target = body["source"], body["destination"]
        self.catalog.rename_table(
            (*source["namespace"], source["name"]), (*target["namespace"], target["name"])
        )

    def _commit_table(self, namespace: str, name: str, *, query: dict[str, str], body: Any) -> Any:
        return self._commit((*_namespace(namespace), name), body)

    def _commit_many(self, *_: str, query: dict[str, str], body: Any) -> None:
        for change in body["table-changes"]:
            named = change["identifier"]
            self._commit((*named["namespace"], named["name"]), change)

    def _commit(self, name: tuple[str, ...], change: Any) -> Any:
        request = CommitTableRequest.model_validate(
            {"identifier": {"namespace": name[:-1], "name": name[-1]}}
            | {key: change[key] for key in ("requirements", "updates")}
        )
        table = self._table_or_place(name)
        done = self.catalog.commit_table(table, request.requirements, request.updates)
        return {"metadata-location": done.metadata_location, "metadata": _as_json(done.metadata)}

    def _table_or_place(self, name: tuple[str, ...]) -> Table:
        """Return the table, or a staged one if the commit is to create it."""
        try:
            return self.catalog.load_table(name)
        except NoSuchTableError:
            return StagedTable(name, None, "", None, self.catalog)

    def _loaded(self, table: Table) -> Any:
        return {
            "metadata-location": table.metadata_location,
            "metadata": _as_json(table.metadata),
        } | self._vended_for(table.location())

    def _vended_for(self, location: str) -> dict[str, Any]:
        if not self.vended_apart:
            return {"config": self.vended}
        return {
            "config": {},
            "storage-credentials": [{"prefix": location, "config": self.vended}],
        }


def _namespace(joined: str) -> tuple[str, ...]:
    return tuple(joined.split(SEPARATOR))


def _complete(body: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that clients may leave out and pyiceberg's model of the request requires."""
    return {"partition-spec": None, "write-order": None, **body}


def _make_folders(location: str) -> None:
    """Make the folders of a local table: DuckDB writes into them, but does not make them."""
    if location.startswith("file://"):
        for name in ("data", "metadata"):
            Path(location.removeprefix("file://"), name).mkdir(parents=True, exist_ok=True)


def _as_json(metadata: TableMetadata) -> Any:
    # The method of the metadata itself fails for version 3.
    return json.loads(IcebergBaseModel.model_dump_json(metadata))


def _json_reply(result: Any, *, status: int = 200) -> Reply:
    if result is None:
        return 204, {}, b""
    return status, {"Content-Type": "application/json"}, json.dumps(result).encode()


def _refusal(status: int, kind: str, message: str) -> Reply:
    return _json_reply({"error": {"message": message, "type": kind, "code": status}}, status=status)
