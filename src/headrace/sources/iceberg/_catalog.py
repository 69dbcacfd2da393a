"""Iceberg catalogs: from the name of a table to one of its snapshots, and to its files.

Temporary credentials of a REST catalog expire while an epoch runs. So readers get a function
(``LentCredentials``), which asks the catalog again, in the process that reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError, ReadError
from headrace.sources.tables._catalog import (
    Failures,
    as_store_options,
    explain_errors,
    hide_secrets,
)
from headrace.storage import Options

_MISSING = (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError)
_REFUSED = (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError)
_NOT_UNDERSTOOD = (exceptions.ValidationError, ValidationError)
_FAILURES: Failures = (
    (
        _REFUSED,
        AccessDeniedError,
        "{what}: the catalog refuses access: {reason}; check the credentials in catalog_config",
    ),
    (
        _NOT_UNDERSTOOD,
        ReadError,
        "{what}: pyiceberg does not understand its metadata, which is damaged or has features "
        f"newer than pyiceberg {version('pyiceberg')}: {{reason}}",
    ),
    ((exceptions.NotInstalledError,), OptionError, "{what}: {reason}"),
    (
        (ValueError, TypeError, ImportError),
        OptionError,
        "{what} cannot be reached with this catalog_config: {reason}",
    ),
    # Catalogs use many clients, whose errors have no common class.
    ((Exception,), ReadError, "{what} cannot be reached: {reason}"),
)
UNREADABLE: Failures = (
    ((PermissionError,), AccessDeniedError, "{what} cannot be read: {reason}"),
    ((OSError, EOFError, ValueError), ReadError, "{what} cannot be read: {reason}"),
)
"""Meanings of errors while the lists of files of a table are read."""
_S3 = {
    "key": ("s3.access-key-id", "client.access-key-id"),
    "secret": ("s3.secret-access-key", "client.secret-access-key"),
    "token": ("s3.session-token", "client.session-token"),
    "endpoint_url": ("s3.endpoint",),
    "region": ("s3.region", "client.region"),
    "profile": ("s3.profile-name", "client.profile-name"),
    "anon": ("s3.anonymous",),
}
_GCS = {
    "bearer_token": ("gcs.oauth2.token",),
    "project": ("gcs.project-id",),
    "endpoint_url": ("gcs.service.host",),
}
_AZURE = {
    "connection_string": ("adls.connection-string",),
    "account_name": ("adls.account-name",),
    "account_key": ("adls.account-key",),
    "sas_token": ("adls.sas-token",),
    "tenant_id": ("adls.tenant-id",),
    "client_id": ("adls.client-id",),
    "client_secret": ("adls.client-secret",),
    "token": ("adls.token",),
    "anon": ("adls.anon",),
}
_EXPIRIES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at")
_AZURE_EXPIRY = "adls.sas-token-expires-at-ms."
_HUB = {"token": ("hf.token",), "endpoint": ("hf.endpoint",)}
_STORES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "s3": _S3,
    "gs": _GCS,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hf": _HUB,
}
_UNSUPPORTED = {
    "s3.signer": "requests signed by the catalog",
    "s3.role-arn": "a role to be assumed",
    "client.role-arn": "a role to be assumed",
}


def load_table(name: str, config: Mapping[str, Any] | Catalog | None) -> Table:
    """Return a table.

    In ``a.b.c`` the first part is the name of the catalog. If that catalog has no table ``b.c``,
    the whole name is a table in nested namespaces.
    """
    parts = tuple(name.split(".")) if isinstance(name, str) else ()
    if len(parts) < 2 or not all(parts):
        raise OptionError(f"table must be a name such as 'catalog.database.table', not {name!r}")
    if isinstance(config, Catalog):
        catalog, hidden = config, hide_secrets(config.properties)
        first_is_catalog = parts[0] == config.name and len(parts) > 2
    else:
        properties = _properties(config)
        hidden = hide_secrets(properties)
        named = properties.pop("name", None)
        first_is_catalog = named is None and len(parts) > 2
        catalog = explain_errors(
            f"the catalog of table {name!r}",
            hidden,
            lambda: load_catalog(parts[0] if first_is_catalog else named, **properties),
            _FAILURES,
        )
    candidates = [parts[1:], parts] if first_is_catalog else [parts]
    return explain_errors(
        f"table {name!r}", hidden, lambda: _first(name, catalog, candidates), _FAILURES
    )


def _first(name: str, catalog: Catalog, candidates: list[tuple[str, ...]]) -> Table:
    """Return the table of the first identifier that exists."""
    for identifier in candidates:
        try:
            return catalog.load_table(identifier)
        except _MISSING:
            continue
    tried = " or ".join(sorted({".".join(identifier) for identifier in candidates}))
    raise NothingFoundError(
        f"there is no table {name!r}: the catalog {catalog.name!r} "
        f"({type(catalog).__name__}) has no {tried}; the first part of a name is the catalog's, "
        "unless catalog_config has a 'name'"
    )


def _properties(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return properties for pyiceberg, which calls JDBC catalogs by another name."""
    if config is not None and not isinstance(config, Mapping):
        raise OptionError(
            "catalog_config must be a mapping of properties for pyiceberg, or a catalog, not a "
            f"{type(config).__name__}"
        )
    properties = dict(config or {})
    if properties.get("type") == "jdbc":
        properties["type"] = "sql"
        uri = properties.get("uri")
        if isinstance(uri, str):
            properties["uri"] = uri.removeprefix("jdbc:")
    return properties


