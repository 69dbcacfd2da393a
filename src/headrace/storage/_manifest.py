"""The files of a location in a file: a job of many ranks lists once and not a thousand times.

A manifest is an Arrow IPC stream with a row for each file: path, size, etag, and the parts of it
that planning looks at (a footer, mostly). It holds no credentials and no options. A last line holds
the version of the format and a checksum of all before it: nothing of a file that was damaged or cut
short is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.storage._ranges import Parts
from headrace.storage._remote import RemoteStore
from headrace.storage.access import Access, protocol_of
from headrace.storage.listing import Listing, named_locations
from headrace.storage.redaction import public_url
from headrace.storage.store import FileStatus, atomic_write

_ABOUT = b"headrace.manifest"
_VERSION = 2
_LAST_LINE_BYTES = len("headrace.manifest 2 ") + 64 + 1
_ROWS_AT_ONCE = 10_000
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


def save_manifest(listing: Listing, path: str | os.PathLike[str]) -> None:
    """Write the files that were found to a local file, whole or not at all."""
    if protocol_of(path):
        place = public_url(os.fspath(path))
        raise OptionError(f"{place}: a manifest is saved to a file here, to be uploaded from there")
    about = {"locations": list(listing.locations), "roots": list(listing.roots)}
    schema = _SCHEMA.with_metadata({_ABOUT: json.dumps(about).encode()})
    compressed = ipc.IpcWriteOptions(compression="zstd")
    [target] = named_locations(path, as_they_are=False)
    try:
        with atomic_write(target) as partial:
            with (
                pa.OSFile(os.fspath(partial), "wb") as file,
                ipc.new_stream(file, schema, options=compressed) as stream,
            ):
                for batch in _batches(listing):
                    stream.write_batch(batch)
            with open(partial, "r+b") as written:
                checksum = hashlib.file_digest(written, "sha256")
                written.seek(0, os.SEEK_END)
                written.write(_last_line(checksum))
    except OSError as error:
        raise OptionError(f"{target}: the manifest cannot be saved: {error}") from error


def _batches(listing: Listing) -> Iterator[pa.RecordBatch]:
    known = listing.store.parts if isinstance(listing.store, RemoteStore) else Parts()
    for first in range(0, len(listing.files), _ROWS_AT_ONCE):
        rows = [
            {
                "path": status.path,
                "size": status.size,
                "etag": status.etag,
                "named": status.path in listing.named,
                "parts": [
                    {"start": start, "data": bytes(data)} for start, data in known.of(_file(status))
                ],
            }
            for status in listing.files[first : first + _ROWS_AT_ONCE]
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def load_manifest(path: Any, access: Access, manifest: str | os.PathLike[str]) -> Listing:
    """Return the files that were at a location when the manifest was saved; nothing is listed."""
    as_they_are = access.filesystem is not None
    store, locations = access.store_for(named_locations(path, as_they_are=as_they_are))
    if access.filesystem is not None or protocol_of(manifest) != protocol_of(locations[0]):
        # It lies in another kind of store than the files, for which their options do not hold.
        access = replace(access, storage_options={}, filesystem=None)
    table, about, place = _read(access, manifest)
    if _without_slashes(locations) != _without_slashes(about["locations"]):
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


def _without_slashes(locations: Sequence[str]) -> list[str]:
    return [location.rstrip("/") for location in locations]


def _read(
    access: Access, manifest: str | os.PathLike[str]
) -> tuple[pa.Table, dict[str, list[str]], str]:
    """Return the rows of a manifest, its locations and roots, and its own place."""
    store, [place] = access.store_for(named_locations(manifest, as_they_are=False))
    status = store.status(place)
    if status is None:
        raise NothingFoundError(f"{place}: there is no such manifest")
    with store.open(_file(status)) as source:
        content = _checked(source.read_buffer(), place)
    try:
        table = ipc.open_stream(pa.BufferReader(content)).read_all()
        about = _about(table.schema)
        table = table.select(_SCHEMA.names).cast(_SCHEMA)
        table.validate(full=True)
        for name in ("path", "size", "named", "parts"):
            if table[name].null_count:
                raise ValueError(f"a file without {name}")
        return table, about, place
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ReadError(f"{place}: not a manifest: {error}") from error


def _checked(content: pa.Buffer, place: str) -> pa.Buffer:
    """Return a manifest without its last line, which must hold the checksum of the rest."""
    rest = content[: max(content.size - _LAST_LINE_BYTES, 0)]
    if content[rest.size :].to_pybytes() != _last_line(hashlib.sha256(rest)):
        raise ReadError(
            f"{place}: not a manifest, or one that was damaged or cut short, or one of another "
            "release: save it again (save_manifest)"
        )
    return rest


def _last_line(checksum: Any) -> bytes:
    return b"headrace.manifest %d %s\n" % (_VERSION, checksum.hexdigest().encode())


def _about(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the locations and the roots that a manifest is of."""
    about = json.loads((schema.metadata or {})[_ABOUT])
    found = {name: about[name] for name in ("locations", "roots")}
    for name, value in found.items():
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{name} are {value!r}")
    return found


def _file(status: FileStatus) -> DataFileInfo:
    return DataFileInfo(status.path, status.size, etag=status.etag)
