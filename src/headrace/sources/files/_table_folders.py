"""Folders of table formats, which must not be read as plain files.

A table of Delta Lake, Iceberg, Paimon, Hudi or Lance keeps files whose rows were deleted or
replaced; only its metadata tells which rows are valid. So a folder with such metadata, and any part
of it, is refused, unless the user gives ``as_files=True``.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from headrace.errors import AccessDeniedError, OptionError
from headrace.model import DataFileInfo
from headrace.storage import Listing, Store, protocol_of, side_by_side

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _TableFormat:
    """A table format."""

    name: str
    own: frozenset[str]
    """Folders of a table that hold none of its rows."""
    cure: str
    """Advice on how to read such a table."""


_NOT_SUPPORTED = "which this library does not support yet: write its current rows to plain files"
_DELTA = _TableFormat("Delta Lake", frozenset({"_delta_log", "_change_data"}), _NOT_SUPPORTED)
_HUDI = _TableFormat("Hudi", frozenset({".hoodie"}), _NOT_SUPPORTED)
_LANCE = _TableFormat(
    "Lance",
    frozenset({"_versions", "_transactions", "_indices", "_deletions"}),
    "which headrace.LanceDataset(path) reads",
)
_ICEBERG = _TableFormat(
    "Iceberg",
    frozenset({"metadata"}),
    "which headrace.IcebergDataset('catalog.database.table', catalog_config={...}) reads",
)
_PAIMON = _TableFormat(
    "Paimon",
    frozenset({"snapshot", "schema", "manifest", "index", "statistics", "changelog"}),
    "which headrace.PaimonDataset('database.table', catalog_options={'warehouse': ...}) reads",
)

_HIDDEN_MARKS = {"_delta_log": _DELTA, ".hoodie": _HUDI, "_versions": _LANCE}
_METADATA_OF_ICEBERG = re.compile(
    r"(.*)/metadata/([^/]+\.metadata\.json(\.gz)?|[^/]+-m\d+\.avro|snap-[^/]+\.avro)"
)
_SNAPSHOT_OF_PAIMON = re.compile(r"(.*)/snapshot/snapshot-\d+")
_SCHEMA_OF_PAIMON = re.compile(r"(.*)/schema/schema-\d+")
_FILES_OF_DELTA = ("_delta_log/00000000000000000000.json", "_delta_log/_last_checkpoint")
"""One of these files exists: the first entry of the log is deleted only after a checkpoint."""
_FILE_OF_HUDI = ".hoodie/hoodie.properties"
_FILE_OF_PAIMON = "schema/schema-0"

_PARTITION = re.compile(r".+=.*|[\d-]+")
"""Names of folders that hold a part of a table: ``day=1``, or in Hudi ``2024/07/01``."""
_FOLDERS_UP, _FOLDERS_UP_REMOTE = 4, 2
"""Number of folders to check above a location, beside those that are named like partitions."""
_MOST_FOLDERS_UP = 12
_MOST_LOOKS, _MOST_REMOTE_LOOKS = 1000, 48
_THREADS = 48
_NOT_LOOKED_AT = {"http", "https", "hf"}
"""Protocols where asking for a missing file is expensive, or may return a web page."""


class _Look(NamedTuple):
    """A check whose answer tells if a folder is a table."""

    folder: str
    kind: _TableFormat
    file: str | None
    """Name of the file to look for; None for any metadata of Iceberg."""


def refuse_tables(listing: Listing, files: Sequence[DataFileInfo]) -> None:
    """Check that some files of a listing are not parts of a table.

    The listing shows the contents of the folders that were listed. In the folders above them, and
    in those of files that were named, a few files are looked for that tables have.

    Args:
        listing: The files found.
        files: The files of the listing that will be read, sorted by path.

    Raises:
        OptionError: They belong to a table.
    """
    for folder, kind in _listed_tables(listing):
        if _rows_below(folder, kind, files):
            raise _refusal(folder, kind)
    looks = _looks(listing, files)
    found = partial(_is_there, listing.store)
    answers: Iterator[bool] = map(found, looks)
    if not listing.store.local and len(looks) > 1:
        answers = side_by_side(found, looks, threads=_THREADS)
    for look, answer in zip(looks, answers, strict=True):
        if answer:
            raise _refusal(look.folder, look.kind)


def _refusal(folder: str, kind: _TableFormat) -> OptionError:
    return OptionError(
        f"{folder} is a table of {kind.name}, {kind.cure}. Read as plain files it would give rows "
        "that were deleted or replaced; to have them all the same, give as_files=True"
    )


# --- in what was listed


def _listed_tables(listing: Listing) -> Iterator[tuple[str, _TableFormat]]:
    """Yield the listed folders that have the metadata of a table."""
    for hidden in sorted(listing.hidden_folders):
        folder, _, name = hidden.rpartition("/")
        if name in _HIDDEN_MARKS:
            yield folder, _HIDDEN_MARKS[name]
    snapshots: set[str] = set()
    schemas: set[str] = set()
    for file in listing.files:
        if found := _METADATA_OF_ICEBERG.fullmatch(file.path):
            yield found[1], _ICEBERG
        elif found := _SNAPSHOT_OF_PAIMON.fullmatch(file.path):
            snapshots.add(found[1])
        elif found := _SCHEMA_OF_PAIMON.fullmatch(file.path):
            schemas.add(found[1])
    for folder in sorted(snapshots & schemas):
        yield folder, _PAIMON


def _rows_below(folder: str, kind: _TableFormat, files: Sequence[DataFileInfo]) -> bool:
    """Return True if one of some sorted files is in a table and not in its metadata."""
    below = f"{folder}/"
    for place in range(bisect_left(files, below, key=lambda file: file.path), len(files)):
        path = files[place].path
        if not path.startswith(below):
            return False
        if path[len(below) :].partition("/")[0] not in kind.own:
            return True
    return False


# --- around it


def _looks(listing: Listing, files: Sequence[DataFileInfo]) -> list[_Look]:
    """Return the checks; those of folders that most of the files share come first."""
    if not files or protocol_of(files[0].path) in _NOT_LOOKED_AT:
        return []
    folders: set[tuple[str, str]] = set()
    below: tuple[str, ...] = ()
    for root in listing.walked:
        above, _, name = root.rstrip("/").rpartition("/")
        folders.add((above, name))
        below += (f"{above}/{name}/",)
    for file in files:
        if not file.path.startswith(below):
            folders.add((file.path.rpartition("/")[0], ""))
    asked: Counter[_Look] = Counter()
    for folder, child in sorted(folders):
        asked.update(_looks_from(folder, child, local=listing.store.local))
    most = _MOST_LOOKS if listing.store.local else _MOST_REMOTE_LOOKS
    return list(dict(asked.most_common(most)))


def _looks_from(folder: str, child: str, *, local: bool) -> Iterator[_Look]:
    """Yield checks for a folder and for those above it.

    ``child`` is the folder in it that the files are in, or empty. Only names that a format gives to
    folders of data lead further up than a few folders.
    """
    left = _FOLDERS_UP if local else _FOLDERS_UP_REMOTE
    for _ in range(_MOST_FOLDERS_UP):
        if not folder or folder.endswith("/"):  # there is only a root, or a bucket, above
            return
        is_partition = _PARTITION.fullmatch(child) is not None
        near = left > 0
        if near and child not in _DELTA.own:
            for file in _FILES_OF_DELTA:
                yield _Look(folder, _DELTA, file)
        if near and child not in _HUDI.own:
            yield _Look(folder, _HUDI, _FILE_OF_HUDI)
        if child == "data" or (near and is_partition) or (near and local and child != "metadata"):
            yield _Look(folder, _ICEBERG, None)
        if child.startswith("bucket-") or (near and is_partition):
            yield _Look(folder, _PAIMON, _FILE_OF_PAIMON)
        folder, _, child = folder.rpartition("/")
        left -= _PARTITION.fullmatch(child) is None


def _is_there(store: Store, look: _Look) -> bool:
    """Return True if a folder has the file; False if not, or if it is not known."""
    try:
        if look.file is not None:
            return store.status(f"{look.folder}/{look.file}") is not None
        for found in store.list(f"{look.folder}/metadata"):
            if _METADATA_OF_ICEBERG.fullmatch(found.path):
                return True
    except (AccessDeniedError, PermissionError) as error:
        logger.debug("%s may not be looked at for metadata of tables: %s", look.folder, error)
    except OSError as error:
        logger.warning("%s: it cannot be told whether it is a table: %s", look.folder, error)
    return False
