"""Files of a folder as samples: those whose paths are the same up to the first dot of the name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

import numpy as np

from headrace.errors import OptionError
from headrace.model import DataFileInfo, computed_once
from headrace.sources.files.failures import naming
from headrace.sources.tar.grouping import WHOLE
from headrace.storage import FileStatus, Listing, Store
from headrace.storage.store import UNKNOWN_SIZE
from headrace.write.tar_members import KEY
from headrace.write.tar_samples import Arriving, Place, Sample, digest_of, numbered_key, read_ahead
from headrace.write.tar_shard import Pieces

__all__ = ["FolderSamples"]

_WHOLE_BYTES = 4 << 20
"""of a file that is read at once"""


@dataclass(frozen=True, slots=True)
class _File:
    key: str
    field: str
    status: FileStatus


@dataclass(frozen=True)
class FolderSamples:
    """Samples by their keys, which are paths below the folder."""

    store: Store
    groups: Sequence[Sequence[_File]]
    named: Sequence[str]
    numbered: bool
    """whether samples are known by their numbers, and not by their paths"""

    @classmethod
    def of(cls, listing: Listing, *, numbered: bool = False) -> FolderSamples:
        """All files of a listing."""
        root = _common([*listing.roots])
        files = sorted(
            (_file(status, root) for status in listing.files), key=lambda one: (one.key, one.field)
        )
        groups = [list(group) for _, group in groupby(files, key=lambda one: one.key)]
        return cls(listing.store, groups, listing.locations, numbered)

    @property
    def facts(self) -> Mapping[str, str]:
        statuses = (file.status for group in self.groups for file in group)
        lines = (f"{status.path}\0{status.size}\0{status.etag}" for status in statuses)
        return {"source_files": digest_of(lines)}

    @property
    def paths(self) -> Sequence[str]:
        return [file.status.path for group in self.groups for file in group]

    def read(self, place: Place, number: int) -> Arriving:
        numbers = range(place[0], len(self.groups))
        for read, sample in zip(numbers, read_ahead(self._sample, numbers), strict=True):
            yield (read + 1, 0), sample

    def share(self, place: Place) -> float:
        return float(self._bytes_before[place[0]] / max(self._bytes_before[-1], 1))

    @computed_once
    def _bytes_before(self) -> Any:
        sizes = [sum(max(file.status.size, 1) for file in group) for group in self.groups]
        return np.concatenate([[0], np.cumsum(sizes)])

    def _sample(self, number: int) -> Sample:
        group = self.groups[number]
        sample: dict[str, Any] = {KEY: numbered_key(number) if self.numbered else group[0].key}
        for file in group:
            sample[file.field] = self._payload(file.status)
        return sample

    def _payload(self, status: FileStatus) -> bytes | Pieces:
        size = None if status.size == UNKNOWN_SIZE else status.size
        file = DataFileInfo(status.path, file_size=size, etag=status.etag)
        if size is not None and size > _WHOLE_BYTES:
            return Pieces(size, self._pieces(file))
        with naming(status.path), self.store.open(file) as opened:
            data: bytes = opened.read()
            return data

    def _pieces(self, file: DataFileInfo) -> Iterator[bytes]:
        with naming(file.path), self.store.open(file) as opened:
            while data := opened.read(_WHOLE_BYTES):
                yield data


def _file(status: FileStatus, root: str) -> _File:
    path = status.path[len(root) :].lstrip("/")
    folder, slash, base = path.rpartition("/")
    name, dot, field = base.partition(".")
    if dot and not field:
        raise OptionError(f"{status.path} ends in a dot, so that it is no field; rename it")
    return _File(folder + slash + name, field if dot else WHOLE, status)


def _common(roots: Sequence[str]) -> str:
    """The folder that all roots are in."""
    if len(set(roots)) == 1:
        return roots[0]
    parts = [root.rstrip("/").split("/") for root in roots]
    same = list(takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False)))
    return "/".join(level[0] for level in same)
