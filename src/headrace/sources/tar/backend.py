"""``TarBackend``: samples of tar shards by their number."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.convert.decoded import Kinds, python_values
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords, parse_bytes
from headrace.sources.backend import Backend
from headrace.sources.broken_records import BrokenRecords
from headrace.sources.crew import in_threads
from headrace.sources.files.blocks import rows_only
from headrace.sources.files.failures import may_be_skipped
from headrace.sources.tar.buckets import AspectBuckets, aspect_buckets
from headrace.sources.tar.chosen import ChosenSamples
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.columns import AskedField, columns_of
from headrace.sources.tar.decoding import Decode, FieldForm, field_forms
from headrace.sources.tar.lending import TarLenders
from headrace.sources.tar.locate import Source
from headrace.sources.tar.opening import access_of
from headrace.sources.tar.payloads import Payloads
from headrace.sources.tar.samples import METADATA, cut_by_bytes, keys_of, members_of, metadata_of
from headrace.storage import Access, Options, RemoteStore, Store
from headrace.storage.listing import named_locations

__all__ = ["TarBackend"]

KEY, SHARD = "__key__", "__shard__"
_BLOCK_BYTES = 4 << 20
"""of a table of a stream, at most: the memory of larger ones would be fresh each time"""
_METADATA_BYTES = 256
"""about of what an index says of a sample"""


@checked_keywords
class TarBackend(Backend):
    """Samples of tars as rows: ``__key__``, ``__shard__``, and a column of bytes for each field.

    Where a sample has no such field it is null. ``decode=True`` decodes fields by their
    extensions: images to uint8 [3, H, W], json, cls to integers, npy, txt; a list does so for some
    fields, and a mapping says how ("image", "json", "int", "npy", "text", "bytes", or a function
    of bytes). ``load_file_data=False`` reads no payload, and gives what the index says of each
    sample. A sample with a member larger than ``max_file_size`` is an error before it is read.

    Tars without an index are scanned once, when they are first needed. With ``on_error="skip"``
    tars that cannot be indexed are left out and named in ``broken``, and streams leave out samples
    that cannot be read or decoded, and tell of them at their end.
    """

    def __init__(
        self,
        source: Source,
        *,
        metadata: Source | None = None,
        decode: Decode | None = None,
        load_file_data: bool = True,
        max_file_size: int | str | None = None,
        storage_options: Options | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        access: Access | None = None,
        on_error: str = "raise",
    ) -> None:
        """``metadata``: where the indexes are, if not beside the tars.

        ``access``: all that is to be said of stores and the cache, in place of the three before.
        """
        if access is None:
            access = access_of(storage_options, cache_dir, cache_bytes)
        if not load_file_data and decode:
            raise OptionError("decode has no effect with load_file_data=False: nothing is read")
        self.loads_file_data = load_file_data
        self._decode = decode
        self._skips_broken = on_error == "skip"
        self._limit = None if max_file_size is None else parse_bytes("max_file_size", max_file_size)
        self.collection = TarCollection.find(
            source,
            metadata=metadata,
            access=access,
            may_skip=may_be_skipped if self._skips_broken else None,
        )
        """the tars and their indexes"""
        self._payloads = Payloads(self.collection)
        self._lenders = TarLenders(self.collection)
        self._named = named_locations(source, as_they_are=access.filesystem is not None)

    @property
    def fork_safe(self) -> bool:  # type: ignore[override]
        """Whether a forked child can read: not of a store that cannot."""
        return self.collection.fork_safe

    @property
    def store(self) -> Store | None:  # type: ignore[override]
        """Where the tars are, unless on this machine."""
        store = self.collection.store
        return store if not store.local and store.fork_safe == self.fork_safe else None

    def through(self, store: Store) -> TarBackend:
        if not isinstance(store, RemoteStore):
            return self
        made = copy(self)
        made._payloads = self._payloads.during(store.meter, store.patience)
        return made

    @property
    def broken(self) -> tuple[str, ...]:
        """What is wrong with tars that were left out."""
        return self.collection.broken

    @property
    def given(self) -> Mapping[str, Any]:
        """The functions of ``decode``."""
        made = {f"decode[{name!r}]": form.function for name, form in self._forms.items()}
        return {name: function for name, function in made.items() if function is not None}

    def aspect_buckets(self, **options: Any) -> AspectBuckets:
        """Samples by the shapes of their images; see ``headrace.sources.tar.buckets``."""
        counts = self.collection.sample_counts
        return aspect_buckets(self.collection.index, counts, **options)

    # --- what there is

    @computed_once
    def schema(self) -> pa.Schema:
        """All columns, for which every index is looked at."""
        named = [pa.field(KEY, pa.string()), pa.field(SHARD, pa.string())]
        if not self.loads_file_data:
            return pa.schema([*named, *METADATA])
        return pa.schema([*named, *(form.field for form in self._forms.values())])

    @property
    def kinds(self) -> Kinds:
        if not self.loads_file_data:
            return {}
        forms = self._forms.items()
        return {name: form.kind for name, form in forms if form.kind is not None}

    @computed_once
    def _forms(self) -> dict[str, FieldForm]:
        names = self.collection.field_names
        for name in (KEY, SHARD):
            if name in names:
                raise SchemaError(f"a field of the samples is called {name}, as a column is")
        return field_forms(self._decode, {name: [name] for name in names})

    @property
    def shard_rows(self) -> Int64Array:
        return self.collection.sample_counts

    @property
    def shard_names(self) -> Sequence[str]:
        return [file.path for file in self.collection.files]

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

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """One sample as Python values; images and npy are arrays."""
        table, kinds = self.take([idx], columns=columns), self.kinds
        return {
            name: (python_values(column, kinds[name]) if name in kinds else column.to_pylist())[0]
            for name, column in zip(table.schema.names, table.columns, strict=True)
        }

    def lending(self, columns: Sequence[str]) -> TarBackend:
        """The same for a loader that copies the bytes of these columns when it cuts batches.

        Only what lies on this machine and is not decoded is lent. Tables have the places of bytes.
        """
        made = copy(self)
        made._forms = {
            name: FieldForm(name, "lent") if name in columns and form.is_plain else form
            for name, form in self._forms.items()
        }
        made.__dict__.pop("schema", None)
        return made

    # --- rows

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        shards = np.searchsorted(self.shard_starts, rows, side="right") - 1
        return self._table(shards, rows - self.shard_starts[shards], schema, in_threads)

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        return self._take(np.arange(start, start + length), schema)

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Samples that follow each other, in tables that are cut by what the index says."""
        if not len(schema):
            yield rows_only(length)
            return
        broken = BrokenRecords()
        most = min(block_bytes, _BLOCK_BYTES) if self.collection.store.local else block_bytes
        for shard, samples in self._runs(start, length):
            for some in self._cut(shard, samples, schema, most):
                table = self._streamed_table(shard, some, schema, broken)
                if table.num_rows:
                    yield table
        broken.tell()

    def _streamed_table(
        self, shard: int, samples: Int64Array, schema: pa.Schema, broken: BrokenRecords
    ) -> pa.Table:
        """Samples of a shard; those that cannot be read are left out if they may be."""
        try:
            return self._table(np.full(len(samples), shard), samples, schema)
        except ReadError as error:
            if not (self._skips_broken and may_be_skipped(error)):
                raise
        found = broken.all_but(
            samples.tolist(), lambda one: self._table(np.array([shard]), np.array([one]), schema)
        )
        return pa.concat_tables([schema.empty_table(), *(table for _, table in found)])

    def _runs(self, start: int, length: int) -> Iterator[tuple[int, Int64Array]]:
        """The shards that rows lie in, and which of their samples these are."""
        stop = start + length
        first = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        for shard in range(first, self.num_shards):
            begins, ends = self.shard_starts[shard : shard + 2].tolist()
            if begins >= stop:
                return
            if max(start, begins) < min(stop, ends):
                yield shard, np.arange(max(start, begins) - begins, min(stop, ends) - begins)

    def _cut(
        self, shard: int, samples: Int64Array, schema: pa.Schema, block_bytes: int
    ) -> Iterator[Int64Array]:
        """Samples in runs of about so many bytes."""
        forms = self._read_forms(schema)
        index = self.collection.index(shard)
        sizes = np.full(len(samples), _METADATA_BYTES, np.int64)
        for form in forms:
            members = members_of(index, form.name)[samples]
            sizes += np.where(members < 0, 0, index.sizes[members]) * form.growth
        return cut_by_bytes(samples, sizes, block_bytes)

    def _read_forms(self, schema: pa.Schema) -> list[FieldForm]:
        if not self.loads_file_data:
            return []
        return [self._forms[name] for name in schema.names if name in self._forms]

    def _table(
        self, shards: Int64Array, samples: Int64Array, schema: pa.Schema, each: Any = map
    ) -> pa.Table:
        """Samples of any shards, in this order. All that they need is read at once."""
        if not len(schema):
            return rows_only(len(shards))
        chosen = ChosenSamples(self.collection, shards, samples)
        forms = self._read_forms(schema)
        asked = [(form, chosen.members(form.name, self._limit)) for form in forms]
        lent = {form.name: chosen.places(some) for form, some in asked if form.how == "lent"}
        columns = self._lenders.lent(shards, lent)
        for form, some in asked:
            if form.name in lent:
                chosen.check_places(some, self._payloads)
        read = [
            AskedField(form, some, chosen.naming(some))
            for form, some in asked
            if form.name not in lent
        ]
        columns.update(columns_of(self._payloads, shards, read, each))
        for name in schema.names:
            if name == SHARD:
                columns[name] = pa.array(self.collection.names, pa.string()).take(pa.array(shards))
            elif name == KEY:
                columns[name] = chosen.joined(keys_of)
            elif name not in columns:
                columns[name] = chosen.joined(partial(metadata_of, column=name))
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
