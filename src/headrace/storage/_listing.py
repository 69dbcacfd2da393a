"""Find the files that a user names: sorted, each once, without hidden ones; and save the list.

``find_files`` lists the files at some locations. A manifest is a listing in a file, so that a job
of many ranks lists once and not a thousand times.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.storage._ranges import Parts
from headrace.storage._redaction import public_url
from headrace.storage._remote import Access, RemoteStore, Store
from headrace.storage._store import atomic_write, named_locations, protocol_of
from headrace.storage._threads import side_by_side

logger = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
_ASKING_THREADS = 48


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of some locations, all in one store.

    Attributes:
        store: The store that holds them.
        files: The files, sorted by path.
        roots: The directories that were searched, or that hold the files that were named.
        named: Paths given in full or by a glob, and not found in a directory that was searched.
        locations: The locations given by the user, without secrets.
        paths: The paths of the files at each location, sorted.
        walked: The directories of which everything was listed.
        hidden_folders: Folders in ``walked`` whose files are left out because of their names.
    """

    store: Store
    files: Sequence[DataFileInfo]
    roots: Sequence[str]
    named: frozenset[str]
    locations: Sequence[str] = ()
    paths: Sequence[Sequence[str]] = ()
    walked: Sequence[str] = ()
    hidden_folders: frozenset[str] = frozenset()


def find_files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    access: Access | None = None,
) -> Listing:
    """List files, directories (recursively) and globs.

    Hidden files, and those that begin with an underscore (``_SUCCESS``, ``_metadata``), are
    left out unless they are named in full.

    Raises:
        NothingFoundError: There is no file at a location.
    """
    store, locations = (access or Access()).store_for(path)
    search = _Search(store)
    places = list(map(store.resolved, locations))
    statuses: Iterable[DataFileInfo | None] = map(store.status, places)
    if not store.local:
        statuses = side_by_side(store.status, places, threads=_ASKING_THREADS)
    files: dict[str, DataFileInfo] = {}
    paths: list[list[str]] = []
    for location, place, status in zip(locations, places, statuses, strict=True):
        found = search.expand(place, status)
        if not found:
            raise NothingFoundError(_nothing_found(store, location))
        twice = found.keys() & files.keys()
        if twice:
            logger.warning("%d files are named twice and read once: %s", len(twice), min(twice))
        files.update(found)
        paths.append(sorted(found))
    return Listing(
        store,
        list(map(files.__getitem__, sorted(files))),
        list(dict.fromkeys(search.roots)),
        frozenset(search.named),
        tuple(locations),
        paths,
        search.walked,
        frozenset(search.hidden),
    )


