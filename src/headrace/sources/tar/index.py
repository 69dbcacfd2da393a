"""The index of a tar: its members as columns, in memory and in a columnar file.

For the modules that read and write tars:

* ``TarIndex`` has the members of one tar in the order of their offsets: ``names``, ``offsets`` and
  ``sizes`` of payloads, and other columns if known; ``facts`` describes the tar.
* ``write_index(path, [(tar_name, index), ...])`` writes one columnar file for one tar or many, in
  one step; ``IndexFile`` is an opened one.
* ``index_files.read_index(path)`` and ``index_files.write_index_as(path, tars)`` read and write a
  local index, columnar or JSON, by the name of the file.
* ``checks.check_index`` refuses an index that could lead to wrong bytes;
  ``checks.check_header`` compares a member that is read with the header in front of it.
* ``_locate.places_of`` returns where the index of each tar lies; ``TarCollection.index`` loads and
  checks it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StaleIndexError, WriteError
from headrace.model import Int64Array, computed_once
from headrace.sources.tar.grouping import (
    DotRule,
    Int32Array,
    LeftOut,
    SampleGrouping,
    grouped,
    sample_keys,
)
from headrace.storage import atomic_write

COLUMNAR_ENDING, JSON_ENDING = ".idx.arrow", ".json"
"""Endings of the index of a tar; they replace the extension of the tar."""
SIDECARS = frozenset({"json", "txt", "text", "caption", "captions", "cls"})
"""Extensions of sidecars, which describe another member; alone they are main members."""
IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "avif", "jxl")
"""Extensions of images that can be decoded, the most common ones first."""
_SOUND_AND_VIDEO = "mp4 mkv webm mov avi mp3 wav flac ogg opus m4a"
_MEDIA = frozenset([*IMAGES, "heic", *_SOUND_AND_VIDEO.split()])


@dataclass(frozen=True, slots=True)
class TarFacts:
    """Facts about a tar as a whole.

    Attributes:
        size: Bytes of the tar.
        etag: The version of the tar that was indexed, as its store names it.
        hash_lfs: SHA-256 of the tar, as git-lfs and the hub name it.
        has_geometry: Widths and heights were looked for.
        has_sidecars: The content of JSON and text sidecars is embedded.
        captions_written: Captions were written by a user, and did not come from the tar.
        last_good: The last complete member of a truncated tar; the rest is not indexed.
        has_end: False if no end mark follows the last member: the tar may have been cut there.
        lists_all: All regular files are listed. Other tools may leave out sidecars.
        sample_key: How the index pairs members into samples.
        extras: Keys of a JSON index without an attribute here, as a JSON object.
    """

    size: int | None = None
    etag: str | None = None
    hash_lfs: str | None = None
    has_geometry: bool = False
    has_sidecars: bool = False
    captions_written: bool = False
    last_good: str | None = None
    has_end: bool = True
    lists_all: bool = True
    sample_key: DotRule = "first-dot"
    extras: str | None = None


@dataclass(frozen=True, eq=False)
class TarIndex:
    """The members of one tar. Texts are null for members without one; absent columns are None.

    Attributes:
        names: Paths of members within the tar.
        offsets: Where payloads begin.
        sizes: Bytes of payloads.
        widths: Of images; 0 where unknown.
        heights: Of images; 0 where unknown.
        captions: JSON text: a string, or a list of strings.
        json: The text of the JSON sidecar of a member.
        sha256: Hashes of payloads, in hexadecimal digits.
        extras: Keys of a JSON index that have no column, as a JSON object for each member.
        facts: Facts about the tar as a whole.
        stored_grouping: The samples, if they are known already.
    """

    names: pa.StringArray
    offsets: Int64Array
    sizes: Int64Array
    widths: Int32Array | None = None
    heights: Int32Array | None = None
    captions: pa.StringArray | None = None
    json: pa.StringArray | None = None
    sha256: pa.StringArray | None = None
    extras: pa.StringArray | None = None
    facts: TarFacts = field(default_factory=TarFacts)
    stored_grouping: SampleGrouping | None = None
    _by_fields: dict[tuple[str, ...], Int32Array] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.offsets)

    def name(self, member: int) -> str:
        """Return the name of a member."""
        return self.name_bytes(member).decode()

    def name_bytes(self, member: int) -> bytes:
        """Return the name of a member as UTF-8, without creating an Arrow object."""
        edges, text = self._names_in_memory
        return text[edges[member] : edges[member + 1]].tobytes()

    @computed_once
    def _names_in_memory(self) -> tuple[memoryview, memoryview]:
        """The start of each name and the end of the last, and the bytes of all names."""
        _, edges, text = self.names.buffers()
        count, first = len(self), self.names.offset
        places = np.frombuffer(edges, np.int32, count + 1, 4 * first)
        return _items(places), memoryview(b"" if text is None else text)

    @computed_once
    def grouping(self) -> SampleGrouping:
        """The sample and the field of each member."""
        return self.stored_grouping or grouped(self.names, self.facts.sample_key)

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.grouping.count

    @computed_once
    def sample_members(self) -> tuple[Int64Array, Int32Array]:
        """Return the start of each sample in the second array, and the members of all samples."""
        samples = self.grouping.samples
        order = np.argsort(samples, kind="stable").astype(np.int32)
        order = order[np.count_nonzero(samples < 0) :]
        counts = np.bincount(samples[order], minlength=self.num_samples)
        starts: Int64Array = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return starts, order

    @computed_once
    def primary_members(self) -> Int32Array:
        """The main member of each sample: its first image, video or sound.

        Without one it is the first that is not a sidecar, else the first. Masks and maps beside an
        image (``seg.png``) do not count as images, for they have a second extension.
        """
        starts, members = self.sample_members
        if not len(members):
            return members
        ranks = np.array([*map(_rank, self.grouping.field_names)], np.int8)
        rank = ranks[self.grouping.fields[members]]
        order = np.lexsort((np.arange(len(members)), rank, self.grouping.samples[members]))
        return members[order[starts[:-1]]]

    @computed_once
    def keys(self) -> pa.StringArray:
        """The key of each sample."""
        grouping = self.grouping
        some = np.empty(grouping.count, np.int64)  # any member: all of a sample have its key
        members = np.flatnonzero(grouping.samples >= 0)
        some[grouping.samples[members]] = members
        return sample_keys(self.names.take(pa.array(some)), grouping.sample_key)

    def members_as(self, *fields: str) -> Int32Array:
        """Return the member of each sample that is the first of these fields it has, or -1."""
        found = self._by_fields.get(fields)
        if found is None:
            found = np.full(self.grouping.count, -1, np.int32)
            for field in reversed(fields):
                if field in self.grouping.field_names:
                    code = self.grouping.field_names.index(field)
                    members = np.flatnonzero(self.grouping.fields == code).astype(np.int32)
                    found[self.grouping.samples[members]] = members
            self._by_fields[fields] = found
        return found

    @computed_once
    def shape_members(self) -> Int32Array:
        """The member that gives each sample its shape: its main member, if that shape is known.

        Else it is the first member whose shape is known, if there is one.
        """
        primary = self.primary_members
        if self.widths is None or self.heights is None or not len(primary):
            return primary
        known = (self.widths > 0) & (self.heights > 0)
        if known[primary].all():
            return primary
        _, members = self.sample_members
        members = members[known[members]]
        samples, first = np.unique(self.grouping.samples[members], return_index=True)
        lacking = ~known[primary[samples]]
        found = primary.copy()
        found[samples[lacking]] = members[first[lacking]]
        return found

    @computed_once
    def unchecked(self) -> npt.NDArray[np.bool_]:
        """The members that have not been compared with the headers of the tar yet."""
        return np.ones(len(self), bool)

    @computed_once
    def sample_places(self) -> tuple[memoryview, memoryview]:
        """The arrays of ``sample_members``, whose single values are read quickly."""
        starts, members = self.sample_members
        return _items(starts), _items(members)

    @computed_once
    def places(self) -> tuple[memoryview, memoryview, memoryview]:
        """The offsets, the sizes and ``unchecked``, whose single values are read quickly."""
        return _items(self.offsets), _items(self.sizes), _items(self.unchecked)

    @property
    def end(self) -> int:
        """The byte after the last member and its padding, where the end mark of the tar begins."""
        return -(-int(self.offsets[-1] + self.sizes[-1]) // 512) * 512 if len(self) else 0

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("an index cannot be pickled; load it in the process that needs it")


def _items(values: npt.NDArray[Any]) -> memoryview:
    """Return an array as a sequence of Python numbers: one is read in a third of the time."""
    return memoryview(np.require(values, requirements="A"))  # type: ignore[arg-type]


def _rank(field: str) -> int:
    """Return 0 for fields that are main members first, 2 for those that are so last."""
    if field in _MEDIA:
        return 0
    return 2 if field.rpartition(".")[2] in SIDECARS else 1


# --- the columnar file: a record batch for each tar, and facts about them in the metadata

INDEX_MARK = b"headrace.tar_index"
"""Marker that every columnar index contains and no other file does."""
_CHECKSUM = b"headrace.tar_index.crc32"
_VERSION = 3
_ALWAYS = ("name", "offset", "size", "sample", "field")
_TEXTS = ("captions", "json", "sha256", "extras")
_ATTRIBUTES = {
    **{name: f"{name}s" for name in ("name", "offset", "size", "width", "height")},
    **{name: name for name in _TEXTS},
}
"""Attributes of a ``TarIndex`` by the names of their columns in the file."""
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("sample", pa.int32()),
        ("field", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        *((name, pa.string()) for name in _TEXTS),
    ]
)


def write_index(path: str | os.PathLike[str], tars: Iterable[tuple[str, TarIndex]]) -> None:
    """Write the indexes of tars, each with the name of its tar, into one file, in one step.

    Raises:
        WriteError: The file cannot be written. The file that was there before stays.
    """
    tars = list(tars)
    used = {
        name for _, index in tars for name, column in _columns(index).items() if column is not None
    }
    schema = pa.schema([one for one in _SCHEMA if one.name in used or one.name in _ALWAYS])
    batches = [_batch(index, schema) for _, index in tars]
    about = [
        {**_about(name, index), "crc32": _checksum(batch)}
        for (name, index), batch in zip(tars, batches, strict=True)
    ]
    text = json.dumps({"version": _VERSION, "tars": about}).encode()
    schema = schema.with_metadata({INDEX_MARK: text, _CHECKSUM: str(crc32(text))})
    with (
        writing(path),
        atomic_write(path) as partial,
        open(partial, "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a WriteError that names a file, in place of an OSError."""
    try:
        yield
    except OSError as failed:
        raise WriteError(f"{os.fspath(path)} cannot be written: {failed}") from failed


