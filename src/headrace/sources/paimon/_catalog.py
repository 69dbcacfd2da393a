"""Paimon catalogs: from the name of a table to one of its snapshots, and to its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pypaimon import CatalogFactory
from pypaimon.api import rest_exception
from pypaimon.catalog import catalog_exception
from pypaimon.common.file_io import FileIO
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError, ReadError
from headrace.sources.paimon.native import lends_options, lent_options
from headrace.sources.tables._catalog import (
    Failures,
    as_store_options,
    explain_errors,
    hide_secrets,
)
from headrace.storage import Options

FAILURES: Failures = (
    (
        (
            catalog_exception.TableNotExistException,
            catalog_exception.DatabaseNotExistException,
            rest_exception.NoSuchResourceException,
        ),
        NothingFoundError,
        "{what} does not exist; check its name and the warehouse in catalog_options",
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
    (
        (NotImplementedError,),
        OptionError,
        "{what} has a feature that pypaimon cannot read: {reason}",
    ),
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
    "chain-table.enabled": (
        "rows that are merged from other branches; write the rows that an engine reads into "
        "another table"
    ),
    "record-level.expire-time": (
        "rows that expire one by one; let an engine compact it into a table without that option"
    ),
}
"""Options of tables whose files hold other rows than the table shows."""
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
    hidden = hide_secrets(options)
    catalog = explain_errors(
        f"the catalog of table {name!r}",
        hidden,
        lambda: CatalogFactory.create(dict(options)),
        FAILURES,
    )
    table = explain_errors(f"table {name!r}", hidden, lambda: catalog.get_table(name), FAILURES)
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


# --- where files are


def storage_options(options: Mapping[str, Any], file_io: FileIO, protocol: str) -> Options:
    """Return options for the store of a table's files, from those for pypaimon."""
    if protocol != "s3":
        return {}
    if lends_options(file_io):
        return _LentCredentials(file_io)
    return _of_s3(options)


@dataclass(frozen=True, slots=True)
class _LentCredentials:
    """Gets temporary credentials of the table from the catalog when they are needed."""

    file_io: Any = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        options, expires_at = lent_options(self.file_io)
        return {**_of_s3(options), "expires_at": expires_at}


def _of_s3(options: Mapping[str, Any]) -> dict[str, Any]:
    found = as_store_options(options, _S3)
    endpoint, path_style = found.get("endpoint_url"), found.pop("path_style", None)
    if isinstance(endpoint, str) and "://" not in endpoint:
        found["endpoint_url"] = f"https://{endpoint}"
    if endpoint and str(path_style).lower() == "false":
        found["addressing_style"] = "virtual"
    return found