class _Search:
    """Collects the files found; the attributes are those of ``Listing``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.roots: list[str] = []
        self.named: set[str] = set()
        self.walked: list[str] = []
        self.hidden: set[str] = set()

    def expand(self, location: str, status: DataFileInfo | None) -> dict[str, DataFileInfo]:
        """Return the files of a location; an existing path is not taken for a glob."""
        if status is not None and not self._marks_a_folder(status):
            self.roots.append(location.rpartition("/")[0])
            self.named.add(status.path)
            return {status.path: status}
        found = dict(self._walk(location))
        magic = _MAGIC.search(location)
        if found or magic is None:
            self.roots.append(location)
            self.walked.append(location)
            return found
        root = location[: magic.start()].rpartition("/")[0]
        self.roots.append(root)
        for match, status in self._store.glob(location):
            if _hidden_part(match[len(root) :], location[len(root) :]) >= 0:
                continue
            if match == status.path:
                self.named.add(status.path)
            elif _hidden_part(status.path[len(match) :]) >= 0:
                continue
            found[status.path] = status
        return found

    def _walk(self, directory: str) -> Iterator[tuple[str, DataFileInfo]]:
        """Yield the files below a directory; note the folders that are left out."""
        directory = directory.rstrip("/")
        for status in self._store.list(directory):
            below = status.path[len(directory) :]
            part = _hidden_part(below)
            if part < 0:
                yield status.path, status
            elif (end := below.find("/", part)) >= 0:
                self.hidden.add(directory + below[:end])

    def _marks_a_folder(self, status: DataFileInfo) -> bool:
        """Return True for an empty object that a tool has put in place of a folder."""
        if status.file_size or self._store.local or protocol_of(status.path) in ("http", "https"):
            return False
        try:
            return any(True for _ in self._walk(status.path))
        except AccessDeniedError:  # objects may be readable where listing is not allowed
            return False


def _hidden_part(relative: str, pattern: str = "") -> int:
    """Return the position of the first part of a path that begins with . or _, or -1.

    Args:
        relative: A path below a directory.
        pattern: A glob; its parts that begin so make such parts of the path visible.
    """
    place = 0
    for part in relative.split("/"):
        if part[:1] in ("_", ".") and "=" not in part and f"/{part[0]}" not in f"/{pattern}":
            return place
        place += len(part) + 1
    return -1


def _nothing_found(store: Store, location: str) -> str:
    if _MAGIC.search(location):
        return f"no file matches {location}"
    if store.local and os.path.isdir(location):
        return (
            f"no data file in {location} or below it (hidden files and those "
            "that begin with an underscore are not counted)"
        )
    return f"{location} does not exist"


# --- manifests


def save_manifest(listing: Listing, path: str | os.PathLike[str]) -> None:
    """Write the files that were found to a local file, whole or not at all.

    A manifest is an Arrow IPC stream with a row for each file: path, size, etag, and the bytes that
    planning reads (usually a footer). It holds no credentials and no options. The last line holds
    the version of the format and a checksum of everything before it.
    """
    if protocol_of(path):
        place = public_url(os.fspath(path))
        raise OptionError(f"{place}: a manifest is saved to a file here, to be uploaded from there")
    [target] = named_locations(path, as_they_are=False)
    known = listing.store.parts if isinstance(listing.store, RemoteStore) else Parts()
    table = pa.table(
        [
            [status.path for status in listing.files],
            [status.file_size for status in listing.files],
            [status.etag for status in listing.files],
            [status.path in listing.named for status in listing.files],
            [known.of(status) for status in listing.files],
        ],
        schema=_MANIFEST.with_metadata(
            {_ABOUT: json.dumps({"locations": listing.locations, "roots": listing.roots})}
        ),
    )
    content = pa.BufferOutputStream()
    with ipc.new_stream(
        content, table.schema, options=ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(table)
    data = content.getvalue()
    try:
        with atomic_write(target) as partial, open(partial, "wb") as file:
            file.write(data)
            file.write(_last_line(data))
    except OSError as error:
        raise OptionError(f"{target}: the manifest cannot be saved: {error}") from error


def load_manifest(path: Any, access: Access, manifest: str | os.PathLike[str]) -> Listing:
    """Return the files that were at a location when the manifest was saved, without listing it."""
    store, locations = access.store_for(path)
    if access.filesystem is not None or protocol_of(manifest) != protocol_of(locations[0]):
        # It lies in another store than the files, so the options of the files do not apply to it.
        access = replace(access, storage_options={}, filesystem=None)
    table, place = _read_manifest(access, manifest)
    about = json.loads(table.schema.metadata[_ABOUT])
    if [one.rstrip("/") for one in locations] != [one.rstrip("/") for one in about["locations"]]:
        raise OptionError(
            f"{place} is a manifest of {', '.join(about['locations'])}, and not of "
            f"{', '.join(locations)}"
        )
    columns = [table[name].to_pylist() for name in ("path", "size", "etag")]
    files = [DataFileInfo(one, size, etag=etag) for one, size, etag in zip(*columns, strict=True)]
    if isinstance(store, RemoteStore):
        for status, parts in zip(files, table["parts"].to_pylist(), strict=True):
            for part in parts:
                store.parts.add(status, part["start"], part["data"])
    named = frozenset(table.filter(table["named"])["path"].to_pylist())
    return Listing(store, files, about["roots"], named, tuple(locations))


def _read_manifest(access: Access, manifest: str | os.PathLike[str]) -> tuple[pa.Table, str]:
    """Return the rows of a manifest, and its place without secrets.

    The last line reveals any damage, so that the rest need not be checked.
    """
    store, [place] = access.store_for(manifest)
    status = store.status(place)
    if status is None:
        raise NothingFoundError(f"{place}: there is no such manifest")
    with store.open(status) as source:
        content = source.read_buffer()
    data = content[: max(content.size - len(_last_line(b"")), 0)]
    if content[data.size :].to_pybytes() != _last_line(data):
        raise ReadError(
            f"{place}: not a manifest, or one that was damaged or cut short, or one of another "
            "release: save it again (save_manifest)"
        )
    return ipc.open_stream(data).read_all(), place


_ABOUT = b"headrace.manifest"
_VERSION = 3
_PART = pa.struct([("start", pa.int64()), ("data", pa.large_binary())])
_MANIFEST = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("named", pa.bool_()),
        ("parts", pa.list_(_PART)),
    ]
)


def _last_line(data: Any) -> bytes:
    """Return the last line of a manifest: its version, and a checksum of everything before it."""
    return b"headrace.manifest %d %s\n" % (_VERSION, hashlib.sha256(data).hexdigest().encode())
