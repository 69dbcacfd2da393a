"""Samples as the source of tars: files of a folder, samples of other tars, and rows.

Each source plans which samples a tar gets before any is read: by the sizes of files and of members.
The size of rows is known only when they are encoded; it is estimated from the first rows.
"""

from __future__ import annotations

import datetime
import decimal
import json
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise, takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ConversionError, OptionError, naming
from headrace.model import DataFileInfo, computed_once
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.grouping import WHOLE, Int32Array, SampleGrouping
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.payloads import Payloads
from headrace.storage import Listing, side_by_side
from headrace.write._copier import Origin, Runner, Task, cut_tasks, digest_of_files
from headrace.write._journal import Journal
from headrace.write._row_sources import Rows
from headrace.write._rows import PartsAtHand, PartSizes, RowParts, row_parts
from headrace.write._tar_format import KEY, RECORD_BYTES, checked_text, room
from headrace.write._tar_writer import Member, Pieces, TarLayout

logger = logging.getLogger(__name__)

Sample = Mapping[str, Any]
"""Fields and a ``__key__``, as a TarWriter takes them."""

CAPTIONS = "__captions__"
"""The key of captions for the index of a copy, as JSON by the names of members."""
_THREADS = 8
_KEY_DIGITS = 9
_WHOLE_BYTES = 4 << 20
"""Bytes of a file that are read at once."""
_BLOCK_BYTES = 8 << 20
"""Bytes of payloads of a tar that are read at once."""
_ADVICE = 'or give keys="number" for new keys'
_REST = "json"
_BY_NAME = ("cls", "json", "npy", "txt")
"""Names of columns that are fields although they do not hold bytes."""


def numbered_key(number: int) -> str:
    """Return the key of a numbered sample; these keys sort in the order of the numbers."""
    return f"{number:0{_KEY_DIGITS}d}"


# Files and tars.


class FolderMembers:
    """The files of a folder as the members of one tar; files of one key are adjacent.

    Args:
        listing: The files.
    """

    names = ("",)

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        roots = {root.rstrip("/") for root in listing.roots}
        root = roots.pop() if len(roots) == 1 else _common_folder(roots)
        found = sorted(
            ((*_key_and_field(file, root), file) for file in listing.files),
            key=lambda named: named[:2],
        )
        names = [_member_name(key, field) for key, field, _ in found]
        keys = pa.array([key for key, _, _ in found], pa.string()).dictionary_encode()
        samples = keys.indices.to_numpy()
        self.files = [file for _, _, file in found]
        self._index = TarIndex(
            pa.array(names, pa.string()),
            np.zeros(len(names), np.int64),
            np.array([file.file_size for file in self.files], np.int64),
            stored_grouping=SampleGrouping(samples, samples, (), len(keys.dictionary)),
        )

    def __reduce__(self) -> tuple[type[FolderMembers], tuple[Listing]]:
        return FolderMembers, (self._listing,)  # an index does not travel

    def __len__(self) -> int:
        return 1

    def index(self, shard: int) -> TarIndex:
        """Return all files."""
        return self._index

    def read(self, shard: int, members: Int32Array) -> Sequence[bytes | Pieces]:
        """Return the content of files; a large one in pieces."""
        # A few jobs a thread, so that large files are read side by side and small ones cost little.
        step = len(members) // (4 * _THREADS) + 1
        runs = (members[start : start + step] for start in range(0, len(members), step))
        with closing(side_by_side(self._contents, runs, threads=_THREADS, ahead=_THREADS)) as read:
            return [content for contents in read for content in contents]

    def _contents(self, members: Int32Array) -> list[bytes | Pieces]:
        return [self._content(self.files[member]) for member in members.tolist()]

    def _content(self, file: DataFileInfo) -> bytes | Pieces:
        assert file.file_size is not None
        if file.file_size > _WHOLE_BYTES:
            return Pieces(file.file_size, self._pieces(file))
        with naming(file.path), self._listing.store.open(file) as opened:
            data: bytes = opened.read()
            return data

    def _pieces(self, file: DataFileInfo) -> Iterator[bytes]:
        with naming(file.path), self._listing.store.open(file) as opened:
            while data := opened.read(_WHOLE_BYTES):
                yield data


