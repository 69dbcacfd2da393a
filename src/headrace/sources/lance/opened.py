"""Calls of pylance: an open version of a dataset, its options, and its rows.

All calls of pylance for reading are in this module. They were tested with pylance 14, the version
that the dependency requires. The following are not documented:

* ``FragmentMetadata.files`` with ``path`` and ``file_size_bytes``: names and sizes of data files.
* ``blob_handling="all_binary"`` of scanners, ``read_blobs``, and the field metadata
  ``lance-encoding:blob``: blobs as bytes.
* ``PanicException``: the class of panics of its Rust code, which can be identified only by its
  name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from headrace.errors import OptionError
from headrace.storage import (
    NativeLibrary,
    has_secret,
    named_locations,
    protocol_of,
    store_options,
    without_secrets,
)

T = TypeVar("T")

_LANCE = NativeLibrary("Lance")
_SOURCE_LINES = re.compile(r",? ?/\S+\.rs:\d+:\d+")
_STORES = {
    **dict.fromkeys(("s3", "s3a"), ("s3", "aws_")),
    **dict.fromkeys(("gs", "gcs"), ("gcs", "google_")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("azure", "azure_")),
}
"""Kinds of stores, and the prefix of names that Lance knows unchanged, by protocol."""
_CLIENT_NAMES = (
    "allow_http allow_invalid_certificates client_max_retries client_retry_timeout connect_timeout "
    "download_retry_count pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate "
    "proxy_excludes proxy_url request_timeout timeout user_agent virtual_hosted_style_request"
)
"""Names of options of Lance and of its client that apply to every store."""


def located(uri: str | os.PathLike[str]) -> str:
    """Return a location that is valid in every process."""
    (text,) = named_locations([uri], as_they_are=False)
    if protocol_of(text) and has_secret(text):
        raise OptionError(
            f"{without_secrets(text)}: credentials must not be in the URL; give them as "
            "storage_options"
        )
    return text.rstrip("/")


def lance_options(
    uri: str, options: Mapping[str, Any]
) -> tuple[dict[str, str] | None, datetime | None]:
    """Return options, with the names of any dataset or Lance's own, in the form that Lance takes.

    Returns:
        The options, and the time when keys from a profile of the AWS tools expire.
    """
    kind, prefix = _STORES.get(protocol_of(uri), ("", ""))
    if not kind:
        return _as_text(options), None
    names = _CLIENT_NAMES.split()
    own = {k: v for k, v in options.items() if k in names or str(k).startswith(prefix)}
    found = store_options(kind, {name: v for name, v in options.items() if name not in own})
    config, client, expires_at = dict(found.config), found.client, None
    if kind == "s3":
        config = {f"aws_{name}": value for name, value in config.items()}
        if found.keys is not None and "aws_access_key_id" not in own:
            keys = found.keys()
            config |= {f"aws_{name}": keys[name] for name in ("access_key_id", "secret_access_key")}
            config["aws_session_token"] = keys["token"]
            expires_at = keys["expires_at"]
    elif kind == "gcs" and found.keys is not None:
        config["google_storage_token"] = found.keys()["token"]
    config.pop("credential_type", None)
    if "root_certificate" in client:
        raise OptionError(
            "storage option 'verify' cannot name a file for Lance, which uses the certificates of "
            "the system; set SSL_CERT_FILE"
        )
    return _as_text({**config, **client, **own}), expires_at


def _as_text(options: Mapping[str, Any]) -> dict[str, str] | None:
    texts = {}
    for name, value in options.items():
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        elif value is not None:
            raise OptionError(
                f"storage option {name!r} for Lance must be a str, a number or a flag, not a "
                f"{type(value).__name__}"
            )
    return texts or None


# --- calls of Lance


class LanceFailure(Exception):
    """An error of Lance, whose text may hold secrets."""


class VersionMetadata(NamedTuple):
    """The metadata of a version, which is known without reading rows."""

    version: int
    schema: pa.Schema
    """Schema of the rows: blobs as bytes, and Lance's own types as their storage types."""
    fragments: list[int]
    """Ids of the fragments, in the order of the rows."""
    rows: list[int]
    """Number of rows of each fragment that are not deleted."""
    sizes: list[int | None]
    """Bytes of the data files of each fragment."""
    files: list[str]
    """Name of the first data file of each fragment; no version uses it for other rows."""


