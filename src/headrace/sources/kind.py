"""The kind of data at a path, by names alone: nothing is read, and torch is not imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import chain, islice

from headrace.sources.files.discovery import format_of
from headrace.storage import LocalStore

_RECORDS = re.compile(r"\.array_?record[^/]*$")
_TARS = re.compile(r"\.tar$", re.IGNORECASE)
_COMPRESSED_TARS = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_ENTRIES_LOOKED_AT = 100
_LEVELS_LOOKED_AT = 3


def kind_of(path: str) -> str | None:
    """Return the kind of data at a path, by names: lance, array-record, tar, or None.

    Also ``train.array_record-00001-of-00010``, ``train.array_record*`` and ``a.array_record[0:9]``.
    Tars are looked for in folders of a directory, too, unless a folder above them is a table.
    Compressed tars count as tars: ``TarDataset`` reports what to do with them.
    """
    here = path.removeprefix("file://")
    if path.rstrip("/").endswith(".lance") or os.path.isdir(os.path.join(here, "_versions")):
        return "lance"
    levels = _names_below(here) if os.path.isdir(here) else iter([_matches(here)])
    names = next(levels)
    if any(map(_RECORDS.search, [path, *names])):
        return "array-record"
    for some in chain([[path, *names]], levels):
        if any(map(_TARS.search, some)):
            return "tar"
        if any(map(format_of, some)):
            return None
        if any(map(_COMPRESSED_TARS.search, some)):
            return "tar"
    return None


def _names_below(folder: str) -> Iterator[list[str]]:
    """Yield some names of a directory, then some of the directories in it, and so on."""
    folders = [folder]
    for _ in range(_LEVELS_LOOKED_AT):
        found = list(islice(chain.from_iterable(map(_entries, folders)), _ENTRIES_LOOKED_AT))
        yield [entry.name for entry in found]
        folders = [one.path for one in found if one.name[0] not in "._" and one.is_dir()]


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except PermissionError:  # reading the folder will report it
        return


def _matches(pattern: str) -> list[str]:
    """Return the names of some of the files on this machine that a glob matches."""
    if "://" in pattern or not _MAGIC.search(pattern) or os.path.exists(pattern):
        return []
    found = LocalStore().glob(os.path.abspath(os.path.expanduser(pattern)))
    return [os.path.basename(status.path) for _, status in islice(found, _ENTRIES_LOOKED_AT)]
