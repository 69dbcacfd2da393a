"""Paimon catalogs: from the name of a table to one of its snapshots, and to where its files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pypaimon import CatalogFactory
from pypaimon.api import rest_exception
from pypaimon.catalog import catalog_exception
from pypaimon.common.file_io import FileIO
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError, ReadError
from headrace.sources.paimon.native import at_snapshot, in_schema, lends_options, lent_options
from headrace.sources.tables._catalog import (
    Failures,
    Pinned,
    Wanted,
    explained,
    hiding,
    no_ref,
    no_schema,
    no_snapshot,
    renamed,
)

__all__ = [
    "PaimonSnapshot",
    "failures",
    "load_table",
    "pin",
    "pin_again",
    "storage_options",
]

PaimonSnapshot = Pinned[FileStoreTable, Snapshot]

_FAILURES: Failures = (
    (
        (
            catalog_exception.TableNotExistException,
            catalog_exception.DatabaseNotExistException,
            rest_exception.NoSuchResourceException,
        ),
        NothingFoundError,
        "{what}: there is none; check its name and the warehouse in catalog_options",
    ),
    (
        (
            catalog_exception.TableNoPermissionException,
            catalog_exception.DatabaseNoPermissionException,
            rest_exception.NotAuthorizedException,
            rest_exception.ForbiddenException,
            PermissionError,
        ),
        AccessDeniedError,
        "{what}: access is refused: {reason}; check the credentials in catalog_options",
    ),
    ((NotImplementedError,), OptionError, "{what} has what pypaimon cannot read: {reason}"),
    (
        (catalog_exception.CatalogException, rest_exception.RESTException, OSError, RuntimeError),
        ReadError,
        "{what} cannot be reached: {reason}",
    ),
    (
        (ValueError, TypeError, KeyError, ImportError),
        OptionError,
        "{what} cannot be read with these options: {reason}",
    ),
)
_UNREAD = {
    "scan.fallback-branch": (
        "rows of another branch; read the branches one by one, as table 'db.table$branch_name'"
    ),
    "query-auth.enabled": (
        "rows and columns that the catalog hides from some users; read it with an engine that "
        "asks the catalog, and write what may be read into another table"
    ),
    "record-level.expire-time": (
        "rows that expire one by one; let an engine compact it into a table without that option"
    ),
}
"""options of tables under which files hold other rows than the table"""
_S3 = {
    option: [prefix + name for prefix in ("s3.", "s3a.", "fs.s3.", "fs.s3a.") for name in names]
    for option, names in {
        "key": ("access-key", "access.key", "accessKeyId"),
        "secret": ("secret-key", "secret.key", "accessKeySecret"),
        "token": (
            "session-token",
            "session.token",
            "security-token",
            "security.token",
            "securityToken",
        ),
        "endpoint_url": ("endpoint",),
        "region": ("region",),
        "path_style": ("path-style-access", "path.style.access"),
    }.items()
}


def load_table(name: str, options: Mapping[str, Any]) -> FileStoreTable:
    """Return a table: ``database.table``, or ``database.table$branch_name``."""
    if not isinstance(options, Mapping):
        raise OptionError(
            "catalog_options must be a mapping of options for pypaimon, not a "
            f"{type(options).__name__}"
        )
    if not isinstance(name, str) or name.count(".") < 1 or not all(name.split(".")):
        raise OptionError(f"table must be a name such as 'database.table', not {name!r}")
    hidden = hiding(options)
    catalog = explained(
        f"the catalog of table {name!r}",
        hidden,
        lambda: CatalogFactory.create(dict(options)),
        failures,
    )
    table = explained(f"table {name!r}", hidden, lambda: catalog.get_table(name), failures)
    if not isinstance(table, FileStoreTable):
        raise OptionError(
            f"table {name!r} is a {type(table).__name__}, and only tables with data files of "
            "their own are read here"
        )
    for option, what in _UNREAD.items():
        value = table.table_schema.options.get(option)
        if value is not None and str(value).lower() != "false":
            raise OptionError(f"table {name!r} has the option {option}={value}: {what}")
    return table


def failures() -> Failures:
    """Return what errors of pypaimon mean."""
    return _FAILURES


# --- snapshots


def pin(name: str, table: FileStoreTable, wanted: Wanted) -> PaimonSnapshot:
    """Return the snapshot that is wanted.

    The newest one is read in the table's current schema; one of the past in the schema that it was
    written in.
    """
    if wanted.tag is not None:
        snapshot = _tagged(name, table, wanted.tag)
    elif wanted.snapshot_id is not None:
        snapshot = _by_id(name, table, wanted.snapshot_id)
    else:
        newest = table.snapshot_manager().get_latest_snapshot()
        return _pinned(name, table, newest, table.table_schema.id)
    return _pinned(name, table, snapshot, snapshot.schema_id)


def pin_again(name: str, table: FileStoreTable, version: tuple[int, int]) -> PaimonSnapshot:
    """Return the snapshot and schema of a ``version`` that was pinned before."""
    snapshot_id, schema_id = version
    snapshot = None if snapshot_id == -1 else _by_id(name, table, snapshot_id)
    return _pinned(name, table, snapshot, schema_id)


def _pinned(
    name: str, table: FileStoreTable, snapshot: Snapshot | None, schema_id: int
) -> PaimonSnapshot:
    """Return the table in one of its schemas, with the options that it has today."""
    if schema_id != table.table_schema.id:
        schema = table.schema_manager.get_schema(schema_id)
        if schema is None:
            raise no_schema(name, schema_id)
        table = in_schema(table, schema)
    version = -1 if snapshot is None else snapshot.id, schema_id
    return Pinned(name, str(table.table_path), at_snapshot(table, snapshot), snapshot, version)


def _by_id(name: str, table: FileStoreTable, snapshot_id: int) -> Snapshot:
    """Return a snapshot, which a tag may have kept after it expired."""
    found = table.snapshot_manager().get_snapshot_by_id(snapshot_id)
    if found is not None:
        return found
    tags = table.tag_manager()
    for tag in tags.list_tags():
        kept = tags.get(tag)
        if kept is not None and kept.trim_to_snapshot().id == snapshot_id:
            return kept.trim_to_snapshot()
    there = (one.id for one in table.snapshot_manager().list_snapshots())
    raise no_snapshot(name, snapshot_id, there)


def _tagged(name: str, table: FileStoreTable, tag: str) -> Snapshot:
    tags = table.tag_manager()
    found = tags.get(tag)
    if found is None:
        raise no_ref(name, "tag", tag, tags.list_tags())
    return found.trim_to_snapshot()


# --- where files are


def storage_options(options: Mapping[str, Any], file_io: FileIO, protocol: str) -> dict[str, Any]:
    """Return options for the store of a table's files, from those for pypaimon."""
    if protocol != "s3":
        return {}
    if lends_options(file_io):
        return {"credentials": _LentCredentials(file_io)}
    return _of_s3(options)


@dataclass(frozen=True, slots=True)
class _LentCredentials:
    """Asks the catalog for credentials of the table, which expire, when they are needed."""

    file_io: Any = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        options, expires_at = lent_options(self.file_io)
        return {**_of_s3(options), "expires_at": expires_at}


def _of_s3(options: Mapping[str, Any]) -> dict[str, Any]:
    found = renamed(options, _S3)
    endpoint, path_style = found.get("endpoint_url"), found.pop("path_style", None)
    if isinstance(endpoint, str) and "://" not in endpoint:
        found["endpoint_url"] = f"https://{endpoint}"
    if endpoint and str(path_style).lower() == "false":
        found["addressing_style"] = "virtual"
    return found
