"""``penstock.open``: the dataset that fits a location."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from penstock.errors import OptionError
from penstock.loader.array_record import ArrayRecordDataset
from penstock.loader.dataset import TabularDataset
from penstock.loader.iceberg import IcebergDataset
from penstock.loader.lance import LanceDataset
from penstock.loader.paimon import PaimonDataset
from penstock.loader.settings import PathLike
from penstock.loader.structured import StructuredDataset
from penstock.loader.tar import TarDataset
from penstock.loader.video_frames import VideoFramesDataset

__all__ = ["kind_of", "open_dataset"]

_RECORDS = re.compile(r"\.array_?record[^/]*$")
_TARS = re.compile(r"\.tar$", re.IGNORECASE)
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


def open_dataset(location: PathLike | Sequence[PathLike], **options: Any) -> TabularDataset:
    """The dataset for what lies at a location, with the keywords of that dataset.

    Lance tables, ArrayRecord files and tars are known by their names or by what is in their
    directory.
    ``catalog_config`` makes it an Iceberg table, ``catalog_options`` a Paimon table, and windows
    (``window_length``, ``hop_size``, ``frame_skip``) make it video frames. All else are tabular
    files, whose format is that of their extensions.
    """
    for option, dataset in _OF_OPTION.items():
        if option in options:
            return dataset(location, **options)  # type: ignore[arg-type]
    if not isinstance(location, str | os.PathLike):
        location = list(location)
    named = location if isinstance(location, list) else [location]
    path = os.fspath(named[0]) if named else ""
    kind = kind_of(path)
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
    """What lies at a path by its name, or by the names in its directory: lance, array-record, tar.

    Also ``train.array_record-00001-of-00010``, ``train.array_record*`` and ``a.array_record[0:9]``.
    """
    here = path.removeprefix("file://")
    names: list[str] = []
    if os.path.isdir(here):
        with os.scandir(here) as entries:
            names = [entry.name for entry in islice(entries, _ENTRIES_LOOKED_AT)]
    if path.rstrip("/").endswith(".lance") or os.path.isdir(os.path.join(here, "_versions")):
        return "lance"
    if any(map(_RECORDS.search, [path, *names])):
        return "array-record"
    return "tar" if any(map(_TARS.search, [path, *names])) else None
