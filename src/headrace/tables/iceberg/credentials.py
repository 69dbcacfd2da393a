"""What a catalog says of the table's storage, in the words of ``storage_options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionError

__all__ = ["storage_options"]

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
    return found


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
