"""Clients of stores: which one is used for what, and how each of them is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.storage.engines.protocol import Engine, Failure, RequestError, WritingEngine
from headrace.storage.options.gcs import gcsfs_options, is_json_api

__all__ = [
    "OBJECT_STORES",
    "SIGNED",
    "Engine",
    "Failure",
    "RequestError",
    "WritingEngine",
    "connect",
]

SIGNED = "signed_urls"
"""the option that holds, for URLs as they are shown, those with their secrets"""


def connect(
    protocol: str, options: Mapping[str, Any], timeout_s: float, filesystem: Any = None
) -> Engine:
    """The client for a protocol, or for a filesystem that is given as it is.

    Clients are imported when they are needed: each has threads of its own.
    """
    if filesystem is not None:
        return _given(filesystem, timeout_s)
    if protocol in ("http", "https"):
        from headrace.storage.engines.http import HttpEngine

        return HttpEngine(options, timeout_s)
    if protocol == "hf":
        from headrace.storage.engines.hub import HubEngine

        return HubEngine(options, timeout_s)
    if protocol in OBJECT_STORES and not _needs_gcsfs(protocol, options):
        from headrace.storage.engines.objects import ObjectEngine

        return ObjectEngine(protocol, options, timeout_s)
    from headrace.storage.engines.fsspec import FsspecEngine, filesystem_for

    if protocol in OBJECT_STORES:
        options = gcsfs_options(options)
    return FsspecEngine(filesystem_for(protocol, options), protocol, timeout_s)


def _needs_gcsfs(protocol: str, options: Mapping[str, Any]) -> bool:
    return OBJECT_STORES[protocol] == "gcs" and is_json_api(options)


def _given(filesystem: Any, timeout_s: float) -> Engine:
    import fsspec
    import pyarrow.fs

    from headrace.errors import OptionError

    if isinstance(filesystem, fsspec.AbstractFileSystem):
        from headrace.storage.engines.fsspec import FsspecEngine

        return FsspecEngine(filesystem, "", timeout_s)
    if isinstance(filesystem, pyarrow.fs.FileSystem):
        from headrace.storage.engines.arrow import ArrowEngine

        return ArrowEngine(filesystem, timeout_s)
    if type(filesystem).__module__.startswith("obstore"):
        from headrace.storage.engines.objects import StoreEngine

        return StoreEngine(filesystem)
    raise OptionError(
        "filesystem must be a filesystem of fsspec or pyarrow, or a store of obstore, not a "
        f"{type(filesystem).__name__}"
    )


OBJECT_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
}
"""protocols of object stores, and the extra that installs their client"""