class Handle:
    """An open version of a dataset, for all threads of the process that opened it.

    Raises:
        WorkerError: The process was forked from one that has used Lance.
    """

    def __init__(self, uri: str, version: int | str | None, options: dict[str, str] | None) -> None:
        _LANCE.use()
        import lance

        with _naming_failures():
            self._dataset: Any = lance.dataset(uri, version=version, storage_options=options)
            stored = self._dataset.schema
        self._blobs = {field.name for field in stored if _is_blob(field)}
        self.schema = pa.schema(
            [_readable_field(field) for field in stored], metadata=stored.metadata
        )

    def metadata(self) -> VersionMetadata:
        """Return the metadata of the version."""
        with _naming_failures():
            fragments = self._dataset.get_fragments()
            listed = [fragment.metadata for fragment in fragments]
            return VersionMetadata(
                self._dataset.version,
                self.schema,
                [one.id for one in listed],
                [fragment.count_rows() for fragment in fragments],
                [_data_bytes(one.files) for one in listed],
                [one.files[0].path if one.files else "" for one in listed],
            )

    def take(self, rows: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return rows by index among those not deleted; order and repetitions are kept.

        Types of Lance's own are left to the caller, which knows the schema.
        """
        blobs = [name for name in columns if name in self._blobs]
        plain = [name for name in columns if name not in self._blobs]
        with _naming_failures():
            if not blobs:
                return self._dataset.take(rows, columns=plain)
            table = self._dataset.take(rows, columns=plain) if plain else pa.table({})
            read = {
                name: self._dataset.read_blobs(name, indices=rows, preserve_order=True)
                for name in blobs
            }
        found = dict(zip(plain, table.columns, strict=True))
        for name, values in read.items():
            found[name] = pa.array([value for _, value in values], pa.large_binary())
        return pa.table({name: found[name] for name in columns})

    def slice(
        self, start: int, length: int, columns: Sequence[str], batch_readahead: int
    ) -> pa.Table:
        """Return rows that follow each other among those not deleted."""
        with _naming_failures():
            scanner = self._dataset.scanner(
                columns=list(columns),
                offset=start,
                limit=length,
                batch_readahead=batch_readahead,
                scan_in_order=True,
                blob_handling="all_binary",
            )
            return scanner.to_table()


@contextmanager
def _naming_failures() -> Iterator[None]:
    """Raise errors of Lance as ``LanceFailure``; panics in Rust are not an ``Exception``."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, OverflowError) as error:
        failed = LanceFailure(_text_of(error))
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        failed = LanceFailure(f"Lance failed inside: {_text_of(error)}")
    else:
        return
    raise failed


def _text_of(error: BaseException) -> str:
    return _SOURCE_LINES.sub("", str(error)) or type(error).__name__


def _is_own(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith("lance.")


def _is_blob(field: pa.Field) -> bool:
    if _is_own(field.type):
        return bool(field.type.extension_name.startswith("lance.blob"))
    return (field.metadata or {}).get(b"lance-encoding:blob") == b"true"


def _readable_field(field: pa.Field) -> pa.Field:
    if _is_blob(field):
        return pa.field(field.name, pa.large_binary(), field.nullable)
    if _is_own(field.type):
        return pa.field(field.name, field.type.storage_type, field.nullable)
    return field


def _data_bytes(files: Sequence[Any]) -> int | None:
    sizes = [file.file_size_bytes for file in files]
    return sum(sizes) if sizes and all(sizes) else None
