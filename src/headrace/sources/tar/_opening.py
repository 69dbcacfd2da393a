"""Access to the files of archives: options of stores and of the cache."""

from __future__ import annotations

import os

from headrace.errors import OptionError
from headrace.options import parse_bytes
from headrace.storage import Access, DiskCache, Options

__all__ = ["access_of"]


def access_of(
    storage_options: Options | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> Access:
    """Return the options of stores and of the cache, checked."""
    if cache_dir is None and cache_bytes is not None:
        raise OptionError("cache_bytes has no effect without cache_dir")
    limit = None if cache_bytes is None else parse_bytes("cache_bytes", cache_bytes)
    cache = None if cache_dir is None else DiskCache.at(cache_dir, limit)
    return Access(storage_options={} if storage_options is None else storage_options, cache=cache)
