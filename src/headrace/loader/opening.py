"""``headrace.open``: the dataset that fits a location."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from headrace.errors import OptionError
from headrace.formats.registry import format_of
from headrace.loader.array_record import ArrayRecordDataset
from headrace.loader.dataset import TabularDataset
from headrace.loader.iceberg import IcebergDataset
from headrace.loader.lance import LanceDataset
from headrace.loader.paimon import PaimonDataset
from headrace.loader.settings import PathLike
from headrace.loader.structured import StructuredDataset
from headrace.loader.tar import TarDataset
from headrace.loader.video_frames import VideoFramesDataset
from headrace.storage import LocalStore

__all__ = ["kind_of", "open_dataset"]

_RECORDS = re.compile(r"\.array_?record[^/]*$")
_TARS = re.compile(r"\.tar$", re.IGNORECASE)
_COMPRESSED_TARS = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_OF_OPTION: dict[str, type[TabularDataset]] = {
    "catalog_config": IcebergDataset,
    "catalog_options": PaimonDataset,
    "window_length": VideoFramesDataset,
    "frame_skip": VideoFramesDataset,
    "hop_size": VideoFramesDataset,
    "min_video_frames": VideoFramesDataset,
    "layout": VideoFramesDataset,
}
_ENTRIES_LOOKED_AT = 100
_LEVELS_LOOKED_AT = 3


def open_dataset(location: PathLike | Sequence[PathLike], **options: Any) -> TabularDataset:
    """The dataset for what lies at a location, with the keywords of that dataset.

    Lance tables, ArrayRecord files and tars are known by their names or by what is in their
    directory; a directory elsewhere that holds tars has to be opened as ``TarDataset``.
    ``catalog_config`` makes it an Iceberg table, ``catalog_options`` a Paimon table, and windows
    (``window_length``, ``hop_size``, ``frame_skip``) make it video frames. All else are tabular
    files, whose format is that of their extensions. Folders of other tables are refused, unless
    ``as_files=True`` says that they are to be read as tabular files.
    """
    for option, dataset in _OF_OPTION.items():
        if option in options:
            return dataset(location, **options)  # type: ignore[arg-type]
    if not isinstance(location, str | os.PathLike):
        location = list(location)
    named = location if isinstance(location, list) else [location]
    path = os.fspath(named[0]) if named else ""
    kind = None if options.get("as_files") else kind_of(path)
    if kind == "lance":
        if len(named) > 1:
            raise OptionError("a Lance table is opened by itself, and not in a list")
        return LanceDataset(path, **options)
    if kind == "array-record":
        return ArrayRecordDataset(location, **options)
    if kind == "tar":
        return TarDataset(location, **options)
    return StructuredDataset(location, **{"format": None, **options})


def kind_of(path: str) -> str | None:
    """What lies at a path by its name, or by names that are there: lance, array-record, tar.

    Also ``train.array_record-00001-of-00010``, ``train.array_record*`` and ``a.array_record[0:9]``.
    Tars are looked for in folders of a directory, too, as far as nothing above them is a table.
    Compressed ones are tars, of which ``TarDataset`` says what is to be done.
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
    """Some names of a directory, then some of the directories in it, and so on."""
    folders = [folder]
    for _ in range(_LEVELS_LOOKED_AT):
        found = list(islice(chain.from_iterable(map(_entries, folders)), _ENTRIES_LOOKED_AT))
        yield [entry.name for entry in found]
        folders = [one.path for one in found if one.name[0] not in "._" and one.is_dir()]


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except PermissionError:  # who reads it will say so
        return


def _matches(pattern: str) -> list[str]:
    """Some names of what a glob on this machine matches."""
    if "://" in pattern or not _MAGIC.search(pattern) or os.path.exists(pattern):
        return []
    found = LocalStore().glob(os.path.abspath(os.path.expanduser(pattern)))
    return [os.path.basename(status.path) for _, status in islice(found, _ENTRIES_LOOKED_AT)]
