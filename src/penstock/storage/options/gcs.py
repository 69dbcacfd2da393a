"""Google Cloud Storage: options as gcsfs names them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import OptionError
from penstock.storage.options.names import Names, flag

__all__ = ["gcs_options", "is_json_api"]

_NAMES = Names(
    "Google Cloud Storage",
    token="token",
    bearer_token="bearer_token access_token",
    anon="anon anonymous skip_signature",
    project="project",
    access="access",
    service_account="service_account",
    service_account_key="service_account_key",
    application_credentials="application_credentials",
    base_url="base_url",
    endpoint_url="endpoint_url",
    verify="verify",
)


def is_json_api(given: Mapping[str, Any]) -> bool:
    """Whether a server is named that need not speak the XML API, such as an emulator's."""
    return bool(given.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"))


def gcs_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration of the store and of its client."""
    options = _NAMES.meant(given)
    for unused in ("project", "access"):
        options.pop(unused, None)
    client: dict[str, Any] = {}
    if options.pop("verify", True) is False:
        client["allow_invalid_certificates"] = True
    if options.get("base_url"):
        client["allow_http"] = options["base_url"].startswith("http://")
    if flag(options, "anon"):
        options["skip_signature"] = True
    options.update(_token(options.pop("token", None)))
    return options, client


def _token(token: Any) -> dict[str, Any]:
    """What gcsfs calls a token: a name, the path of a key, its content, or a bearer token."""
    if token is None or token in ("google_default", "cloud"):
        return {}
    if token == "anon":
        return {"skip_signature": True}
    if isinstance(token, Mapping):
        return {"service_account_key": json.dumps(dict(token))}
    if isinstance(token, str | os.PathLike):
        if os.path.exists(token):
            return {"application_credentials": os.fspath(token)}
        if isinstance(token, str) and not token.endswith(".json"):
            return {"bearer_token": token}
        raise OptionError("the file that storage option 'token' names does not exist")
    raise OptionError(
        "storage option 'token' for Google Cloud Storage must be 'anon', 'google_default', "
        f"the path or the content of a key, or a bearer token, not a {type(token).__name__}"
    )
