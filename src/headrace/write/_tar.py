"""``write_tar``: any source as indexed tar shards, which appear when all of them are whole."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
from headrace.write._tar_sources import Fields, FolderMembers, RowSamples, Sample, StoredSamples
from headrace.write._tar_writer import Member, TarLayout, WrittenShard

logger = logging.getLogger(__name__)

_MARKER = "_headrace_tars.json"
_TARS = re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)
_OPENED = re.compile(r"\.(lance|array_?record[^/]*)$")
_KEYS = ("keep", "prefix", "number")


class TarReport(CopyReport):
    """Tars that were written."""

    __slots__ = ()

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.rows

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the tars."""
        return tuple(part["name"] for part in self.parts)


@documented(TarCopyOptions)
def write_tar(
    source: Any,
    directory: PathLike,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    fields: Mapping[str, str] | None = None,
    key_column: str | None = None,
    keys: str = "keep",
    metadata: str | os.PathLike[str] | None = None,
    storage_options: Options | None = None,
    **options: Unpack[TarCopyOptions],
) -> TarReport:
    """Write a source as tar shards with their indexes, in its order.

    The directory appears when all is written. A run that was killed is continued by the next one
    with the same source and options, and to the same bytes. Captions in the indexes of source tars
    go into those of the copy; nothing else of them does.

    Args:
        source: A folder of files (those whose paths are the same up to the first dot of the name
            are a sample), tars, tabular files, a dataset or backend of this library, or tables at
            hand.
        directory: A directory, or a URL of an object store.
        format: What a path is: ``"folder"``, ``"tar"``, or the format of a table; None to tell it
            from the names of files.
        columns: The columns of a table to write; None for all.
        fields: Which field a column of a table becomes (``{"image": "jpg"}``). Other columns of
            bytes, and those named txt, cls, npy or json, are fields by their names, and all that is
            left goes into the field ``json`` (where NaN is null).
        key_column: The column that holds the keys; None: ``__key__`` if there is one, else rows are
            numbered.
        keys: ``"prefix"`` puts the path of a source tar before its keys, for tars whose keys
            repeat; ``"number"`` gives all samples new ones.
        metadata: Where the indexes of source tars are.
        storage_options: Credentials for the source.
        **options: Keywords of all copies to tars.
    """
    given = resolve(TarCopyOptions, options)
    layout = TarLayout.of(given)
    place = TargetOptions.of(directory, given)
    chosen = {"columns": columns, "fields": fields, "key_column": key_column, "metadata": metadata}
    samples = _samples(source, layout, format, keys, storage_options, chosen)
    choice = {"fields": fields or {}, "key_column": key_column, "keys": keys}
    return copy(
        samples.origin,
        samples.planned,
        files_at(place, _Encoder(layout, samples.advice), _MARKER),
        place,
        Runner.of(given),
        TarReport,
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
                shard.add(key, Member.all(key, sample))
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
    keys: str,
    storage_options: Options | None,
    chosen: Mapping[str, Any],
) -> StoredSamples | RowSamples:
    """Return the samples of a source; ``chosen`` are keywords that not every source has."""
    if keys not in _KEYS:
        raise OptionError(f"keys must be one of {', '.join(_KEYS)}, not {keys!r}")
    if not are_paths(source):
        given = {**chosen, "format": format, "storage_options": storage_options}
        _refuse("an object", given, "format", "storage_options", "metadata")
        return _rows(source, layout, keys, chosen)
    access = Access(storage_options=storage_options or {})
    listing = find_files(source, access)
    kind = format or _kind(listing)
    if kind == "tar":
        _refuse("tars", chosen, "columns", "fields", "key_column")
        tars = TarCollection.find(source, metadata=chosen["metadata"], access=access)
        return StoredSamples(layout, tars, Payloads(tars), listing.locations, keys)
    if kind == "folder":
        _refuse("a folder", chosen, "columns", "fields", "key_column", "metadata")
        files = FolderMembers(listing)
        return StoredSamples(layout, files, files, listing.locations, keys)
    _refuse("rows", chosen, "metadata")
    if format is not None:
        return _rows(source, layout, keys, chosen, format=format, storage_options=storage_options)
    logger.info(
        '%d files are read as tables, since format="folder" is not given', len(listing.files)
    )
    try:
        return _rows(source, layout, keys, chosen, storage_options=storage_options)
    except OptionError as error:
        raise OptionError(
            f'{error}; these files are taken for tables, format="folder" takes them as they are'
        ) from error


def _rows(
    source: Any, layout: TarLayout, keys: str, chosen: Mapping[str, Any], **options: Any
) -> RowSamples:
    if keys == "prefix":
        raise OptionError('keys="prefix" is for tars; rows have the path of no tar to begin with')
    rows = as_rows(source, columns=chosen["columns"], **options)
    fields = chosen["fields"] or {}
    made = Fields.of(rows.schema, fields, chosen["key_column"], numbered=keys == "number")
    return RowSamples(layout, rows, made)


def _refuse(what: str, given: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if given[name]:
            raise OptionError(f"{name} has no effect with {what}")


def _kind(listing: Listing) -> str | None:
    """Return what lies there by the names of files: tars, tables (None), or any files."""
    paths = [file.path for file in listing.files]
    if any(map(_TARS.search, paths)):
        return "tar"
    opened = next(filter(_OPENED.search, paths), None)
    if opened is not None:
        raise OptionError(
            f"{opened} is opened by a dataset of its own; give headrace.open({opened!r}).backend"
        )
    return None if all(format_of(path) for path in paths) else "folder"
