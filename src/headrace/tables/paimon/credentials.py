"""What a catalog says of the table's storage, in the words of ``storage_options``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pypaimon.common.file_io import FileIO

__all__ = ["storage_options"]

_PREFIXES = ("s3.", "s3a.", "fs.s3.", "fs.s3a.")
_S3 = {
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
}
_PATH_STYLE = ("path-style-access", "path.style.access")


def storage_options(options: Mapping[str, Any], file_io: FileIO, protocol: str) -> dict[str, Any]:
    """Options for the store of a table's files, from those that pypaimon takes for its own."""
    if protocol != "s3":
        return {}
    if hasattr(file_io, "valid_token"):
        return {"credentials": _LentCredentials(file_io)}
    return _of_s3(options)


@dataclass(frozen=True, slots=True)
class _LentCredentials:
    """Asks the catalog for credentials of the table, which expire, when they are needed."""

    file_io: Any = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        token = self.file_io.valid_token()
        return {**_of_s3(token.token), "expires_at": token.expire_at_millis / 1000}


def _of_s3(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        option: value
        for option, names in _S3.items()
        if (value := _first(options, names)) is not None
    }
    endpoint = found.get("endpoint_url")
    if isinstance(endpoint, str) and "://" not in endpoint:
        found["endpoint_url"] = f"https://{endpoint}"
    if endpoint and str(_first(options, _PATH_STYLE)).lower() == "false":
        found["addressing_style"] = "virtual"
    return found


def _first(options: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for prefix in _PREFIXES:
        for name in names:
            if options.get(prefix + name):
                return options[prefix + name]
    return None
