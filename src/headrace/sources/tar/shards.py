"""``TarShards``: any file and any sample of any tar, by number or by name."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError, SchemaError
from headrace.options import checked_keywords, parse_bytes
from headrace.sources.tar._geometry import image_size
from headrace.sources.tar._locate import TarLocation, access_of
from headrace.sources.tar.buckets import (
    AspectBuckets,
    BucketRule,
    aspect_buckets,
    list_buckets,
)
from headrace.sources.tar.checks import check_file_sizes
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.grouping import SampleKey, sample_keys
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.payloads import Payloads, cut_by_bytes
from headrace.sources.tar.sidecars import TEXT_FIELDS, canonical_captions, text_caption
from headrace.storage import Access, Options, side_by_side

Shard = int | str
"""A tar: its number, or its name with or without ".tar"."""
Oversized = Literal["raise", "skip"]
_LOCAL_BLOCK_BYTES, _REMOTE_BLOCK_BYTES = 1 << 20, 8 << 20
_BLOCKS_AHEAD = 3
_Bytes = bytes
"""The type; a sample has an attribute of that name."""


class TarFile(NamedTuple):
    """A member of a tar."""

    shard: int
    """The number of its tar."""
    number: int
    """Its place in the tar."""
    path: str
    offset: int
    size: int
    bytes: bytes


class SamplePair(NamedTuple):
    """A key that two data sets have, with the shard and number of its sample in each."""

    key: str
    left: tuple[int, int]
    right: tuple[int, int]


@dataclass(slots=True, eq=False, repr=False)
class TarSample:
    """A sample whose payloads are in memory. Everything else is looked up on request.

    Attributes:
        shard: The number of its tar.
        number: Its number among the samples of its tar.
    """

    shard: int
    number: int
    _shard_path: str
    _index: TarIndex
    _members: Sequence[int]
    _payloads: Sequence[_Bytes]

    @property
    def _primary(self) -> int:
        return self._index.primary_members.item(self.number)

    @property
    def data(self) -> bytes:
        """The payload of the primary member: the image, video or sound of the sample."""
        return self._payloads[self._members.index(self._primary)]

    bytes = data

    @property
    def path(self) -> str:
        """The name of the primary member."""
        return self._index.name(self._primary)

    @property
    def key(self) -> str:
        """The key that all members share."""
        names = self._index.names.slice(self._primary, 1)
        key: str = sample_keys(names, self._index.grouping.sample_key)[0].as_py()
        return key

    @property
    def offset(self) -> int:
        """The position of the primary payload in the tar."""
        return int(self._index.offsets[self._primary])

    @property
    def size(self) -> int:
        """The length of the primary payload."""
        return int(self._index.sizes[self._primary])

    @property
    def fields(self) -> Mapping[str, Any]:
        """All payloads by field, in the order of the tar."""
        grouping = self._index.grouping
        names, field = grouping.field_names, grouping.fields.item
        payloads = self._payloads
        return {names[field(one)]: payloads[place] for place, one in enumerate(self._members)}

    @property
    def json(self) -> Any:
        """The JSON sidecar, from the index if that embeds it; None without one."""
        embedded = _text(self._index.json, self._primary)
        if embedded is not None:
            return json.loads(embedded)
        found = self.fields.get("json")
        if found is None:
            return None
        try:
            return json.loads(found.decode())
        except (ValueError, RecursionError) as error:
            raise ReadError(
                f"{self._shard_path}: the JSON of {self.path!r} cannot be read: {error}"
            ) from None

    @property
    def captions(self) -> str | list[str] | None:
        """The captions in the index, else in the JSON sidecar, else in a text sidecar."""
        text = _text(self._index.captions, self._primary)
        if text is not None:
            found: str | list[str] = json.loads(text)
            return found
        captions = canonical_captions(self.json)
        if captions is not None:
            return captions
        fields = self.fields
        texts = (text_caption(fields[name]) for name in TEXT_FIELDS if name in fields)
        return next(texts, None)

    @property
    def width(self) -> int | None:
        """The width of the image, in pixels."""
        return self._shape[0]

    @property
    def height(self) -> int | None:
        """The height of the image, in pixels."""
        return self._shape[1]

    @property
    def aspect(self) -> float | None:
        """The width divided by the height."""
        width, height = self._shape
        return width / height if width and height else None

    @property
    def _shape(self) -> tuple[int | None, int | None]:
        """Width and height in the index, or else in the image itself."""
        widths, heights = self._index.widths, self._index.heights
        if widths is not None and heights is not None and widths[self._primary] > 0:
            return int(widths[self._primary]), int(heights[self._primary])
        return image_size(self.data) or (None, None)

    def __repr__(self) -> str:
        return f"<TarSample {self.path!r} of {self._shard_path}: {', '.join(self.fields)}>"


def _text(column: pa.StringArray | None, row: int) -> str | None:
    text: str | None = None if column is None else column[row].as_py()
    return text


@dataclass(frozen=True, slots=True)
class _SampleRun:
    """Samples or files of a tar that are read together, with the members of each."""

    shard: int
    numbers: list[int]
    members: list[list[int]]


@checked_keywords
class TarShards:
    """Files and samples of indexed tars, by number or by name.

    Threads may share one. Its pickle is small, and a forked child may continue to use it if
    ``collection.fork_safe``.

    Args:
        source: A tar, a directory, a glob, a URL or a list of them.
        metadata: Where the indexes lie, if not beside the tars. A tar without one is scanned when
            it is first read from.
        sample_key: How the key of a sample follows from the names of its members: "first-dot",
            "last-dot", or a function of a name that returns the key, or None for no sample.
        storage_options: Options of the store.
        cache_dir: Folder for indexes, listings and bytes that were read from remote tars.
        cache_bytes: Largest size of that folder.
        access: Replaces the three arguments before.

    Examples:
        ```python
        from headrace import TarShards, TarWriter

        with TarWriter("tars/", shard_samples=50) as writer:
            for number in range(100):
                writer.write({"__key__": f"{number:04d}", "txt": f"text {number}"})
        shards = TarShards("tars/")
        assert shards.num_shards == 2
        assert shards.get_shard_sample_count(0) == 50
        ```
    """

    def __init__(
        self,
        source: TarLocation,
        metadata: TarLocation | None = None,
        *,
        sample_key: SampleKey | None = None,
        storage_options: Options | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        access: Access | None = None,
    ) -> None:
        if access is None:
            access = access_of(storage_options, cache_dir, cache_bytes)
        self.collection = TarCollection.find(
            source, metadata=metadata, access=access, sample_key=sample_key
        )
        self.payloads = Payloads(self.collection)
        self._paths = self.collection.files.paths

    # --- what there is

    @property
    def num_shards(self) -> int:
        """The number of tars."""
        return len(self.collection)

    @property
    def shard_names(self) -> Sequence[str]:
        """Paths of the tars, relative to the source."""
        return self.collection.names

    def __len__(self) -> int:
        """Return the number of samples of all tars."""
        return int(self.collection.sample_counts.sum())

    def get_shard_file_count(self, shard: Shard) -> int:
        """Return the number of members of a tar."""
        return len(self._index(shard))

    def get_shard_sample_count(self, shard: Shard) -> int:
        """Return the number of samples of a tar."""
        return self._index(shard).num_samples

    def list_files_in_shard(self, shard: Shard) -> list[str]:
        """Return the names of all members, in the order of the tar."""
        return self.open_shard(shard).file_names

    def list_samples_in_shard(self, shard: Shard) -> list[str]:
        """Return the name of the primary member of each sample."""
        return self.open_shard(shard).sample_names

    def open_shard(self, shard: Shard) -> TarShard:
        """Return one of the tars, to be read from file by file or sample by sample."""
        return TarShard(self, self._number(shard))

    def probe_caption_layout(self, max_shards: int = 16) -> dict[str, Any]:
        """Find out from indexes where captions are, without reading members.

        Returns:
            ``layout``: "embedded" in the index, "json_sidecar", "txt_sidecar", "mixed" or "none";
            and the number of samples of each, and of all that were looked at.
        """
        counts = dict.fromkeys(["embedded", "json_sidecar", "txt_sidecar", "none"], 0)
        for shard in range(min(max_shards, self.num_shards)):
            index = self.collection.index(shard)
            where = np.full(index.num_samples, "none", object)
            for layout, fields in (("txt_sidecar", TEXT_FIELDS), ("json_sidecar", ("json",))):
                for field in fields:
                    members = index.members_as(field)
                    where[(members >= 0) & (members != index.primary_members)] = layout
            if index.captions is not None:
                captions = index.captions.take(pa.array(index.primary_members))
                where[captions.is_valid().to_numpy(zero_copy_only=False)] = "embedded"
            for layout in counts:
                counts[layout] += int((where == layout).sum())
        found = [layout for layout, count in counts.items() if count and layout != "none"]
        layout = "mixed" if len(found) > 1 else next(iter(found), "none")
        return {"layout": layout, "samples": sum(counts.values()), **counts}

    # --- files

    def read_files_batch(self, files: Sequence[tuple[Shard, int | str]]) -> list[bytes]:
        """Return members by their shard and their number or name, in the order asked for.

        Those of remote tars are fetched side by side, by as few requests as possible.
        """
        shards = [self._number(shard) for shard, _ in files]
        members = [
            _member(self.collection.index(shard), file, self._paths[shard])
            for shard, (_, file) in zip(shards, files, strict=True)
        ]
        return self.payloads.read_many(shards, members)

    def files(
        self,
        shard: Shard | Sequence[Shard] | None = None,
        start: int = 0,
        stop: int | None = None,
        *,
        max_file_size: int | str | None = None,
        oversized: Oversized = "raise",
    ) -> Iterator[TarFile]:
        """Yield members one after the other, read ahead where that pays.

        Args:
            shard: The tars; None for all.
            start: The first file, counted over these tars.
            stop: The file before which to stop; None for all.
            max_file_size: The largest member to read.
            oversized: Whether larger ones are errors or are left out.
        """
        numbers = self._numbers(shard)
        runs = self._runs(numbers, start, stop, max_file_size, oversized, by_sample=False)
        for run, payloads in self._read(runs):
            index = self.collection.index(run.shard)
            for number, data in zip(run.numbers, payloads, strict=True):
                offset, size = index.offsets.item(number), index.sizes.item(number)
                yield TarFile(run.shard, number, index.name(number), offset, size, data)

    # --- samples

    def load_sample(
        self, shard: Shard, sample: int | str, *, max_file_size: int | str | None = None
    ) -> TarSample:
        """Return a sample of a tar, with all of its members.

        Args:
            shard: The number or name of the tar.
            sample: The number of the sample, its key, or the name of one of its members.
            max_file_size: The largest member to read (bytes, or "1MB"); a larger one is an error.
        """
        tar = self._number(shard)
        index, number, members = self._located(tar, sample, max_file_size)
        payloads = self.payloads.read(tar, members, index)
        return TarSample(tar, number, self._paths[tar], index, members, payloads)

    def load_samples(
        self,
        samples: Sequence[tuple[Shard, int | str]],
        *,
        max_file_size: int | str | None = None,
    ) -> list[TarSample]:
        """Return many samples, each by its shard and its number or name, in the order asked for.

        Those of remote tars are fetched side by side, by as few requests as possible.
        """
        shards = [self._number(shard) for shard, _ in samples]
        found = [
            self._located(shard, sample, max_file_size)
            for shard, (_, sample) in zip(shards, samples, strict=True)
        ]
        wanted = [len(members) for *_, members in found]
        flat = list(chain.from_iterable(members for *_, members in found))
        payloads = iter(self.payloads.read_many(np.repeat(shards, wanted), flat))
        return [
            TarSample(shard, number, self._paths[shard], index, members, [*islice(payloads, count)])
            for shard, count, (index, number, members) in zip(shards, wanted, found, strict=True)
        ]

    def _located(
        self, shard: int, sample: int | str, max_file_size: int | str | None
    ) -> tuple[TarIndex, int, list[int]]:
        """Return the index of a tar, the number of a sample, and its members."""
        index, path = self.collection.index(shard), self._paths[shard]
        number, members = _members(index, sample, path)
        if max_file_size is not None:
            limit = parse_bytes("max_file_size", max_file_size)
            check_file_sizes(path, index, np.array(members), limit)
        return index, number, members

    def samples(
        self,
        shard: Shard | Sequence[Shard] | None = None,
        *,
        max_file_size: int | str | None = None,
        oversized: Oversized = "raise",
    ) -> Iterator[TarSample]:
        """Yield samples one after the other, read ahead where that pays.

        Args:
            shard: The tars; None for all.
            max_file_size: The largest member to read.
            oversized: Whether samples with larger ones are errors or are left out.
        """
        numbers = self._numbers(shard)
        return self._samples(self._runs(numbers, 0, None, max_file_size, oversized, by_sample=True))

    __iter__ = samples

    def _samples(self, runs: Iterator[_SampleRun]) -> Iterator[TarSample]:
        for run, payloads in self._read(runs):
            index, path = self.collection.index(run.shard), self._paths[run.shard]
            of_run = iter(payloads)
            for number, members in zip(run.numbers, run.members, strict=True):
                data = [*islice(of_run, len(members))]
                yield TarSample(run.shard, number, path, index, members, data)

    def pairs(self, other: TarShards, *, strict: bool = True) -> list[SamplePair]:
        """Return the samples that have the same key in two data sets, in the order of this one.

        Args:
            other: The other data set.
            strict: False leaves out samples whose key only one of them has.

        Raises:
            SchemaError: A key comes twice in a data set, or under ``strict`` in only one of them.
        """
        mine, others = self._samples_by_key(), other._samples_by_key()
        alone = sorted(mine.keys() ^ others.keys())
        if strict and alone:
            raise SchemaError(
                f"{len(alone):,} keys are in one data set only, such as {alone[0]!r}; "
                "strict=False leaves them out"
            )
        return [SamplePair(key, at, others[key]) for key, at in mine.items() if key in others]

    def _samples_by_key(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for shard in range(self.num_shards):
            for number, key in enumerate(self.open_shard(shard).keys):
                if key in found:
                    raise SchemaError(
                        f"the key {key!r} comes a second time, in {self.shard_names[shard]}"
                    )
                found[key] = shard, number
        return found

    # --- reading

    def _read(self, runs: Iterable[_SampleRun]) -> Iterator[tuple[_SampleRun, list[bytes]]]:
        """Yield runs with the payloads of all of their members, read ahead where that pays."""
        if self.collection.store.local:
            return map(self._payloads_of, runs)
        return side_by_side(self._payloads_of, runs, threads=_BLOCKS_AHEAD, ahead=_BLOCKS_AHEAD)

    def _payloads_of(self, run: _SampleRun) -> tuple[_SampleRun, list[bytes]]:
        return run, self.payloads.read(run.shard, [*chain.from_iterable(run.members)])

    def _runs(
        self,
        shards: Sequence[int],
        start: int,
        stop: int | None,
        max_file_size: int | str | None,
        oversized: Oversized,
        *,
        by_sample: bool,
    ) -> Iterator[_SampleRun]:
        """Yield samples or files in runs that are read together.

        Args:
            shards: The tars.
            start: The first sample or file, counted over these tars.
            stop: The sample or file before which to stop; None for all.
            max_file_size: The largest member to read.
            oversized: "raise", or "skip" to leave out samples with larger members.
            by_sample: True for samples, False for files.
        """
        limit = None if max_file_size is None else parse_bytes("max_file_size", max_file_size)
        most = _LOCAL_BLOCK_BYTES if self.collection.store.local else _REMOTE_BLOCK_BYTES
        before = 0
        for number in shards:
            if stop is not None and before >= stop:
                return
            index = self.collection.index(number)
            every = np.arange(len(index) + 1)
            starts, members = index.sample_members if by_sample else (every, every[:-1])
            last = None if stop is None else stop - before
            wanted = np.arange(len(starts) - 1)[max(start - before, 0) : last]
            before += len(starts) - 1
            if not len(wanted):
                continue
            sizes, edges = index.sizes[members], starts.tolist()
            if limit is not None:
                allowed = np.maximum.reduceat(sizes, starts[:-1])[wanted] <= limit
                if oversized == "raise":
                    for one in wanted[~allowed][:1].tolist():
                        some = members[edges[one] : edges[one + 1]]
                        check_file_sizes(self._paths[number], index, some, limit)
                wanted = wanted[allowed]
            totals = np.add.reduceat(sizes, starts[:-1])[wanted]
            for run in cut_by_bytes(wanted, totals, most):
                own = [members[edges[one] : edges[one + 1]].tolist() for one in run.tolist()]
                yield _SampleRun(number, run.tolist(), own)

    # --- aspect buckets

    def list_shard_aspect_buckets(
        self, shards: Sequence[Shard] | None = None, **rule: Any
    ) -> list[dict[str, Any]]:
        """Return the buckets of all members of each tar whose shape is known.

        ``rule``: ``key``, ``target_pixel_area``, ``target_resolution_multiple``, ``round_to``.
        """
        return self._list_buckets(shards, rule, by_sample=False)

    def list_shard_sample_aspect_buckets(
        self, shards: Sequence[Shard] | None = None, **rule: Any
    ) -> list[dict[str, Any]]:
        """Return the buckets of all samples of each tar, by the shapes of their images."""
        return self._list_buckets(shards, rule, by_sample=True)

    def _list_buckets(
        self, shards: Sequence[Shard] | None, rule: dict[str, Any], *, by_sample: bool
    ) -> list[dict[str, Any]]:
        wanted, chosen = self._numbers(shards), BucketRule(**rule)
        indexes, names = self.collection.index, self.shard_names
        return list_buckets(wanted, indexes, names, chosen, by_sample=by_sample)

    def aspect_buckets(self, shards: Sequence[Shard] | None = None, **rule: Any) -> AspectBuckets:
        """Return the buckets of all samples of the data set, or of some tars, as arrays."""
        return aspect_buckets(
            self.collection.index,
            self.collection.sample_counts,
            shards=self._numbers(shards),
            **rule,
        )

    # --- numbers

    def _index(self, shard: Shard) -> TarIndex:
        return self.collection.index(self._number(shard))

    def _number(self, shard: Shard) -> int:
        if isinstance(shard, str):
            for name in (shard, f"{shard}.tar"):
                if name in self.shard_names:
                    return list(self.shard_names).index(name)
            raise KeyError(f"there is no shard {shard!r}; there are {self.num_shards} shards")
        count = len(self._paths)
        number = operator.index(shard)
        if not -count <= number < count:
            raise IndexError(f"there is no shard {number}: there are {count}")
        return number % count

    def _numbers(self, shards: Shard | Sequence[Shard] | None) -> list[int]:
        if shards is None:
            return [*range(self.num_shards)]
        many = [shards] if isinstance(shards, str | int) else shards
        return [*map(self._number, many)]

    def __repr__(self) -> str:
        return f"<TarShards: {self.num_shards} shards>"


class TarShard:
    """A tar of the data set, whose members are read on request."""

    def __init__(self, shards: TarShards, number: int) -> None:
        self._shards = shards
        self._index = shards.collection.index(number)
        self.number = number
        self.name = shards.shard_names[number]
        self.path = shards.collection.files.paths[number]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._index.num_samples

    @property
    def file_names(self) -> list[str]:
        """The names of all members, in the order of the tar."""
        names: list[str] = self._index.names.to_pylist()
        return names

    @property
    def sample_names(self) -> list[str]:
        """The name of the primary member of each sample."""
        names: list[str] = self._index.names.take(pa.array(self._index.primary_members)).to_pylist()
        return names

    @property
    def keys(self) -> list[str]:
        """The key of each sample."""
        keys: list[str] = self._index.keys.to_pylist()
        return keys

    def read_file(self, file: int | str) -> bytes:
        """Return a member, by its name or by its place among ``file_names``."""
        return self._read(_member(self._index, file, self.path))

    def files(self, start: int = 0, stop: int | None = None, **options: Any) -> Iterator[TarFile]:
        """Yield a range of members; see ``TarShards.files``."""
        return self._shards.files(self.number, start, stop, **options)

    def read_sample(self, sample: int | str) -> bytes:
        """Return the payload of the primary member of a sample."""
        number, _ = _members(self._index, sample, self.path)
        return self._read(self._index.primary_members.item(number))

    def read_sample_json(self, sample: int | str) -> bytes | None:
        """Return the JSON sidecar of a sample as it is in the tar, or None."""
        number, _ = _members(self._index, sample, self.path)
        member = int(self._index.members_as("json")[number])
        return None if member < 0 else self._read(member)

    def load_sample(
        self, sample: int | str, *, max_file_size: int | str | None = None
    ) -> TarSample:
        """Return a sample with all of its members."""
        return self._shards.load_sample(self.number, sample, max_file_size=max_file_size)

    def _read(self, member: int) -> bytes:
        return self._shards.payloads.read(self.number, [member])[0]

    def __repr__(self) -> str:
        return f"<TarShard {self.name}: {len(self)} samples in {len(self._index)} files>"


def _member(index: TarIndex, file: int | str, path: str) -> int:
    """Return the place of a member, by its name or its number."""
    if isinstance(file, str):
        member: int = pc.index(index.names, file).as_py()
        if member < 0:
            raise KeyError(f"{path} has no file {file!r}")
        return member
    count, number = len(index), operator.index(file)
    if not -count <= number < count:
        raise IndexError(f"{path} has no file {number}: it has {count}")
    return number % count


def _members(index: TarIndex, sample: int | str, path: str) -> tuple[int, list[int]]:
    """Return the number of a sample, counted from the beginning, and its members."""
    number = _sample_by_name(index, sample, path) if isinstance(sample, str) else sample
    starts, members = index.sample_places
    count = len(starts) - 1
    if not -count <= number < count:
        raise IndexError(f"{path} has no sample {sample}: it has {count}")
    number = operator.index(number) % count
    return number, members[starts[number] : starts[number + 1]].tolist()


def _sample_by_name(index: TarIndex, name: str, path: str) -> int:
    """Return the number of the sample with a key, or with a member of a name."""
    number: int = pc.index(index.keys, name).as_py()
    if number < 0:
        member = pc.index(index.names, name).as_py()
        number = int(index.grouping.samples[member]) if member >= 0 else -1
    if number < 0:
        raise KeyError(f"{path} has no sample {name!r}")
    return number
