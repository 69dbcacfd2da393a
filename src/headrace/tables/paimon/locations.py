"""Where the files of a table are: paths as its metadata has them, and as stores call them."""

from __future__ import annotations

__all__ = ["protocol_of", "store_path"]

_S3 = ("s3a", "s3n")
"""what some engines call S3"""


def store_path(path: str) -> str:
    """A path as a store calls it; files of this machine are written in four ways."""
    for prefix in ("file://", "file:"):
        if path.startswith(prefix):
            return "/" + path.removeprefix(prefix).lstrip("/")
    scheme, separator, rest = path.partition("://")
    return f"s3://{rest}" if separator and scheme in _S3 else path


def protocol_of(path: str) -> str:
    """The protocol of a path; nothing for those of this machine."""
    return path.partition("://")[0] if "://" in path else ""
