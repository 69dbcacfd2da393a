"""Samples of tars, with the names that their members have."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.errors import StaleIndexError
from headrace.model import computed_once
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.grouping import WHOLE, Int32Array
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.payloads import Payloads
from headrace.sources.tar.sidecars import Captions, is_captions
from headrace.storage import Access
from headrace.write.tar_members import KEY
from headrace.write.tar_samples import Arriving, Place, Sample, digest_of, numbered_key
from headrace.write.tar_shard import Captioned

__all__ = ["TarSamples"]

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 8 << 20
"""of payloads that are read at once"""


@dataclass(frozen=True)
class TarSamples:
    """The samples of tars, tar by tar, with the captions that their indices have.

    Files that belong to no sample are left out.
    """

    collection: TarCollection
    payloads: Payloads
    named: Sequence[str]
    keys: str
    """keep, prefix or number"""

    @classmethod
    def of(
        cls,
        source: Any,
        named: Sequence[str],
        metadata: str | os.PathLike[str] | None,
        access: Access,
        keys: str,
    ) -> TarSamples:
        """Those of a path or of several, which the user calls so."""
        collection = TarCollection.find(source, metadata=metadata, access=access)
        return cls(collection, Payloads(collection), named, keys)

    @property
    def facts(self) -> Mapping[str, str]:
        files = self.collection.files
        lines = (f"{file.path}\0{file.file_size}\0{file.etag}" for file in files)
        return {"source_files": digest_of(lines)}

    @property
    def paths(self) -> Sequence[str]:
        return self.collection.files.paths

    def read(self, place: Place, number: int) -> Arriving:
        first, done = place
        for shard in range(first, len(self.collection)):
            for sample in self._samples(shard, done, number):
                done, number = done + 1, number + 1
                yield (shard, done), sample
            done = 0

    def share(self, place: Place) -> float:
        shard, done = place
        before, total = self._bytes_before[shard], max(self._bytes_before[-1], 1)
        if not done:
            return float(before / total)
        size = self._bytes_before[shard + 1] - before
        return float((before + size * done / self.collection.index(shard).num_samples) / total)

    @computed_once
    def _bytes_before(self) -> Any:
        sizes = [max(file.file_size or 1, 1) for file in self.collection.files]
        return np.concatenate([[0], np.cumsum(sizes)])

    def _samples(self, shard: int, first: int, number: int) -> Iterator[Sample]:
        index = self.collection.index(shard)
        starts, members = index.sample_members
        if len(members) < len(index):
            path, left = self.collection.files[shard].path, len(index) - len(members)
            logger.info("%s: %d files belong to no sample and are left out", path, left)
        for start, stop in _blocks(index, first):
            taken = members[starts[start] : starts[stop]]
            names = index.names.take(taken).to_pylist()
            payloads = self._with_captions(shard, taken, self.payloads.read(shard, taken))
            edges = (starts[start : stop + 1] - starts[start]).tolist()
            for sample, (low, high) in enumerate(pairwise(edges), start):
                fields = dict(zip(map(_field, names[low:high]), payloads[low:high], strict=True))
                key = self._key(shard, names[low], number + sample - first)
                yield {KEY: key, **fields}

    def _with_captions(
        self, shard: int, members: Int32Array, payloads: list[bytes]
    ) -> list[bytes | Captioned]:
        index = self.collection.index(shard)
        if index.captions is None:
            return [*payloads]
        texts = index.captions.take(members).to_pylist()
        return [
            payload if text is None else Captioned(payload, self._captions(shard, member, text))
            for member, text, payload in zip(members.tolist(), texts, payloads, strict=True)
        ]

    def _captions(self, shard: int, member: int, text: str) -> Captions:
        try:
            captions = json.loads(text)
        except ValueError:
            captions = None
        if is_captions(captions):
            return captions
        path, name = self.collection.files[shard].path, self.collection.index(shard).name(member)
        raise StaleIndexError(
            f"the index of {path} is damaged at the captions of {name}; make it anew with: "
            "headrace index"
        )

    def _key(self, shard: int, name: str, number: int) -> str:
        if self.keys == "number":
            return numbered_key(number)
        folder, slash, base = name.rpartition("/")
        key = folder + slash + base.partition(".")[0]
        while key.startswith("./"):
            key = key[2:]
        if self.keys == "prefix":
            return f"{self.collection.names[shard].removesuffix('.tar')}/{key}"
        return key


def _field(name: str) -> str:
    base = name.rpartition("/")[2]
    return base.partition(".")[2] or WHOLE


def _blocks(index: TarIndex, first: int) -> Iterator[tuple[int, int]]:
    """Runs of samples whose payloads are about so many bytes."""
    starts, members = index.sample_members
    before = np.concatenate([[0], np.cumsum(index.sizes[members])])[starts]
    while first < index.num_samples:
        stop = int(np.searchsorted(before, before[first] + _BLOCK_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), index.num_samples)
        yield first, stop
        first = stop
