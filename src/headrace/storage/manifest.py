"""What was found at a location, in a file: a job of many ranks lists once and not a thousand times.

An Arrow IPC stream with a row for each file: path, size, etag, and the parts of it that planning
looks at (a footer, mostly). It holds no credentials and no options. Behind the stream comes a line
with the version of the format and a checksum of all that is before it: nothing of a file that was
damaged or cut short is looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.storage.access import Access, protocol_of
from headrace.storage.listing import Listing, named_locations
from headrace.storage.redaction import public_url
from headrace.storage.remote import Parts, RemoteStore
from headrace.storage.store import FileStatus

__all__ = ["load_manifest", "locations_in_manifest", "save_manifest"]

_ABOUT = b"headrace.manifest"
_VERSION = 2
_LAST_LINE = re.compile(rb"headrace\.manifest (\d{1,6}) ([0-9a-f]{64})\n\Z")
_LAST_LINE_BYTES = 128
"""no last line is longer"""
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
    about = {"locations": list(listing.locations), "roots": list(listing.roots)}
    schema = _SCHEMA.with_metadata({_ABOUT: json.dumps(about).encode()})
    if protocol_of(path):
        place = public_url(os.fspath(path))
        raise OptionError(f"{place}: a manifest is saved to a file here, to be uploaded from there")
    [target] = named_locations(path, as_they_are=False)
    aside = f"{target}.{os.getpid()}.new"
    try:
        compressed = ipc.IpcWriteOptions(compression="zstd")
        with (
            pa.OSFile(aside, "wb") as file,
            ipc.new_stream(file, schema, options=compressed) as stream,
        ):
            for batch in _batches(listing):
                stream.write_batch(batch)
        _add_last_line(aside)
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


def locations_in_manifest(path: str) -> list[str]:
    """Return the locations that a local manifest says it is of; none if it cannot be read.

    Only its beginning is looked at, and no checksum: what it says holds if it can be loaded.
    """
    try:
        with pa.memory_map(path) as file:
            return _about(ipc.open_stream(file).schema)["locations"]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        return []


def _add_last_line(path: str) -> None:
    with open(path, "r+b") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, os.SEEK_END)
        file.write(b"headrace.manifest %d %s\n" % (_VERSION, checksum.encode()))


def _read(
    access: Access, manifest: str | os.PathLike[str]
) -> tuple[pa.Table, dict[str, list[str]], str]:
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
    last = _LAST_LINE.search(content[max(content.size - _LAST_LINE_BYTES, 0) :].to_pybytes())
    if last is None:
        raise ReadError(
            f"{place}: not a manifest, or one that was cut short, or one of an older release: "
            "save it again (save_manifest)"
        )
    version = int(last[1])
    if version != _VERSION:
        raise OptionError(
            f"{place} is a manifest of version {version}; this release reads {_VERSION}"
        )
    rest = content[: content.size - len(last[0])]
    if hashlib.sha256(rest).hexdigest().encode() != last[2]:
        raise ReadError(
            f"{place}: the manifest is damaged, for its checksum is not that of its content: save "
            "it again (save_manifest)"
        )
    return rest


def _about(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the locations and the roots that a manifest is of."""
    about = json.loads((schema.metadata or {})[_ABOUT])
    found = {name: about[name] for name in ("locations", "roots")}
    for name, value in found.items():
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{name} are {value!r}")
    return found


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