# --- where files are


def table_options(table: Table, protocol: str) -> Options:
    """Return options for the store of a table's files; temporary credentials renew themselves."""
    found = storage_options(table.io.properties, protocol)
    catalog = table.catalog
    if isinstance(catalog, RestCatalog) and found != _understood(catalog.properties, protocol):
        return LentCredentials(table, protocol)
    return found


class LentCredentials:
    """Storage options that a REST catalog gives with a table, and renews each time it is loaded.

    The first call returns the options of the loaded table. Later calls, and a first call after
    these have expired, load the table again. Copies in other processes do the same.
    """

    def __init__(self, table: Table, protocol: str) -> None:
        catalog = table.catalog
        self._class: type[Catalog] = type(catalog)
        self._name, self._properties = catalog.name, dict(catalog.properties)
        self._identifier = table.name()
        self._protocol = protocol
        self._known = storage_options(table.io.properties, protocol)
        self._is_new = True

    def __repr__(self) -> str:
        return f"<temporary credentials for table {'.'.join(self._identifier)}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_new": True}

    def __call__(self) -> dict[str, Any]:
        expires_at = self._known.get("expires_at")
        is_good = expires_at is None or time.time() < expires_at
        if not self._is_new or not is_good:
            try:
                self._known = self._ask()
            except ReadError:
                if expires_at is None or not is_good:
                    raise
                # Asked early, and the catalog does not answer: the known options are still valid.
        self._is_new = False
        return dict(self._known)

    def _ask(self) -> dict[str, Any]:
        table = explain_errors(
            f"table {'.'.join(self._identifier)!r}",
            hide_secrets(self._properties),
            lambda: self._class(self._name, **self._properties).load_table(self._identifier),
            _FAILURES,
        )
        return storage_options(table.io.properties, self._protocol)


def storage_options(properties: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Return options for the store of a table's files, from the properties of its client."""
    if protocol == "s3":
        for name, what in _UNSUPPORTED.items():
            if properties.get(name) and not properties.get("s3.access-key-id"):
                raise OptionError(
                    f"the catalog gives {what} ({name}) for the table's files, which is not "
                    "supported: give your own keys as storage_options="
                )
    return _understood(properties, protocol)


def _understood(properties: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Return the properties that stores know, under their names."""
    found = as_store_options(properties, _STORES.get(protocol, {}))
    if "anon" in found:
        found["anon"] = _flag(found["anon"])
    if protocol == "s3" and _flag(properties.get("s3.force-virtual-addressing", False)):
        found["addressing_style"] = "virtual"
    if _STORES.get(protocol) is _AZURE and "sas_token" not in found:
        found.update(_token_of_account(properties))
    expires_at = _expires_at(properties)
    if found and expires_at is not None:
        found["expires_at"] = expires_at
    return found


def _expires_at(properties: Mapping[str, Any]) -> float | None:
    """Return when credentials expire, in seconds since 1970."""
    names = [*_EXPIRIES, *(name for name in properties if name.startswith(_AZURE_EXPIRY))]
    moments = [int(properties[n]) / 1000 for n in names if str(properties.get(n)).isdigit()]
    return min(moments, default=None)


def _token_of_account(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the temporary token of a catalog under ``adls.sas-token.ACCOUNT``."""
    prefix = "adls.sas-token."
    for name, value in properties.items():
        if name.startswith(prefix):
            account = name.removeprefix(prefix).partition(".")[0]
            return {"sas_token": value, "account_name": account}
    return {}


def _flag(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes", "t", "y", "on")
