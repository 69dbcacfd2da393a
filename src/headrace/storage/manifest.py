"""What was found at a location, in a file: a job of many ranks lists once and not a thousand times.

An Arrow IPC file with a row for each file: path, size, etag, and the parts of it that planning
looks at (a footer, mostly). It holds no credentials and no options.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.storage.access import Access, protocol_of
from headrace.storage.listing import Listing, named_locations
from headrace.storage.parts import Parts
from headrace.storage.redaction import public_url
from headrace.storage.remote import RemoteStore
from headrace.storage.store import FileStatus

__all__ = ["load_manifest", "save_manifest"]

_ABOUT = b"headrace.manifest"
_VERSION = 1
_PART = pa.struct([("start", pa.int64()), ("data", pa.large_binary())])
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("named", pa.bool_()),
        ("parts", pa.list_(_PART)),
    ]
)
_ROWS_AT_ONCE = 10_000


def save_manifest(listing: Listing, path: str | os.PathLike[str]) -> None:
    """Write what was found, whole or not at all."""
    about = {
        "version": _VERSION,
        "locations": list(listing.locations),
        "roots": list(listing.roots),
    }
    schema = _SCHEMA.with_metadata({_ABOUT: json.dumps(about).encode()})
    if protocol_of(path):
        place = public_url(os.fspath(path))
        raise OptionError(f"{place}: a manifest is saved to a file here, to be uploaded from there")
    [target] = named_locations(path, as_they_are=False)
    aside = f"{target}.{os.getpid()}.new"
    try:
        with ipc.new_file(aside, schema, options=ipc.IpcWriteOptions(compression="zstd")) as file:
            for batch in _batches(listing):
                file.write_batch(batch)
        os.replace(aside, target)
    except OSError as error:
        raise OptionError(f"{target}: the manifest cannot be saved: {error}") from error
    finally:
        if os.path.exists(aside):
            os.unlink(aside)


def load_manifest(path: Any, access: Access, manifest: str | os.PathLike[str]) -> Listing:
    """What was found at a location when the manifest was saved; nothing is listed."""
    as_they_are = access.filesystem is not None
    store, locations = access.store_for(named_locations(path, as_they_are=as_they_are))
    table, about, place = _read(_reaching(manifest, access, locations), manifest)
    if _ends(locations) != _ends(about["locations"]):
        raise OptionError(
            f"{place} is a manifest of {', '.join(about['locations'])}, and not of "
            f"{', '.join(locations)}"
        )
    columns = [table[name].to_pylist() for name in ("path", "size", "etag")]
    files = [FileStatus(*values) for values in zip(*columns, strict=True)]
    if isinstance(store, RemoteStore):
        for status, parts in zip(files, table["parts"].to_pylist(), strict=True):
            for part in parts:
                store.parts.add(_file(status), part["start"], part["data"])
    named = frozenset(table.filter(table["named"])["path"].to_pylist())
    return Listing(store, files, about["roots"], named, tuple(locations))


def _reaching(manifest: str | os.PathLike[str], access: Access, locations: Sequence[str]) -> Access:
    """The same options if it lies in a store of the same kind as the files, else none."""
    if access.filesystem is None and protocol_of(manifest) == protocol_of(locations[0]):
        return access
    return replace(access, storage_options={}, filesystem=None)


def _ends(locations: Sequence[str]) -> list[str]:
    """Locations, whether a directory was written with a slash at its end or without."""
    return [location.rstrip("/") for location in locations]


def _read(access: Access, manifest: str | os.PathLike[str]) -> tuple[pa.Table, dict[str, Any], str]:
    store, [place] = access.store_for(named_locations(manifest, as_they_are=False))
    status = store.status(place)
    if status is None:
        raise NothingFoundError(f"{place}: there is no such manifest")
    try:
        with store.open(_file(status)) as source:
            table = ipc.open_file(pa.BufferReader(source.read_buffer())).read_all()
        about: dict[str, Any] = json.loads(table.schema.metadata[_ABOUT])
        if about["version"] != _VERSION:
            raise OptionError(
                f"{place} is a manifest of version {about['version']}; "
                f"this release reads {_VERSION}"
            )
        return table.select(_SCHEMA.names).cast(_SCHEMA), about, place
    except OptionError:
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ReadError(f"{place}: not a manifest: {error}") from error


def _batches(listing: Listing) -> Iterator[pa.RecordBatch]:
    known = listing.store.parts if isinstance(listing.store, RemoteStore) else Parts()
    for first in range(0, len(listing.files), _ROWS_AT_ONCE):
        files = listing.files[first : first + _ROWS_AT_ONCE]
        parts = [
            [{"start": start, "data": bytes(data)} for start, data in known.of(_file(status))]
            for status in files
        ]
        columns = (
            [status.path for status in files],
            [status.size for status in files],
            [status.etag for status in files],
            [status.path in listing.named for status in files],
            parts,
        )
        arrays = [pa.array(values, f.type) for values, f in zip(columns, _SCHEMA, strict=True)]
        yield pa.record_batch(arrays, schema=_SCHEMA)


def _file(status: FileStatus) -> DataFileInfo:
    return DataFileInfo(status.path, status.size, etag=status.etag)