def _key_and_field(file: DataFileInfo, root: str) -> tuple[str, str]:
    """Return the path of a file below a folder up to the first dot of its name, and the rest."""
    folder, slash, base = file.path[len(root) :].lstrip("/").rpartition("/")
    name, dot, field = base.partition(".")
    if dot and not field:
        raise OptionError(
            f"{file.path} ends in a dot, so it has no extension to name its field; rename it"
        )
    return checked_text("path", folder + slash + name), field if dot else WHOLE


def _common_folder(roots: Iterable[str]) -> str:
    """Return the folder that all roots are in."""
    same = takewhile(
        lambda level: len(set(level)) == 1, zip(*(root.split("/") for root in roots), strict=False)
    )
    return "/".join(level[0] for level in same)


@dataclass(frozen=True)
class StoredSamples:
    """The samples of tars or of a folder, with the captions that their indexes have.

    Files that belong to no sample are left out.

    Attributes:
        layout: The sizes of the tars that are written.
        members: The members.
        payloads: Reads them.
        locations: The locations given by the user.
        keys: ``"keep"``, ``"prefix"`` or ``"number"``.
    """

    layout: TarLayout
    members: TarCollection | FolderMembers
    payloads: Payloads | FolderMembers
    locations: Sequence[str]
    keys: str

    def planned(self, journal: Journal, runner: Runner) -> StoredSamples:
        """Return the samples, whose sizes are known."""
        return self

    @property
    def advice(self) -> str:
        """Advice if keys cannot be kept."""
        if self.keys == "keep" and not isinstance(self.members, FolderMembers):
            return f'{_ADVICE}, or keys="prefix" for the path of each tar before its keys'
        return _ADVICE

    @property
    def origin(self) -> Origin:
        """Where the samples come from."""
        files = self.members.files
        paths = [file.path for file in files]
        return Origin({"source_files": digest_of_files(files)}, paths, self.locations)

    @computed_once
    def samples_before(self) -> list[int]:
        """The number of samples before each tar, and of all."""
        counts = (self.members.index(shard).num_samples for shard in range(len(self.members)))
        return [0, *accumulate(counts)]

    @computed_once
    def tasks(self) -> list[Task]:
        """The tasks, one for each tar, by the sizes of members."""
        return cut_tasks(self._rooms(), self.layout.is_full) or [Task(0, rows=0)]

    def _rooms(self) -> Iterator[int]:
        for shard, before in enumerate(self.samples_before[:-1]):
            index = self.members.index(shard)
            starts, members = index.sample_members
            sizes = index.sizes[members].tolist()
            names = index.names.take(members).to_pylist()
            for number, (low, high) in enumerate(pairwise(starts.tolist()), before):
                key = self._key(shard, names[low], number)
                written = [_member_name(key, _field(name)) for name in names[low:high]]
                yield sum(map(room, written, sizes[low:high]))

    def read(self, task: Task) -> Generator[Sample, None, None]:
        """Yield the samples of a part, which may be of several tars."""
        before = self.samples_before
        # Samples are numbered over all tars: these tars have some of first to stop.
        for shard in range(bisect_right(before, task.first) - 1, bisect_left(before, task.stop)):
            first, stop = max(task.first - before[shard], 0), task.stop - before[shard]
            yield from islice(self._samples(shard, first, before[shard]), stop - first)

    def _samples(self, shard: int, first: int, before: int) -> Iterator[Sample]:
        index = self.members.index(shard)
        starts, members = index.sample_members
        if len(members) < len(index) and not first:
            path, left = self.members.files[shard].path, len(index) - len(members)
            logger.info("%s: %d files belong to no sample and are left out", path, left)
        for start, stop in _blocks(index, first):
            taken = members[starts[start] : starts[stop]]
            names = index.names.take(taken).to_pylist()
            payloads = self.payloads.read(shard, taken)
            captions = index.captions if index.facts.captions_written else None
            texts = [None] * len(taken) if captions is None else captions.take(taken).to_pylist()
            # Where the members of each sample begin among those that were read.
            edges = (starts[start : stop + 1] - starts[start]).tolist()
            for sample, (low, high) in enumerate(pairwise(edges), start):
                key = self._key(shard, names[low], before + sample)
                fields = [_field(name) for name in names[low:high]]
                noted = {
                    _member_name(key, field): text
                    for field, text in zip(fields, texts[low:high], strict=True)
                    if text is not None
                }
                values = zip(fields, payloads[low:high], strict=True)
                yield {KEY: key, CAPTIONS: noted, **dict(values)}

    def _key(self, shard: int, name: str, number: int) -> str:
        if self.keys == "number":
            return numbered_key(number)
        folder, slash, base = name.rpartition("/")
        key = folder + slash + base.partition(".")[0]
        while key.startswith("./"):
            key = key[2:]
        if self.keys == "prefix":
            return f"{self.members.names[shard].removesuffix('.tar')}/{key}"
        return key


