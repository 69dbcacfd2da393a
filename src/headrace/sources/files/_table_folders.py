"""Folders of table formats, which must not be read as plain files.

A table of Delta Lake, Iceberg, Paimon, Hudi or Lance keeps files whose rows were deleted or
replaced; only its metadata tells which rows are valid. So a folder with such metadata, and any part
of it, is refused, unless the user gives ``as_files=True``.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeAlias

from headrace.errors import AccessDeniedError, OptionError
from headrace.model import DataFileInfo
from headrace.storage import Listing, Store, protocol_of, side_by_side

logger = logging.getLogger(__name__)


class _TableFormat(NamedTuple):
    """A table format.

    Attributes:
        name: Its name.
        cure: Advice on how to read such a table.
        folder: Folder of a table that holds its metadata.
        mark: Pattern of the names of some files in that folder.
        own: Folders of a table that hold none of its rows.
    """

    name: str
    cure: str
    folder: str
    mark: re.Pattern[str]
    own: frozenset[str]


_NOT_SUPPORTED = "which this library does not support yet: write its current rows to plain files"
_ANY = re.compile(".*")
_DELTA = _TableFormat(
    "Delta Lake", _NOT_SUPPORTED, "_delta_log", _ANY, frozenset({"_delta_log", "_change_data"})
)
_HUDI = _TableFormat("Hudi", _NOT_SUPPORTED, ".hoodie", _ANY, frozenset({".hoodie"}))
_LANCE = _TableFormat(
    "Lance",
    "which headrace.LanceDataset(path) reads",
    "_versions",
    _ANY,
    frozenset({"_versions", "_transactions", "_indices", "_deletions"}),
)
_ICEBERG = _TableFormat(
    "Iceberg",
    "which headrace.IcebergDataset('catalog.database.table', catalog_config={...}) reads",
    "metadata",
    re.compile(r".+\.metadata\.json(\.gz)?|.+-m\d+\.avro|snap-.+\.avro"),
    frozenset({"metadata"}),
)
_PAIMON = _TableFormat(
    "Paimon",
    "which headrace.PaimonDataset('database.table', catalog_options={'warehouse': ...}) reads",
    "schema",
    re.compile(r"schema-\d+"),
    frozenset({"snapshot", "schema", "manifest", "index", "statistics", "changelog"}),
)
_BY_FOLDER = {kind.folder: kind for kind in (_DELTA, _HUDI, _LANCE, _ICEBERG, _PAIMON)}

_PART = re.compile(r".+=.*|[\d-]+|bucket-.+")
"""Names of folders that hold a part of a table: ``day=1``, ``bucket-0``, in Hudi ``2024/07/01``."""
_FOLDERS_UP, _FOLDERS_UP_REMOTE = 4, 2
"""Number of folders to check above a location, beside those that are named like parts of tables."""
_MOST_FOLDERS_UP = 12
_MOST_LOOKS, _MOST_REMOTE_LOOKS = 1000, 48
_THREADS = 48
_MOST_FILES = 1000
"""Number of files of a folder among which its metadata are looked for: a page of a listing."""
_NOT_LOOKED_AT = {"http", "https", "hf"}
"""Protocols where asking for a missing file is expensive, or may return a web page."""

_Table: TypeAlias = tuple[str, _TableFormat]
"""A folder that is, or may be, a table."""


def refuse_tables(listing: Listing, files: Sequence[DataFileInfo]) -> None:
    """Check that some files of a listing are not parts of a table.

    The listing shows the contents of the folders that were listed. In the folders above them, and
    in those of files that were named, the metadata of tables are looked for.

    Args:
        listing: The files found.
        files: The files of the listing that will be read, sorted by path.

    Raises:
        OptionError: They belong to a table.
    """
    listed = [f"{folder}/" for folder in sorted(listing.hidden_folders)]
    for file in listing.files:
        listed.append(file.path)
    tables: dict[_Table, None] = {}
    for path in listed:
        above, _, name = path.rpartition("/")
        table, _, folder = above.rpartition("/")
        kind = _BY_FOLDER.get(folder)
        if kind is not None and kind.mark.fullmatch(name):
            tables[table, kind] = None
    for folder, kind in tables:
        if _rows_below(folder, kind, files):
            raise _refusal(folder, kind)
    around = _tables_around(listing, files)
    is_table = partial(_is_table, listing.store)
    answers: Iterator[bool] = map(is_table, around)
    if not listing.store.local and len(around) > 1:
        answers = side_by_side(is_table, around, threads=_THREADS)
    for (folder, kind), answer in zip(around, answers, strict=True):
        if answer:
            raise _refusal(folder, kind)


def _refusal(folder: str, kind: _TableFormat) -> OptionError:
    return OptionError(
        f"{folder} is a table of {kind.name}, {kind.cure}. Read as plain files it would give rows "
        "that were deleted or replaced; to have them all the same, give as_files=True"
    )


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


def _tables_around(listing: Listing, files: Sequence[DataFileInfo]) -> list[_Table]:
    """Return what may be a table above the folders that were listed, or that hold named files."""
    if not files or protocol_of(files[0].path) in _NOT_LOOKED_AT:
        return []
    roots = [root.rstrip("/") for root in listing.walked]
    walked = tuple([f"{root}/" for root in roots])
    # Each folder with the folder in it that the files are in, if there is one between.
    begins = {root.rpartition("/")[::2] for root in roots}
    for file in files:
        if not file.path.startswith(walked):
            begins.add((file.path.rpartition("/")[0], ""))
    local = listing.store.local
    found: dict[_Table, None] = {}
    for folder, child in sorted(begins):
        left = _FOLDERS_UP if local else _FOLDERS_UP_REMOTE
        for _ in range(_MOST_FOLDERS_UP):
            # Only a root, or a bucket, is above a folder that ends in a slash.
            if not left or not folder or folder.endswith("/"):
                break
            is_part = _PART.fullmatch(child) is not None
            for kind in (_DELTA, _HUDI, _ICEBERG, *([_PAIMON] if is_part else [])):
                if child not in kind.own:
                    found[folder, kind] = None
            folder, _, child = folder.rpartition("/")
            left -= not is_part
    return list(found)[: _MOST_LOOKS if local else _MOST_REMOTE_LOOKS]


def _is_table(store: Store, look: _Table) -> bool:
    """Return True if a folder has the metadata of a table; False if not, or if it is not known."""
    folder, kind = look
    place = f"{folder}/{kind.folder}"
    try:
        for found in islice(store.list(place), _MOST_FILES):
            above, _, name = found.path.rpartition("/")
            if above == place and kind.mark.fullmatch(name):
                return True
    except (AccessDeniedError, PermissionError) as error:
        logger.debug("%s may not be looked at for metadata of tables: %s", folder, error)
    except OSError as error:
        logger.warning("%s: it cannot be told whether it is a table: %s", folder, error)
    return False
