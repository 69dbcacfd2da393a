"""Azure Blob Storage: options as adlfs names them, and connection strings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.storage.options.names import Names, certificates, flag, server_url

__all__ = ["azure_options"]

_NAMES = Names(
    "Azure",
    account_name="account_name",
    account_key="account_key",
    connection_string="connection_string",
    sas_key="sas_token sas_key",
    token="token bearer_token",
    tenant_id="tenant_id",
    client_id="client_id",
    client_secret="client_secret",
    credential="credential",
    endpoint="endpoint endpoint_url account_url account_host",
    anon="anon anonymous skip_signature",
    use_azure_cli="use_azure_cli",
    use_emulator="use_emulator",
    federated_token_file="federated_token_file",
    verify="verify",
)
_IN_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "blobendpoint": "endpoint",
    "sharedaccesssignature": "sas_key",
}

_KINDS = {
    "token": "bearer_token",
    "account_key": "access_key",
    "sas_key": "sas_token",
    "client_secret": "client_secret",
}
"""what each option says who is asking by"""


def azure_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration of the store and of its client."""
    options = _NAMES.meant(given)
    string = options.pop("connection_string", None)
    if string is None and not options:
        string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if string is not None:
        options = {**_parsed(string), **options}
    client = certificates(options.pop("verify", None))
    credential = options.pop("credential", None)
    if isinstance(credential, str):
        options.setdefault("sas_key" if "sig=" in credential else "account_key", credential)
    elif credential is not None:
        raise OptionError(
            "storage option 'credential' for Azure must be a key or a SAS token; of a credential "
            "object give the token: storage_options={'token': lambda: "
            "credential.get_token(...).token}"
        )
    if flag(options, "anon"):
        options["skip_signature"] = True
    endpoint = options.get("endpoint") or _of_environment()
    if endpoint is not None:
        if isinstance(endpoint, str) and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        options["endpoint"] = server_url("endpoint_url", endpoint)
        client["allow_http"] = endpoint.startswith("http://")
    if options.get("sas_key"):
        options["sas_key"] = options["sas_key"].lstrip("?")
    given_kind = next((kind for name, kind in _KINDS.items() if name in options), None)
    if given_kind is not None:  # or else another one, of the environment, may come before it
        options["credential_type"] = given_kind
    return options, client


def _of_environment() -> str | None:
    names = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _parsed(string: str) -> dict[str, Any]:
    fields = dict(part.partition("=")[::2] for part in string.split(";") if "=" in part)
    lower = {name.lower(): value for name, value in fields.items()}
    if lower.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": True}
    found = {meant: lower[name] for name, meant in _IN_STRING.items() if name in lower}
    if "account_name" not in found:
        raise OptionError("the Azure connection_string names no AccountName")
    suffix = lower.get("endpointsuffix")
    if suffix and "endpoint" not in found:
        scheme = lower.get("defaultendpointsprotocol", "https")
        found["endpoint"] = f"{scheme}://{found['account_name']}.blob.{suffix}"
    return found
