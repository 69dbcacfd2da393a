"""Which store a path is in: the same path may be another file at another endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from headrace.storage.engines import OBJECT_STORES
from headrace.storage.redaction import unsigned_url

__all__ = ["hidden_identity", "store_identity"]

_PLACES = re.compile(r"(?:aws_)?endpoint\w*|account_(?:name|url|host)|base_url")
_IN_STRING = re.compile(r"(?i)(?:AccountName|BlobEndpoint|EndpointSuffix)=[^;]*")
_OF_ENVIRONMENT = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "STORAGE_EMULATOR_HOST",
    "HF_ENDPOINT",
)


def store_identity(protocol: str, options: Mapping[str, Any], hidden: str = "") -> str:
    """A short text that names a store, without its secrets; credentials do not change it.

    Of a filesystem of fsspec any option may say where files are: there all of them count. What is
    not shown of URLs may say it, too: see ``hidden_identity``.
    """
    known = protocol in OBJECT_STORES or protocol in ("http", "https", "hf")
    places = sorted(_places(options)) if known else [repr(sorted(options.items(), key=str))]
    around = [f"{name}={os.environ.get(name, '')}" for name in _OF_ENVIRONMENT if known]
    more = [hidden] if hidden else []
    return sha256("\0".join([protocol, *places, *around, *more]).encode()).hexdigest()[:16]


def hidden_identity(urls: Mapping[str, str]) -> str:
    """Return a text that tells apart what is not shown of URLs; empty if these are signatures only.

    Args:
        urls: URLs with their secrets, by what is shown of them.
    """
    found = sorted(one for one in map(unsigned_url, urls.values()) if one not in urls)
    return sha256("\0".join(found).encode()).hexdigest() if found else ""


def _places(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _places(value)
        elif isinstance(value, str) and _PLACES.fullmatch(name):
            yield f"{name}={value}"
        elif isinstance(value, str) and name == "connection_string":
            yield from _IN_STRING.findall(value)
