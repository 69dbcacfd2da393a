"""Which store a path is in: the same path may be another file at another endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from headrace.storage.engines import OBJECT_STORES

__all__ = ["store_identity"]

_PLACES = re.compile(r"(?:aws_)?endpoint\w*|account_(?:name|url|host)|base_url")
_IN_STRING = re.compile(r"(?i)(?:AccountName|BlobEndpoint|EndpointSuffix)=[^;]*")
_OF_ENVIRONMENT = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "STORAGE_EMULATOR_HOST",
    "HF_ENDPOINT",
)


def store_identity(protocol: str, options: Mapping[str, Any]) -> str:
    """A short text that names a store, without its secrets; credentials do not change it.

    Of a filesystem of fsspec any option may say where files are: there all of them count.
    """
    known = protocol in OBJECT_STORES or protocol in ("http", "https", "hf")
    places = sorted(_places(options)) if known else [repr(sorted(options.items(), key=str))]
    around = [f"{name}={os.environ.get(name, '')}" for name in _OF_ENVIRONMENT if known]
    return sha256("\0".join([protocol, *places, *around]).encode()).hexdigest()[:16]


def _places(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _places(value)
        elif isinstance(value, str) and _PLACES.fullmatch(name):
            yield f"{name}={value}"
        elif isinstance(value, str) and name == "connection_string":
            yield from _IN_STRING.findall(value)
