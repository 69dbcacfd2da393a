"""Google Cloud Storage: options as gcsfs names them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.storage.options.names import Names, certificates, flag, server_url

__all__ = ["gcs_options", "gcsfs_options", "is_json_api"]

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

_GCSFS_TOKENS = ("anon", "browser", "cache", "cloud", "google_default")


def is_json_api(given: Mapping[str, Any]) -> bool:
    """Whether a server is named that need not speak the XML API, such as an emulator's."""
    return bool(given.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"))


def gcsfs_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same for gcsfs, which itself would take any option and use what it knows."""
    options = _NAMES.meant(given)
    if options.get("verify", True) is not True:
        raise OptionError(
            "storage option 'verify' does not go with endpoint_url (or STORAGE_EMULATOR_HOST) for "
            "Google Cloud Storage: gcsfs, which reads from there, trusts what Python trusts; set "
            "SSL_CERT_FILE, or give the server as base_url if it speaks the XML API"
        )
    if options.get("endpoint_url") is not None:
        options["endpoint_url"] = server_url("endpoint_url", options["endpoint_url"])
    if flag(options, "anon"):
        options["token"] = "anon"
    token = options.pop("bearer_token", options.get("token"))
    _token(token)  # refuses what is none
    if isinstance(token, str) and token not in _GCSFS_TOKENS and not os.path.exists(token):
        from google.oauth2.credentials import Credentials

        token = Credentials(token)  # type: ignore[no-untyped-call]
    if token is not None:
        options["token"] = token
    known = ("token", "project", "access", "endpoint_url")
    return {name: value for name, value in options.items() if name in known}


def gcs_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration of the store and of its client."""
    options = _NAMES.meant(given)
    for unused in ("project", "access"):
        options.pop(unused, None)
    client = certificates(options.pop("verify", None))
    if options.get("base_url") is not None:
        options["base_url"] = server_url("base_url", options["base_url"])
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
