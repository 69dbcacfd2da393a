"""``TarShards``: any sample of any tar, at once."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.options import checked_keywords
from headrace.sources.tar.buckets import (
    AspectBuckets,
    BucketRule,
    aspect_buckets,
    list_file_buckets,
    list_sample_buckets,
)
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.grouping import sample_keys
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.locate import Source
from headrace.sources.tar.opening import access_of
from headrace.sources.tar.payloads import Payloads
from headrace.sources.tar.sample import TarSample
from headrace.sources.tar.sequence import check_sizes, samples_of
from headrace.storage import Access, Options

__all__ = ["TarShard", "TarShards"]


@checked_keywords
class TarShards:
    """Samples of WebDatasets by their number: the random-access face of indexed tars.

    ``source`` is a directory, a glob, a URL or a list of them; indices lie beside the tars, in
    ``metadata``, or are made from the headers of a tar when it is first read from. A sample is all
    members whose path is the same up to the first dot of the base name. Threads may share one;
    it pickles small, and a child that was forked may go on where ``collection.fork_safe``.
    """

    def __init__(
        self,
        source: Source,
        metadata: Source | None = None,
        *,
        storage_options: Options | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        access: Access | None = None,
    ) -> None:
        """``access``: all that is to be said of stores and the cache, in place of the three before.

        What was read of tars elsewhere, indices and listings stay in ``cache_dir``, and are there
        when the store is not.
        """
        if access is None:
            access = access_of(storage_options, cache_dir, cache_bytes)
        self.collection = TarCollection.find(source, metadata=metadata, access=access)
        self.payloads = Payloads(self.collection)

    # --- what there is

    @property
    def num_shards(self) -> int:
        """Tars."""
        return len(self.collection)

    @property
    def shard_names(self) -> Sequence[str]:
        """Paths of the tars, relative to the source."""
        return self.collection.names

    def __len__(self) -> int:
        """Samples of all shards."""
        return int(self.collection.sample_counts.sum())

    def get_shard_file_count(self, shard: int) -> int:
        return len(self._index(shard))

    def get_shard_sample_count(self, shard: int) -> int:
        return self._index(shard).num_samples

    def list_files_in_shard(self, shard: int) -> list[str]:
        """The names of all members, in the order of the tar."""
        return self.open_shard(shard).file_names

    def list_samples_in_shard(self, shard: int) -> list[str]:
        """Of each sample the name of the member that it is about."""
        return self.open_shard(shard).sample_names

    def open_shard(self, shard: int) -> TarShard:
        """One of the tars, to be read from file by file or sample by sample."""
        return TarShard(self, self._number(shard))

    # --- samples

    def load_sample(
        self, shard: int, sample: int, *, max_file_size: int | str | None = None
    ) -> TarSample:
        """A sample of a shard, with all of its members.

        One with a member of more than ``max_file_size`` bytes (or "1MB") is an error before it is
        read.
        """
        shard = self._number(shard)
        index, path = self.collection.index(shard), self._paths[shard]
        number, members = _members(index, sample, path)
        check_sizes(path, index, members, max_file_size)
        payloads = self.payloads.of_index(shard, index, members)
        return TarSample(index, shard, path, number, members, payloads)

    def load_samples(
        self, samples: Sequence[tuple[int, int]], *, max_file_size: int | str | None = None
    ) -> list[TarSample]:
        """Many samples, each by its shard and its number there, in the order asked for.

        Of tars elsewhere all are fetched side by side, by as few requests as can be.
        """
        shards = [self._number(shard) for shard, _ in samples]
        indexes = [self.collection.index(shard) for shard in shards]
        found = [
            _members(index, sample, self._paths[shard])
            for shard, index, (_, sample) in zip(shards, indexes, samples, strict=True)
        ]
        for shard, index, (_, members) in zip(shards, indexes, found, strict=True):
            check_sizes(self._paths[shard], index, members, max_file_size)
        lengths = [len(members) for _, members in found]
        payloads = iter(
            self.payloads.read_many(
                np.repeat(shards, lengths), [member for _, members in found for member in members]
            )
        )
        return [
            TarSample(
                index, shard, self._paths[shard], number, members, [*islice(payloads, len(members))]
            )
            for shard, index, (number, members) in zip(shards, indexes, found, strict=True)
        ]

    def samples(
        self, shard: int | None = None, *, max_file_size: int | str | None = None
    ) -> Iterator[TarSample]:
        """All samples one after the other, of one shard or of all; read ahead where that pays."""
        shards = range(self.num_shards) if shard is None else [self._number(shard)]
        return samples_of(self.payloads, shards, max_file_size)

    __iter__ = samples

    # --- aspect buckets

    def list_shard_aspect_buckets(
        self, shards: Sequence[int] | None = None, **rule: Any
    ) -> list[dict[str, Any]]:
        """Of each shard all members whose shape is known, in buckets.

        ``rule``: ``key``, ``target_pixel_area``, ``target_resolution_multiple``, ``round_to``.
        """
        wanted = self._numbers(shards)
        return list_file_buckets(
            wanted, self.collection.index, self.shard_names, BucketRule(**rule)
        )

    def list_shard_sample_aspect_buckets(
        self, shards: Sequence[int] | None = None, **rule: Any
    ) -> list[dict[str, Any]]:
        """Of each shard all samples in buckets, by the shape of the member that each is about."""
        wanted = self._numbers(shards)
        return list_sample_buckets(
            wanted, self.collection.index, self.shard_names, BucketRule(**rule)
        )

    def aspect_buckets(self, shards: Sequence[int] | None = None, **rule: Any) -> AspectBuckets:
        """All samples of the data set, or of some shards, in buckets, as arrays."""
        return aspect_buckets(
            self.collection.index,
            self.collection.sample_counts,
            shards=self._numbers(shards),
            **rule,
        )

    # --- numbers

    @property
    def _paths(self) -> list[str]:
        return self.collection.files.paths

    def _index(self, shard: int) -> TarIndex:
        return self.collection.index(self._number(shard))

    def _number(self, shard: int) -> int:
        count = len(self._paths)
        number = operator.index(shard)
        if not -count <= number < count:
            raise IndexError(f"there is no shard {number}: there are {count}")
        return number % count

    def _numbers(self, shards: Sequence[int] | None) -> list[int]:
        return [*range(self.num_shards)] if shards is None else [*map(self._number, shards)]

    def __repr__(self) -> str:
        return f"<TarShards: {self.num_shards} shards>"


class TarShard:
    """One tar of many. What it gives is read when it is asked for."""

    def __init__(self, shards: TarShards, number: int) -> None:
        self._shards = shards
        self._index = shards.collection.index(number)
        self.number = number
        self.name = shards.shard_names[number]
        self.path = shards.collection.files.paths[number]

    def __len__(self) -> int:
        """Samples."""
        return self._index.num_samples

    @property
    def file_names(self) -> list[str]:
        """The names of all members, in the order of the tar."""
        names: list[str] = self._index.names.to_pylist()
        return names

    @property
    def sample_names(self) -> list[str]:
        """Of each sample the name of the member that it is about."""
        names: list[str] = self._index.names.take(pa.array(self._index.primary_members)).to_pylist()
        return names

    @property
    def keys(self) -> list[str]:
        """What the names of the members of each sample begin with."""
        names = self._index.names.take(pa.array(self._index.primary_members))
        keys: list[str] = sample_keys(names).to_pylist()
        return keys

    def read_file(self, file: int) -> bytes:
        """A member, by its place among ``file_names``."""
        count, number = len(self._index), operator.index(file)
        if not -count <= number < count:
            raise IndexError(f"{self.path} has no file {number}: it has {count}")
        return self._read(number % count)

    def read_sample(self, sample: int) -> bytes:
        """The payload of the member that a sample is about."""
        number, _ = _members(self._index, sample, self.path)
        return self._read(self._index.primary_members.item(number))

    def read_sample_json(self, sample: int) -> bytes | None:
        """The JSON sidecar of a sample as it lies in the tar; None where there is none."""
        _, members = _members(self._index, sample, self.path)
        grouping = self._index.grouping
        for member in members:
            if grouping.field_names[grouping.fields[member]] == "json":
                return self._read(member)
        return None

    def load_sample(self, sample: int, *, max_file_size: int | str | None = None) -> TarSample:
        """A sample with all of its members."""
        return self._shards.load_sample(self.number, sample, max_file_size=max_file_size)

    def _read(self, member: int) -> bytes:
        return self._shards.payloads.of_index(self.number, self._index, [member])[0]

    def __repr__(self) -> str:
        return f"<TarShard {self.name}: {len(self)} samples in {len(self._index)} files>"


def _members(index: TarIndex, sample: int, path: str) -> tuple[int, list[int]]:
    """The number of a sample, counted from the beginning, and its members."""
    starts, members = index.sample_members
    count, number = len(starts) - 1, operator.index(sample)
    if number < 0:
        number += count
    if not 0 <= number < count:
        raise IndexError(f"{path} has no sample {sample}: it has {count}")
    mine: list[int] = members[starts.item(number) : starts.item(number + 1)].tolist()
    return number, mine
