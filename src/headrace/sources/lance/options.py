"""What users call the options of stores, and what Lance calls them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headrace.errors import OptionError
from headrace.storage.access import protocol_of
from headrace.storage.options import azure_options, gcs_options, s3_options
from headrace.storage.redaction import has_secret, without_secrets

__all__ = ["keys_expire_at", "lance_options", "located"]

_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
}
_OWN_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
"""of names that Lance knows as they are"""
_CLIENT_NAMES = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "client_max_retries",
        "client_retry_timeout",
        "connect_timeout",
        "download_retry_count",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "request_timeout",
        "timeout",
        "user_agent",
        "virtual_hosted_style_request",
    )
)
"""of Lance and of the client that it uses, whatever the store"""


def located(uri: str | os.PathLike[str]) -> str:
    """Return a location that means the same in every process."""
    if not isinstance(uri, str | os.PathLike):
        raise OptionError(f"uri must be a path or a URL, not {uri!r}")
    text = os.fspath(uri)
    if protocol_of(text) == "":
        return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))
    if has_secret(text):
        raise OptionError(
            f"{without_secrets(text)}: credentials do not belong into the URL; give them as "
            "storage_options"
        )
    return text.rstrip("/")


def lance_options(uri: str, options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return options, of any dataset's names or of Lance's own, as Lance is given them."""
    store, own = _own_options(uri, options)
    found = dict(options)
    if store in _OWN_PREFIXES:
        found = {**_translated(store, options, own), **own}
    return {k: _text(k, value) for k, value in found.items() if value is not None} or None


def keys_expire_at(uri: str, options: Mapping[str, Any]) -> datetime | None:
    """Return when keys expire that a profile of the AWS tools gives."""
    store, own = _own_options(uri, options)
    if store != "s3" or "aws_access_key_id" in own:
        return None
    keys = s3_options({name: value for name, value in options.items() if name not in own}).keys
    expires_at: datetime | None = None if keys is None else keys()["expires_at"]
    return expires_at


def _own_options(uri: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of store, and the options that Lance knows by these names."""
    protocol = protocol_of(uri)
    store = _STORES.get(protocol, protocol)
    return store, {k: v for k, v in options.items() if _is_own(store, str(k))}


def _is_own(store: str, name: str) -> bool:
    prefix = _OWN_PREFIXES.get(store)
    return name in _CLIENT_NAMES or (prefix is not None and name.startswith(prefix))


def _translated(store: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not given by Lance's own names."""
    given = {name: value for name, value in options.items() if name not in own}
    if store == "s3":
        config, client = _of_s3(given, has_keys="aws_access_key_id" in own)
    elif store == "gs":
        config, client = gcs_options(given)
        if "bearer_token" in config:
            config["google_storage_token"] = config.pop("bearer_token")
    else:
        config, client = azure_options(given)
        config.pop("credential_type", None)
    if "root_certificate" in client:
        raise OptionError(
            "storage option 'verify' cannot name a file for Lance, which trusts what the system "
            "trusts; set SSL_CERT_FILE"
        )
    return {**config, **client}


def _of_s3(given: Mapping[str, Any], *, has_keys: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    found = s3_options(given)
    config = {f"aws_{name}": value for name, value in found.config.items()}
    if found.keys is not None and not has_keys:
        keys = found.keys()
        config |= {f"aws_{name}": keys[name] for name in ("access_key_id", "secret_access_key")}
        config["aws_session_token"] = keys["token"]
    return config, found.client


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise OptionError(
        f"storage option {name!r} for Lance must be a str, a number or a flag, not a "
        f"{type(value).__name__}"
    )
