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

from servers.answering import AnsweringServer, Asked, Reply, Seen

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
    """Serves `catalog` at `url` from the start until `stop`; `seen` lists the requests.

    `token`: only requests that bear it are answered; it may be changed at any time. `credential`
    ("id:secret") is what a client gets the token for. `vended` is what a loaded table says of
    storage (`s3.access-key-id` and so on), in its `config` or, with `vended_apart`, in its
    `storage-credentials`; `defaults` is what the catalog says to every client.
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
    def seen(self) -> list[Seen]:
        return self._server.seen

    @property
    def properties(self) -> dict[str, str]:
        """What pyiceberg's `load_catalog` needs, beside what tells who is asking."""
        return {"type": "rest", "uri": self.url}

    def stop(self) -> None:
        self._server.stop()

    def _respond(self, asked: Asked) -> Reply:
        target = urlsplit(asked.target)
        path = target.path.removeprefix("/v1/")
        if path == "oauth/tokens":
            return self._give_token(parse_qs(asked.body.decode()))
        if self.token is not None and asked.authorization != f"Bearer {self.token}":
            return _refusal(401, "NotAuthorizedException", "this token is not known")
        parts = [unquote(part) for part in path.split("/")]
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        body = json.loads(asked.body) if asked.body else {}
        answer = self._find(asked.method, parts)
        if answer is None:
            return _refusal(404, "NotFoundException", f"{asked.method} {path} is not served")
        try:
            with self._one_at_a_time:
                said = answer(*(part for part in parts[1::2]), query=query, body=body)
        except tuple(REFUSALS) as refused:
            status, kind = next(
                REFUSALS[known] for known in type(refused).__mro__ if known in REFUSALS
            )
            return _refusal(status, kind, str(refused))
        return _said(said)

    def _find(self, method: str, parts: list[str]) -> Callable[..., Any] | None:
        """The answer to a method and a path, of which every other part is a name."""
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
            return _said({"error": "invalid_client", "error_description": "unknown"}, status=401)
        return _said({"access_token": self.token, "token_type": "bearer", "expires_in": 3600})

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
        asked = CreateTableRequest.model_validate({"location": None, **_complete(body)})
        name = (*_namespace(namespace), asked.name)
        described = {
            "schema": asked.table_schema,
            "partition_spec": asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            "sort_order": asked.write_order or UNSORTED_SORT_ORDER,
            "properties": asked.properties,
        }
        if not asked.stage_create:
            table = self.catalog.create_table(name, location=asked.location, **described)
            return self._loaded(table)
        if self.catalog.table_exists(name):
            raise TableAlreadyExistsError(f"Table already exists: {'.'.join(name)}")
        place = self.catalog._resolve_table_location(
            asked.location, ".".join(name[:-1]), asked.name
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
        asked = CommitTableRequest.model_validate(
            {"identifier": {"namespace": name[:-1], "name": name[-1]}}
            | {key: change[key] for key in ("requirements", "updates")}
        )
        table = self._table_or_place(name)
        done = self.catalog.commit_table(table, asked.requirements, asked.updates)
        return {"metadata-location": done.metadata_location, "metadata": _as_json(done.metadata)}

    def _table_or_place(self, name: tuple[str, ...]) -> Table:
        """The table, or one that is only a name where the commit is to create it."""
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
    """What clients may leave out and pyiceberg's model of the request wants said."""
    return {"partition-spec": None, "write-order": None, **body}


def _make_folders(location: str) -> None:
    """DuckDB writes into the folders of a local table, and makes none."""
    if location.startswith("file://"):
        for name in ("data", "metadata"):
            Path(location.removeprefix("file://"), name).mkdir(parents=True, exist_ok=True)


def _as_json(metadata: TableMetadata) -> Any:
    # Not the method of the metadata itself: that of version 3 refuses.
    return json.loads(IcebergBaseModel.model_dump_json(metadata))


def _said(said: Any, *, status: int = 200) -> Reply:
    if said is None:
        return 204, {}, b""
    return status, {"Content-Type": "application/json"}, json.dumps(said).encode()


def _refusal(status: int, kind: str, message: str) -> Reply:
    return _said({"error": {"message": message, "type": kind, "code": status}}, status=status)
