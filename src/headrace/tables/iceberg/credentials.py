"""What a catalog says of the table's storage, in the words of ``storage_options``.

Credentials that a REST catalog lends expire while an epoch runs. Readers get a function in their
place (``LentCredentials``), which asks the catalog again, in the process that reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from headrace.errors import OptionError, ReadError
from headrace.tables.iceberg.catalog import explained, hiding

__all__ = ["LentCredentials", "storage_options", "table_options"]

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


def table_options(table: Table, protocol: str) -> dict[str, Any]:
    """Return options for the store of a table's files, which renew themselves if they are lent."""
    found = storage_options(table.io.properties, protocol)
    catalog = table.catalog
    if isinstance(catalog, RestCatalog) and found != storage_options(catalog.properties, protocol):
        return {"credentials": LentCredentials(table, protocol)}
    return found


class LentCredentials:
    """Storage options that a REST catalog gave with a table, and gives anew with every load of it.

    The first call returns those of the table that was loaded already; later calls, and a first one
    after these have expired, load the table again. Copies in other processes do the same.
    """

    def __init__(self, table: Table, protocol: str) -> None:
        self._catalog_class: type[Catalog] = type(table.catalog)
        self._catalog_name = table.catalog.name
        self._properties = dict(table.catalog.properties)
        self._name = ".".join(table.name())
        self._identifier = table.name()
        self._protocol = protocol
        self._known = storage_options(table.io.properties, protocol)
        self._is_new = True

    def __repr__(self) -> str:
        return f"<credentials that are lent for table {self._name}>"

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
                # Asked early, while a catalog is down for a moment: what is known still holds.
        self._is_new = False
        return dict(self._known)

    def _ask(self) -> dict[str, Any]:
        table = explained(
            f"table {self._name!r}",
            hiding(self._properties),
            lambda: self._catalog().load_table(self._identifier),
        )
        return storage_options(table.io.properties, self._protocol)

    def _catalog(self) -> Catalog:
        return self._catalog_class(self._catalog_name, **self._properties)


def storage_options(properties: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Options for the store of a table's files, from the properties of the table's own client."""
    if protocol == "s3":
        for name, what in _UNSUPPORTED.items():
            if properties.get(name) and not properties.get("s3.access-key-id"):
                raise OptionError(
                    f"the catalog gives {what} ({name}) for the table's files, which is not "
                    "supported: give storage_options= with keys of your own"
                )
    found: dict[str, Any] = {}
    for option, names in _STORES.get(protocol, {}).items():
        value = next((properties[name] for name in names if properties.get(name)), None)
        if value is not None:
            found[option] = _flag(value) if option == "anon" else value
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
    moments = [float(properties[name]) / 1000 for name in names if properties.get(name)]
    return min(moments, default=None)


def _token_of_account(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Catalogs that lend tokens name the account in the property: ``adls.sas-token.ACCOUNT``."""
    prefix = "adls.sas-token."
    for name, value in properties.items():
        if name.startswith(prefix):
            account = name.removeprefix(prefix).partition(".")[0]
            return {"sas_token": value, "account_name": account}
    return {}


def _flag(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes", "t", "y", "on")
