"""``write_tar``: any source as indexed tar shards, which appear when all of them are complete."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from headrace.errors import OptionError
from headrace.options import TarCopyOptions, documented, resolve
from headrace.sources.files.discovery import format_of
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.payloads import Payloads
from headrace.storage import Access, Listing, Options, find_files
from headrace.write._copier import CopyReport, Receipt, Runner, TargetOptions, copy
from headrace.write._folders import files_at
from headrace.write._places import PathLike
from headrace.write._row_sources import are_paths, as_rows
from headrace.write._tar_format import KeyRefusedError, checked_key
from headrace.write._tar_sources import (
    CAPTIONS,
    Fields,
    FolderMembers,
    RowSamples,
    Sample,
    StoredSamples,
)
from headrace.write._tar_writer import Member, TarLayout, WrittenShard

_TARS = re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)
_OPENED = re.compile(r"\.(lance|array_?record[^/]*)$")
_FITTING = {"columns": "rows", "fields": "rows", "key_column": "rows", "metadata": "tar"}
"""The kinds of sources that keywords are for."""


@documented(TarCopyOptions)
def write_tar(
    source: Any,
    directory: PathLike,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    **options: Unpack[TarCopyOptions],
) -> CopyReport:
    """Write a source as tar shards with their indexes, in its order.

    The directory appears when all is written. A run that was killed is continued by the next one
    with the same source and options, and to the same bytes. Of the indexes of source tars, only
    captions are copied into the new indexes.

    Args:
        source: A folder of files (those whose paths are the same up to the first dot of the name
            are a sample), tars, tabular files, a dataset or backend of this library, or tables in
            memory.
        directory: A directory, or a URL of an object store.
        format: The kind of source at a path: ``"folder"``, ``"tar"``, or the format of a table;
            None to infer it from the names of files.
        columns: The columns of a table to write; None for all.
        storage_options: Credentials for the source.
        **options: Keywords of all copies to tars.
    """
    given = resolve(TarCopyOptions, options)
    layout = TarLayout.of(given)
    place = TargetOptions.of(directory, given)
    samples = _samples(source, layout, format, columns, storage_options, given)
    choice = {name: given[name] for name in ("fields", "key_column", "keys")}
    return copy(
        samples.origin,
        samples.planned,
        files_at(place, _Encoder(layout, samples.advice)),
        place,
        Runner.of(given),
        work={"work": "tar", **choice, **asdict(layout)},
    )


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Writes samples to one tar."""

    layout: TarLayout
    advice: str

    def __call__(
        self, folder: Path, part: int, schema: pa.Schema, samples: Iterator[Sample]
    ) -> Receipt:
        shard = WrittenShard(folder, self.layout, part)
        try:
            for sample in samples:
                key = checked_key(sample)
                shard.add(key, Member.all(key, sample), sample.get(CAPTIONS))
        except BaseException as error:
            shard.abandon()
            if isinstance(error, KeyRefusedError):
                raise OptionError(f"{error}; {self.advice}") from error
            raise
        receipt = shard.finish()
        return {**receipt, "rows": receipt["samples"]}


def _samples(
    source: Any,
    layout: TarLayout,
    format: str | None,
    columns: Sequence[str] | None,
    storage_options: Options | None,
    given: TarCopyOptions,
) -> StoredSamples | RowSamples:
    """Return the samples of a source."""
    access = Access(storage_options=storage_options or {})
    listing = find_files(source, access) if are_paths(source) else None
    kind = "rows"
    if listing is not None and (format is None or format in ("tar", "folder")):
        kind = format or _kind(listing)
    keys = given["keys"]
    for name, value in {**given, "columns": columns}.items():
        fitting = _FITTING.get(name, kind)
        if value is not None and fitting != kind:
            raise OptionError(
                f"{name} is for {fitting}, and has no effect with this source ({kind})"
            )
    if keys == "prefix" and kind != "tar":
        raise OptionError('keys="prefix" has an effect only if the source is tars')
    if listing is not None and kind == "tar":
        tars = TarCollection.find(source, metadata=given["metadata"], access=access)
        return StoredSamples(layout, tars, Payloads(tars), listing.locations, keys)
    if listing is not None and kind == "folder":
        files = FolderMembers(listing)
        return StoredSamples(layout, files, files, listing.locations, keys)
    try:
        rows = as_rows(source, columns=columns, format=format, storage_options=storage_options)
        fields = Fields.of(
            rows.schema, given["fields"] or {}, given["key_column"], numbered=keys == "number"
        )
    except OptionError as error:
        if listing is None or format is not None:
            raise
        raise OptionError(
            f'{error}; these files are read as tables; format="folder" copies them unchanged'
        ) from error
    return RowSamples(layout, rows, fields)


def _kind(listing: Listing) -> str:
    """Return the kind of a source by the names of its files: tars, rows, or any files."""
    paths = [file.path for file in listing.files]
    if any(map(_TARS.search, paths)):
        return "tar"
    opened = next(filter(_OPENED.search, paths), None)
    if opened is not None:
        raise OptionError(
            f"{opened} cannot be read by its path here; give headrace.open({opened!r}).backend"
        )
    return "rows" if all(format_of(path) for path in paths) else "folder"