def _member_name(key: str, field: str) -> str:
    return key if field == WHOLE else f"{key}.{field}"


def _field(name: str) -> str:
    base = name.rpartition("/")[2]
    return base.partition(".")[2] or WHOLE


def _blocks(index: TarIndex, first: int) -> Iterator[tuple[int, int]]:
    """Yield runs of samples whose payloads are about as many bytes as are read at once."""
    starts, members = index.sample_members
    before = np.concatenate([[0], np.cumsum(index.sizes[members])])[starts]
    while first < index.num_samples:
        stop = int(np.searchsorted(before, before[first] + _BLOCK_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), index.num_samples)
        yield first, stop
        first = stop


# Rows.


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of samples that columns become.

    Attributes:
        key: The column that holds keys; None if rows are numbered.
        members: The field that a column becomes.
        rest: Columns that go together into the field ``json``.
    """

    key: str | None
    members: Mapping[str, str]
    rest: Sequence[str]

    @classmethod
    def of(
        cls, schema: pa.Schema, chosen: Mapping[str, str], key: str | None, numbered: bool
    ) -> Fields:
        """Return the fields of columns. Bytes, and columns named txt, cls, npy or json, are fields.

        Columns such as ``__url__`` describe a sample and are not fields.
        """
        unknown = [name for name in (*chosen, *([key] if key else ())) if name not in schema.names]
        if unknown:
            raise OptionError(
                f"there is no column {unknown[0]!r}; the columns are {', '.join(schema.names)}"
            )
        if key is None and not numbered and KEY in schema.names:
            key = KEY
        members = {
            field.name: chosen.get(field.name, field.name)
            for field in schema
            if field.name in chosen or _is_field(field)
        }
        members.pop(key or "", None)
        rest = [
            name
            for name in schema.names
            if name not in members and name != key and not _is_description(name)
        ]
        taken = [*members.values(), *([_REST] if rest else ())]
        twice = next((field for field in taken if taken.count(field) > 1), None)
        if twice is not None:
            raise OptionError(
                f"several columns would become the field {twice!r}; name their fields (fields=), "
                "or leave some out (columns=)"
            )
        if not taken:
            raise OptionError(
                "no column can become a field; name the columns and their fields (fields=)"
            )
        return cls(None if numbered else key, members, rest)


@dataclass(frozen=True)
class RowSamples:
    """Rows as samples: columns that are fields become members, and all others together JSON.

    How large rows become is judged by the first ones.
    """

    layout: TarLayout
    rows: Rows
    fields: Fields
    parts: RowParts | PartsAtHand | None = None

    advice = _ADVICE

    @property
    def origin(self) -> Origin:
        """Where the rows come from."""
        return self.rows.origin

    def planned(self, journal: Journal, runner: Runner) -> RowSamples:
        """Return the same rows with the tasks of tars."""
        sizes = PartSizes(self.layout.shard_samples, self.layout.shard_bytes - RECORD_BYTES)
        parts = row_parts(self.rows, sizes, journal, runner, measure=self._encoded_bytes)
        return replace(self, parts=parts)

    @property
    def tasks(self) -> Sequence[Task] | Iterator[Task]:
        """The tasks, one for each tar."""
        assert self.parts is not None
        return self.parts.tasks

    def _encoded_bytes(self, table: pa.Table) -> int:
        samples = self._samples(table, 0)
        members = (Member.all(sample[KEY], sample) for sample in samples)
        return sum(member.room for found in members for member in found)

    def read(self, task: Task) -> Generator[Sample, None, None]:
        """Yield the samples of a part."""
        assert self.parts is not None
        number = task.first
        with closing(self.parts.read(task)) as tables:
            for table in tables:
                yield from self._samples(table, number)
                number += table.num_rows

    def _samples(self, table: pa.Table, number: int) -> Iterator[Sample]:
        columns = {
            field: _values(table.column(column), field)
            for column, field in self.fields.members.items()
        }
        rest = _plain_rows(table.select(self.fields.rest)) if self.fields.rest else None
        for row, key in enumerate(self._keys(table, number)):
            sample = {KEY: key, **{field: values[row] for field, values in columns.items()}}
            if rest is not None:
                sample[_REST] = _object(rest[row], key)
            yield sample

    def _keys(self, table: pa.Table, number: int) -> list[str]:
        if self.fields.key is None:
            return [numbered_key(number + row) for row in range(table.num_rows)]
        keys = table.column(self.fields.key).to_pylist()
        if None in keys:
            raise ConversionError(
                f"row {number + keys.index(None)} has no key: {self.fields.key} is null there"
            )
        return [key if isinstance(key, str) else str(key) for key in keys]


def _plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values; nanoseconds, which Python does not count, as text."""
    fine = [pa.types.is_timestamp(field.type) and field.type.unit == "ns" for field in table.schema]
    columns = [
        column.cast(pa.string()) if as_text else column
        for column, as_text in zip(table.columns, fine, strict=True)
    ]
    rows: list[dict[str, Any]] = pa.table(columns, table.column_names).to_pylist()
    return rows


