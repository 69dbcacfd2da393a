"""``TarBackend``: samples of tars as rows, with their fields as columns.

All members that some rows need are read at once, then decoded. The indexes alone tell which samples
are rows, and where their members are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from headrace.convert.kinds import Kinds, python_values
from headrace.errors import OptionError, ReadError, SchemaError, may_be_skipped
from headrace.model import Int64Array, computed_once
from headrace.options import check_together, checked_keywords, parse_bytes
from headrace.process import in_threads
from headrace.sources.backend import Backend
from headrace.sources.files.protocol import rows_only
from headrace.sources.source import BrokenRecords
from headrace.sources.tar._decoding import Decode, FieldForm, field_forms
from headrace.sources.tar._locate import TarLocation, access_of
from headrace.sources.tar.buckets import AspectBuckets, aspect_buckets
from headrace.sources.tar.checks import check_file_sizes
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.grouping import LeftOut, SampleKey
from headrace.sources.tar.index import IMAGES, TarIndex
from headrace.sources.tar.payloads import Payloads, cut_by_bytes
from headrace.sources.tar.sidecars import TEXT_FIELDS, canonical_captions, text_caption
from headrace.storage import Access, LocalStore, Options, RemoteStore, Store, named_locations

KEY, SHARD = "__key__", "__shard__"
IMAGE, CAPTION = "image", "caption"
"""Columns that can be requested whatever the extensions are."""
METADATA = pa.schema(
    [
        ("path", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("aspect", pa.float64()),
        ("captions", pa.list_(pa.string())),
        ("json", pa.string()),
    ]
)
"""Columns about the primary members of samples, from the index. No value is null: an
unknown number is 0, an unknown aspect is NaN, and an unknown list or text is empty."""
_OF_MEMBERS = {"path": "names", "offset": "offsets", "size": "sizes"}
"""Those that are columns of an index, with their names there."""
_METADATA_BYTES = 256
"""About the number of bytes of an index per sample."""
_MOST_FIELDS = 256
"""Number of fields above which names were probably split at the wrong dot."""


@checked_keywords
class TarBackend(Backend):
    """Samples of tars as rows: ``__key__``, ``__shard__``, and a column for each field.

    A field that a sample does not have is null. Tars without an index are scanned once, when they
    are first needed.

    Args:
        source: A tar, a directory, a glob, a URL or a list of them.
        metadata: Where the indexes lie, if not beside the tars.
        fields: The columns, with the extensions that their members may have, separated by
            semicolons: ``{"image": "jpg;png;webp", "label": "cls"}``. None for one column for each
                existing extension. The columns ``image`` and ``caption`` can always be requested.
        sample_key: How the key of a sample follows from the names of its members: "first-dot",
            "last-dot", or a function of a name that returns the key, or None for no sample.
        missing_fields: "null", or "skip" to leave out samples that lack a field.
        required: The columns that samples must have under "skip"; None for all.
        decode: The fields to decode: True for all whose extension is known, names, or a mapping
            of names to decoders (see ``decoding.py``) or functions of bytes.
        load_file_data: False reads no payloads: columns are those of ``METADATA``.
        max_file_size: Size of the largest member to read.
        oversized: "raise" for an error before a larger member is read, or "skip" to leave out
            samples with a larger member.
        storage_options: Options of the store.
        cache_dir: Folder for indexes, listings and bytes that were read from remote tars.
        cache_bytes: Largest size of that folder.
        access: Replaces the three arguments before.
        on_error: "skip" leaves out tars that cannot be indexed, named in ``broken``, and samples
            of a stream that cannot be read or decoded.
    """

    def __init__(
        self,
        source: TarLocation,
        *,
        metadata: TarLocation | None = None,
        fields: Mapping[str, str] | None = None,
        sample_key: SampleKey | None = None,
        missing_fields: Literal["null", "skip"] = "null",
        required: Sequence[str] | None = None,
        decode: Decode | None = None,
        load_file_data: bool = True,
        max_file_size: int | str | None = None,
        oversized: Literal["raise", "skip"] = "raise",
        storage_options: Options | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        access: Access | None = None,
        on_error: str = "raise",
    ) -> None:
        if access is None:
            access = access_of(storage_options, cache_dir, cache_bytes)
        check_together({"decode": decode, "load_file_data": load_file_data})
        self.loads_file_data = load_file_data
        self._named_fields = None if fields is None else _parsed_fields(fields)
        self._decode = decode
        self._skips_broken = on_error == "skip"
        self._limit = None if max_file_size is None else parse_bytes("max_file_size", max_file_size)
        self.collection = TarCollection.find(
            source,
            metadata=metadata,
            access=access,
            may_skip=may_be_skipped if self._skips_broken else None,
            sample_key=sample_key,
        )
        """The tars and their indexes."""
        self._select(missing_fields == "skip", required, oversized == "skip")
        self._payloads = Payloads(self.collection)
        self.fork_safe = self.collection.fork_safe
        self._named = named_locations(source, as_they_are=access.filesystem is not None)

    def _select(
        self, skips_incomplete: bool, required: Sequence[str] | None, skips_oversized: bool
    ) -> None:
        """Leave out samples of the collection, if an option says so."""
        rules = self.collection.rules
        if skips_incomplete:
            wanted = self._default_fields if required is None else required
            fields = [
                self._extensions(name) for name in wanted if name not in (KEY, SHARD, CAPTION)
            ]
            rules = replace(rules, required=tuple(fields))
        if skips_oversized:
            rules = replace(rules, max_file_size=self._limit)
        if rules != self.collection.rules:
            self.collection = self.collection.selecting(rules)
            self.__dict__.pop("_default_fields", None)

    @property
    def name(self) -> str:
        return "tar"

    @property
    def store(self) -> Store:
        store = self.collection.store
        remote = not store.local and store.fork_safe == self.fork_safe
        return store if remote else LocalStore(fork_safe=self.fork_safe)

    def through(self, store: Store) -> Self:
        if not isinstance(store, RemoteStore):
            return self
        made = copy(self)
        made._payloads = self._payloads.during(store.meter, store.patience)
        return made

    @property
    def broken(self) -> tuple[str, ...]:
        """Why tars were left out, a line each."""
        return self.collection.broken

    @property
    def left_out(self) -> LeftOut:
        """Numbers of files that belong to no sample, and of samples that are left out."""
        return self.collection.left_out

    @property
    def given(self) -> Mapping[str, Any]:
        """The functions of the user: those of ``decode``, and ``sample_key``."""
        made: dict[str, Any] = {
            f"decode[{name!r}]": form.function for name, form in self._forms.items()
        }
        if callable(self.collection.rules.sample_key):
            made["sample_key"] = self.collection.rules.sample_key
        return {name: function for name, function in made.items() if function is not None}

    def aspect_buckets(self, **options: Any) -> AspectBuckets:
        """Return samples by the shapes of their images; see ``headrace.sources.tar.buckets``."""
        counts = self.collection.sample_counts
        return aspect_buckets(self.collection.index, counts, **options)

    # --- columns

    @computed_once
    def schema(self) -> pa.Schema:
        """The default columns; finding them loads every index."""
        named = [pa.field(KEY, pa.string()), pa.field(SHARD, pa.string())]
        if not self.loads_file_data:
            return pa.schema([*named, *METADATA])
        return pa.schema([*named, *(self._forms[name].field for name in self._default_fields)])

    @computed_once
    def selectable(self) -> pa.Schema:
        """The columns that may be named."""
        if not self.loads_file_data:
            return self.schema
        more = [form.field for name, form in self._forms.items() if name not in self.schema.names]
        return pa.schema([*self.schema, *more])

    @property
    def kinds(self) -> Kinds:
        if not self.loads_file_data:
            return {}
        forms = self._forms.items()
        return {name: form.kind for name, form in forms if form.kind is not None}

    @property
    def optional_columns(self) -> list[str]:
        """The columns that may be null because samples lack the field."""
        complete = self.collection.complete_fields
        forms = self._forms.items()
        return [name for name, form in forms if complete.isdisjoint(form.extensions)]

    @computed_once
    def _default_fields(self) -> dict[str, tuple[str, ...]]:
        """The default columns of fields, with their extensions."""
        found = self.collection.field_names
        samples = int(self.collection.sample_counts.sum())
        if len(found) > max(_MOST_FIELDS, samples):
            raise SchemaError(
                f"the {samples:,} samples would have {len(found):,} fields, such as {found[0]!r} "
                f'and {found[-1]!r}: names with several dots need sample_key="last-dot", or a '
                "function that returns the key of a name"
            )
        if self._named_fields is None:
            return {name: (name,) for name in found}
        for name, extensions in self._named_fields.items():
            if found and not set(extensions) & set(found):
                raise SchemaError(
                    f"fields={{{name!r}: {';'.join(extensions)!r}}}: no sample has a member with "
                    f"these extensions; there are {', '.join(found)}"
                )
        return self._named_fields

    def _extensions(self, name: str) -> tuple[str, ...]:
        if self._named_fields is not None and name in self._named_fields:
            return self._named_fields[name]
        if name == IMAGE and IMAGE not in self.collection.field_names:
            return IMAGES
        return (name,)

    @computed_once
    def _forms(self) -> dict[str, FieldForm]:
        """All columns of fields that can be requested."""
        found = self.collection.field_names
        names = list(dict.fromkeys([*self._default_fields, *found]))
        for name in (KEY, SHARD):
            if name in names:
                raise SchemaError(f"a field of the samples is called {name}, as a column is")
        if IMAGE not in names and not set(IMAGES).isdisjoint(found):
            names.append(IMAGE)
        forms = field_forms(self._decode, {name: self._extensions(name) for name in names})
        if CAPTION not in forms:
            forms[CAPTION] = FieldForm(CAPTION, (CAPTION,), "text")
        return forms

    def with_objects(self, columns: Sequence[str]) -> TarBackend:
        """Return the same backend with integers of these columns as objects, which may be None."""
        made = copy(self)
        made._forms = {
            name: replace(form, how="integer") if name in columns and form.how == "int" else form
            for name, form in self._forms.items()
        }
        for name in ("schema", "selectable"):
            made.__dict__.pop(name, None)
        return made

    # --- shards

    @property
    def shard_rows(self) -> Int64Array:
        return self.collection.sample_counts

    @property
    def shard_names(self) -> Sequence[str]:
        return self.collection.files.paths

    @property
    def locations(self) -> Sequence[str]:
        local = self._named if self.collection.store.local else []
        return [*local, *self.shard_names]

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        if self.loads_file_data:
            return [file.file_size for file in self.collection.files]
        return [rows * _METADATA_BYTES for rows in self.shard_rows.tolist()]

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return [file.etag for file in self.collection.files]

    # --- rows

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one sample as Python values; images and npy are arrays."""
        table, kinds = self.take([idx], columns=columns), self.kinds
        return {
            name: (python_values(column, kinds[name]) if name in kinds else column.to_pylist())[0]
            for name, column in zip(table.schema.names, table.columns, strict=True)
        }

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        return self._table(rows, schema, in_threads)

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield samples that follow each other, in tables that are cut by sizes in the index."""
        if not len(schema):
            yield rows_only(length)
            return
        broken = BrokenRecords()
        wanted = np.arange(start, start + length)
        for rows in cut_by_bytes(wanted, self._sizes(wanted, schema), block_bytes):
            try:
                tables = [self._table(rows, schema)]
            except ReadError as error:
                if not (self._skips_broken and may_be_skipped(error)):
                    raise
                each = broken.all_but(
                    rows.tolist(), lambda row: self._table(np.array([row]), schema)
                )
                tables = [table for _, table in each]
            yield from tables
        broken.tell()

    def _sizes(self, wanted: Int64Array, schema: pa.Schema) -> Int64Array:
        """Return about how many bytes each sample takes in memory."""
        rows = _Rows(self, wanted)
        sizes = np.full(len(wanted), _METADATA_BYTES, np.int64)
        for form in self._read_forms(schema):
            sizes += rows.sizes(form.extensions) * form.growth
        return sizes

    def _read_forms(self, schema: pa.Schema) -> list[FieldForm]:
        """Return the forms of the columns whose members are read."""
        if not self.loads_file_data:
            return []
        made = {KEY, SHARD, *({CAPTION} - self._default_fields.keys())}
        return [self._forms[name] for name in schema.names if name not in made]

    def _table(self, wanted: Int64Array, schema: pa.Schema, each: Any = map) -> pa.Table:
        """Return samples in any order. All their members are read together."""
        if not len(schema):
            return rows_only(len(wanted))
        rows = _Rows(self, wanted)
        shards = rows.shards
        columns: dict[str, pa.Array] = {}
        forms = self._read_forms(schema)
        if forms:
            members = [rows.members(form.extensions, self._limit) for form in forms]
            payloads = self._payloads.column(np.tile(shards, len(forms)), np.concatenate(members))
            for number, form in enumerate(forms):
                own = payloads.slice(number * len(shards), len(shards))
                named = partial(rows.name_of, members[number])
                columns[form.name] = form.column(own, named, each)
        for name in schema.names:
            if name == SHARD:
                columns[name] = pa.array(self.collection.names, pa.string()).take(pa.array(shards))
            elif name == KEY:
                columns[name] = rows.joined(_keys_of)
            elif name == CAPTION and name not in columns:
                columns[name] = self._captions(rows)
            elif name not in columns:
                columns[name] = rows.joined(partial(_metadata_of, column=name))
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _captions(self, rows: _Rows) -> pa.Array:
        """Return the first caption of each sample: in the index, its JSON, or a text beside it."""
        found: list[Any] = rows.joined(_captions_of).to_pylist()
        captions = [None if text is None else json.loads(text) for text in found]
        for extensions, parse in ((("json",), _json_captions), (TEXT_FIELDS, text_caption)):
            members = rows.members(extensions, self._limit)
            lacking = [row for row, text in enumerate(captions) if not text and members[row] >= 0]
            payloads = self._payloads.read_many(rows.shards[lacking], members[lacking])
            for row, payload in zip(lacking, payloads, strict=True):
                captions[row] = parse(payload)
        first = [one[0] if isinstance(one, list) and one else one or None for one in captions]
        return pa.array(first, pa.large_string())


def _json_captions(payload: bytes) -> Any:
    try:
        return canonical_captions(json.loads(payload))
    except (ValueError, RecursionError):
        return None


def _parsed_fields(fields: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    parsed: dict[str, tuple[str, ...]] = {}
    for name, extensions in fields.items():
        if not isinstance(name, str) or not isinstance(extensions, str) or not extensions.strip():
            raise OptionError(
                f"fields={{{name!r}: {extensions!r}}}: give extensions, separated by semicolons: "
                '{"image": "jpg;png;webp"}'
            )
        parts = [part.strip().lower().removeprefix(".") for part in extensions.split(";")]
        parsed[name] = tuple(part for part in parts if part)
    return parsed


class _Rows:
    """Some samples of some shards, in any order."""

    def __init__(self, backend: TarBackend, wanted: Int64Array) -> None:
        self.shards = np.empty(len(wanted), np.int64)
        self._collection = backend.collection
        self._parts: list[tuple[TarIndex, Int64Array, Int64Array]] = []
        for shard, places, samples in backend.located(wanted):
            self.shards[places] = shard
            self._parts.append((self._collection.index(shard), places, samples))

    def members(self, extensions: tuple[str, ...], limit: int | None) -> Int64Array:
        """Return the member of each sample with one of these extensions, or -1.

        Raises:
            ReadError: A member is larger than ``limit``.
        """
        found = np.empty(len(self.shards), np.int64)
        for index, places, samples in self._parts:
            found[places] = index.members_as(*extensions)[samples]
            if limit is not None:
                path = self._collection.files.paths[int(self.shards[places[0]])]
                check_file_sizes(path, index, found[places], limit)
        return found

    def sizes(self, extensions: tuple[str, ...]) -> Int64Array:
        """Return the size of the member of each sample with one of these extensions, or 0."""
        found = np.empty(len(self.shards), np.int64)
        for index, places, samples in self._parts:
            members = index.members_as(*extensions)[samples]
            found[places] = np.where(members < 0, 0, index.sizes[members])
        return found

    def joined(self, make: Callable[[TarIndex, Int64Array], pa.Array]) -> pa.Array:
        """Return a column that is computed shard by shard."""
        if len(self._parts) == 1:
            index, _, samples = self._parts[0]
            return make(index, samples)
        made = [make(index, samples) for index, _, samples in self._parts]
        order = np.concatenate([places for _, places, _ in self._parts])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(back))
        return pa.concat_arrays(made).take(pa.array(back))

    def name_of(self, members: Int64Array, row: int) -> str:
        """Return the name of the member of a row, for messages."""
        shard = int(self.shards[row])
        name = self._collection.index(shard).name(int(members[row]))
        return f"{self._collection.files[shard].path}, member {name!r}"


# --- columns of one index


def _keys_of(index: TarIndex, samples: Int64Array) -> pa.Array:
    return index.keys.take(pa.array(samples))


def _captions_of(index: TarIndex, samples: Int64Array) -> pa.Array:
    """Return the captions of samples in the index, as JSON texts or nulls."""
    if index.captions is None:
        return pa.nulls(len(samples), pa.string())
    return index.captions.take(pa.array(index.primary_members[samples]))


def _metadata_of(index: TarIndex, samples: Int64Array, column: str) -> pa.Array:
    """Return a column of ``METADATA`` for some samples."""
    primary = index.primary_members[samples]
    if column in _OF_MEMBERS:
        return pa.array(getattr(index, _OF_MEMBERS[column])).take(pa.array(primary))
    if column == "captions":
        texts = _captions_of(index, samples).to_pylist()
        found = [[] if text is None else json.loads(text) for text in texts]
        lists = [[one] if isinstance(one, str) else list(one) for one in found]
        return pa.array(lists, METADATA.field(column).type)
    if column == "json":
        if index.json is None:
            return pa.array([""] * len(primary))
        return index.json.take(pa.array(primary)).cast(pa.string()).fill_null("")
    width, height = (
        np.zeros(len(primary), np.int32) if sides is None else sides[primary]
        for sides in (index.widths, index.heights)
    )
    if column == "aspect":
        known = (width > 0) & (height > 0)
        return pa.array(np.where(known, width / np.where(known, height, 1), np.nan))
    return pa.array(width if column == "width" else height)
