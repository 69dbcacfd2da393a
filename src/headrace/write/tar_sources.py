"""What is copied into tars: files of a folder, rows of tables, samples of other tars."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa

from headrace.access import Backend
from headrace.errors import OptionError
from headrace.sources.files.discovery import format_of
from headrace.storage import Access, Listing, Options, find_files
from headrace.write.incoming import Incoming
from headrace.write.source import FileRows, SourceRows, as_rows
from headrace.write.tar_folder import FolderSamples
from headrace.write.tar_rows import Fields, RowSamples
from headrace.write.tar_samples import Samples
from headrace.write.tar_tars import TarSamples

__all__ = ["Choice", "is_at_hand", "other_keys", "samples_of"]

logger = logging.getLogger(__name__)

_TARS = re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)
_OPENED = re.compile(r"\.(lance|array_?record[^/]*)$")
_KEYS = ("keep", "prefix", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a source is taken, and as what."""

    format: str | None = None
    columns: Sequence[str] | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    key_column: str | None = None
    keys: str = "keep"
    metadata: str | os.PathLike[str] | None = None
    storage_options: Options | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.keys not in _KEYS:
            raise OptionError(f"keys must be one of {', '.join(_KEYS)}, not {self.keys!r}")

    @property
    def access(self) -> Access:
        return Access(storage_options=self.storage_options or {})

    @property
    def facts(self) -> dict[str, Any]:
        """What has to be the same when the work is gone on with."""
        return {"fields": dict(self.fields), "key_column": self.key_column, "keys": self.keys}


def samples_of(source: Any, choice: Choice) -> Samples:
    """The samples of a source."""
    if not isinstance(source, str | os.PathLike) and not _are_paths(source):
        return _rows(*_given(source, choice), choice)
    listing = find_files(source, choice.access)
    kind = choice.format or _kind(listing)
    if kind == "tar":
        _refuse(choice, "tars", "columns", "fields", "key_column")
        named = listing.locations
        return TarSamples.of(source, named, choice.metadata, choice.access, choice.keys)
    if kind == "folder":
        _refuse(choice, "a folder", "columns", "fields", "key_column", "metadata")
        return FolderSamples.of(listing, numbered=choice.keys == "number")
    _refuse(choice, "rows", "metadata")
    if kind is None:
        logger.info(
            '%d files are read as tables, for format="folder" is not given', len(listing.files)
        )
    access = None if choice.storage_options is None else choice.access
    try:
        rows, named = as_rows(source, format=choice.format, columns=choice.columns, access=access)
        return _rows(rows, named, choice)
    except OptionError as error:
        if choice.format is not None:
            raise
        raise OptionError(
            f'{error}; these files are taken for tables, format="folder" takes them as they are'
        ) from error


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(
        isinstance(one, str | os.PathLike) for one in source
    )


def _kind(listing: Listing) -> str | None:
    """What lies there by the names of files: tars, tables, or anything."""
    paths = [file.path for file in listing.files]
    if any(map(_TARS.search, paths)):
        return "tar"
    opened = next(filter(_OPENED.search, paths), None)
    if opened is not None:
        raise OptionError(
            f"{opened} is opened by a dataset of its own; give headrace.open({opened!r}).backend"
        )
    return None if all(format_of(path) for path in paths) else "folder"


def _refuse(choice: Choice, what: str, *names: str) -> None:
    given = next((name for name in names if getattr(choice, name)), None)
    if given is not None:
        raise OptionError(f"{given} has no effect with {what}")


def _rows(rows: SourceRows, named: Sequence[str], choice: Choice) -> RowSamples:
    if choice.keys == "prefix":
        raise OptionError('keys="prefix" is for tars; rows have the path of no tar to begin with')
    numbered = choice.keys == "number"
    fields = Fields.of(rows.schema, choice.fields, choice.key_column, numbered)
    return RowSamples(rows, named, fields)


def _given(source: Any, choice: Choice) -> tuple[SourceRows, Sequence[str]]:
    """The rows of an object: a backend, a dataset, or tables that are at hand."""
    _refuse(choice, "an object", "format", "storage_options", "metadata")
    if isinstance(source, Backend):
        found = source.found(columns=choice.columns)
        return FileRows.of(found.reader, found.files), source.locations
    if isinstance(source, SourceRows) or hasattr(source, "pipeline"):
        return as_rows(source, columns=choice.columns)
    incoming = Incoming.of(source, columns=choice.columns)
    return _AtHand(incoming.schema, incoming.tables), ()


def is_at_hand(samples: Samples) -> bool:
    """Whether they can be gone through but once, so that nobody can go on with them."""
    return isinstance(samples, RowSamples) and isinstance(samples.rows, _AtHand)


def other_keys(samples: Samples) -> str:
    """What to do if keys cannot be kept."""
    advice = 'or give keys="number" for new keys'
    if isinstance(samples, TarSamples) and samples.keys == "keep":
        advice += ', or keys="prefix" for the path of each tar before its keys'
    return advice


@dataclass(frozen=True, slots=True)
class _AtHand:
    """Tables that are gone through once: a run that was killed is not gone on with."""

    schema: pa.Schema
    tables: Iterator[pa.Table]
    facts: Mapping[str, str] = field(default_factory=lambda: {"source_files": uuid4().hex})
    weights: Sequence[int] = (1,)
    local: bool = True

    def bounded(self, chunk: int) -> bool:
        return False

    def read(self, chunk: int, block_bytes: int) -> Iterator[pa.Table]:
        return self.tables