def _is_field(field: pa.Field) -> bool:
    return not _is_description(field.name) and (
        field.name.rpartition(".")[2] in _BY_NAME or _holds_bytes(field.type)
    )


def _is_description(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__data__"


def _holds_bytes(type_: pa.DataType) -> bool:
    """Return True if cells are bytes, or bytes beside a file name, as pictures often are."""
    if pa.types.is_struct(type_):
        names = {field.name: field.type for field in type_}
        return "bytes" in names and _holds_bytes(names["bytes"])
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def _values(column: pa.ChunkedArray, field: str) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_struct(column.type) and _holds_bytes(column.type):
        return [None if value is None else value["bytes"] for value in values]
    if field.rpartition(".")[2].lower() == "npy" and not _holds_bytes(column.type):
        dtype = _dtype(column.type)
        return [None if value is None else np.asarray(value, dtype) for value in values]
    return values


def _dtype(type_: pa.DataType) -> Any:
    while pa.types.is_nested(type_) and hasattr(type_, "value_type"):
        type_ = type_.value_type
    return type_.to_pandas_dtype() if pa.types.is_primitive(type_) else None


def _object(row: Mapping[str, Any], key: str) -> bytes:
    """Return the JSON of a row; NaN and infinities, which JSON lacks, become null."""
    try:
        text = json.dumps(_plain(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConversionError(
            f"the row of {key!r} cannot be written as JSON: {error}; name the field of the column "
            "(fields=), or leave it out (columns=)"
        ) from error
    return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value