def _about(name: str, index: TarIndex) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(index.facts).items() if value is not None}
    fields = list(index.grouping.field_names)
    return {"path": name, "samples": index.num_samples, "fields": fields, "facts": facts}


def _columns(index: TarIndex) -> dict[str, Any]:
    """Return the columns of an index by their names in the file; a missing column is None."""
    columns = {name: getattr(index, attribute) for name, attribute in _ATTRIBUTES.items()}
    return columns | {"sample": index.grouping.samples, "field": index.grouping.fields}


def _batch(index: TarIndex, schema: pa.Schema) -> pa.RecordBatch:
    columns = _columns(index)
    arrays = []
    for name, type in zip(schema.names, schema.types, strict=True):
        column = columns[name]
        arrays.append(pa.nulls(len(index), type) if column is None else pa.array(column, type))
    batch = pa.record_batch(arrays, schema=schema)
    return pa.ipc.read_record_batch(batch.serialize(), schema)  # with its bytes as in the file


def _checksum(batch: pa.RecordBatch) -> int:
    """Return the checksum of all columns; Arrow has none, so damage could go unnoticed."""
    total = 0
    for column in batch.columns:
        nulls, *buffers = column.buffers()
        for buffer in [nulls, *buffers] if column.null_count else buffers:
            total = crc32(b"" if buffer is None else buffer, total)
    return total


class IndexFile:
    """An opened columnar file with the indexes of one tar or many.

    Attributes:
        tars: The names of the tars.
    """

    def __init__(self, reader: pa.RecordBatchFileReader, about: list[Any], shown: str) -> None:
        self._reader, self._about, self._shown = reader, about, shown
        self.tars: Sequence[str] = [tar["path"] for tar in about]

    @classmethod
    def open(
        cls, source: str | os.PathLike[str] | pa.Buffer, shown: str | None = None
    ) -> IndexFile:
        """Open a file, or the bytes of one; ``shown`` is its name in messages.

        Raises:
            FileNotFoundError: There is no such file.
            StaleIndexError: It is not an index, has another version, or is damaged.
        """
        shown = os.fspath(source) if shown is None else shown
        try:
            if not isinstance(source, pa.Buffer):
                source = pa.OSFile(os.fsencode(source))
            reader = pa.ipc.open_file(source)
            metadata = reader.schema.metadata or {}
            about = json.loads(metadata[INDEX_MARK])
            if about["version"] != _VERSION:
                _refuse(shown, f"its version is {about['version']}, not {_VERSION}")
            types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
            is_whole = (
                int(metadata[_CHECKSUM]) == crc32(metadata[INDEX_MARK])
                and len(about["tars"]) == reader.num_record_batches
                and types.keys() >= {*_ALWAYS}
                and all(_SCHEMA.field(name).type == type for name, type in types.items())
            )
            if not is_whole:
                _refuse(shown, "its facts or columns are damaged")
            return cls(reader, about["tars"], shown)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as broken:
            if isinstance(broken, FileNotFoundError | StaleIndexError):
                raise
            _refuse(shown, f"{type(broken).__name__}: {broken}")

    def index(self, tar: int) -> TarIndex:
        """Return the index of a tar, by its place in ``tars``, as a copy in memory.

        Raises:
            StaleIndexError: The file is damaged.
        """
        if tar >= len(self.tars):
            raise StaleIndexError(f"{self._shown} has an index for {len(self.tars)} tars only")
        about = self._about[tar]
        try:
            batch = self._reader.get_batch(tar)
            batch.validate(full=True)
            if _checksum(batch) != about["crc32"]:
                raise ValueError("its checksum does not match")
            return _index(batch, about)
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as broken:
            _refuse(self._shown, f"its part about {about['path']} is damaged ({broken})")


def _index(batch: pa.RecordBatch, about: dict[str, Any]) -> TarIndex:
    columns: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in _ALWAYS or column.null_count < len(column):
            columns[name] = column if pa.types.is_string(column.type) else column.to_numpy()
    samples, fields = columns.pop("sample"), columns.pop("field")
    facts = TarFacts(**about["facts"])
    grouping = SampleGrouping(
        samples,
        fields,
        tuple(about["fields"]),
        about["samples"],
        facts.sample_key,
        left_out=LeftOut(files=int((samples < 0).sum())),
    )
    known = {_ATTRIBUTES[name]: column for name, column in columns.items()}
    return TarIndex(**known, facts=facts, stored_grouping=grouping)


def _refuse(shown: str, why: str) -> NoReturn:
    raise StaleIndexError(
        f"{shown} cannot be read as a columnar index of tars: {why}; make it anew with: "
        "headrace index"
    )
