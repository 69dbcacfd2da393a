"""Make a source from locations: list files, and find their format, schemas and counts.

`discover` reads top to bottom: list the files, choose their format, leave out files that their
paths exclude, look once into each of the others, and decide the columns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import (
    HeadraceError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
    may_be_skipped,
    naming,
    near_names,
)
from headrace.model import DataFileInfo, FileList
from headrace.sources.arrow._format import ArrowFormat
from headrace.sources.files._csv import CsvFormat
from headrace.sources.files._json import JsonFormat, JsonLinesFormat
from headrace.sources.files._lines import CODECS
from headrace.sources.files._orc import OrcFormat
from headrace.sources.files._sniffing import compression_in, hint_of, looks_like, read_head
from headrace.sources.files._source import FileSource
from headrace.sources.files._table_folders import refuse_tables
from headrace.sources.files.filters import (
    columns_of,
    names_in,
    relaxed,
    settle_filter,
    to_expression,
    values_where,
)
from headrace.sources.files.protocol import FileFacts, Format
from headrace.sources.files.schemas import (
    PathColumns,
    path_columns,
    plain_schema,
    project,
    unify,
)
from headrace.sources.parquet._format import ParquetFormat
from headrace.sources.source import Discovered
from headrace.storage import (
    Access,
    Listing,
    Store,
    find_files,
    load_manifest,
    side_by_side,
)

logger = logging.getLogger(__name__)

_INSPECTING_THREADS = 16
_REMOTE_INSPECTING_THREADS = 48
_FILES_A_THREAD = 16
"""Number of local files that make it worth starting a thread."""
_FORMATS = (ParquetFormat, OrcFormat, CsvFormat, JsonFormat, JsonLinesFormat, ArrowFormat)
_EXTENSIONS: dict[str, tuple[str, ...]] = {kind.name: kind.extensions for kind in _FORMATS}
_ENDINGS = {
    name: tuple(one + codec for one in own for codec in ("", *CODECS))
    for name, own in _EXTENSIONS.items()
}
"""Ends of the names of files, compressed ones among them, by format."""
FORMAT_NAMES = tuple(_EXTENSIONS)


def discover(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    filters: ds.Expression | Sequence[Any] | None = None,
    schema: pa.Schema | None = None,
    partitioning: str | ds.Partitioning | None = None,
    access: Access | None = None,
    manifest: str | os.PathLike[str] | None = None,
    format_options: Mapping[str, Any] | None = None,
    skip_broken: bool = False,
    as_files: bool | None = None,
) -> Discovered:
    """List files, exclude some by path, inspect each once in parallel, and decide the schema.

    A folder of a table format, or a part of one, is refused unless ``as_files`` is True. The files
    of a manifest were checked when it was written.
    """
    keep = None if filters is None else to_expression(filters)
    if schema is not None and not isinstance(schema, pa.Schema):
        raise OptionError(f"schema must be a pyarrow.Schema, not {schema!r}")
    access = access or Access()
    if manifest is None:
        listing = find_files(path, access)
    else:
        listing = load_manifest(path, access, manifest)
    name, listed = select_files(listing, format, check=manifest is None and not as_files)
    chosen = make_format(name, format_options, schema=schema)
    in_path = path_columns(partitioning, listed, listing.roots)
    found = _Inspection(listing.store, chosen, in_path, skip_broken)
    # A filter over paths alone is decided by them: it keeps all rows of the files that it keeps.
    asked, survivors = keep, listed
    if keep is not None and len(in_path.schema):
        survivors = found.prune(listed, keep)
        if set(columns_of(keep, in_path.schema)) == names_in(keep):
            asked = None
    infos, facts = found.inspect(survivors, asked)
    whole = unify(infos, facts, is_needed=partial(_is_needed, columns, schema, keep), given=schema)
    if not infos:  # nothing can match, but the columns must still be known
        whole = found.any_schema(listed)
    if schema is not None:
        whole = _given_schema(schema, {*whole.names, *in_path.schema.names})
    elif len(in_path.schema):  # columns of paths are the last, and take precedence
        own = [column for column in whole if column.name not in in_path.schema.names]
        whole = pa.schema([*own, *in_path.schema])
    output = project(whole, columns)
    if keep is not None:
        needed = columns_of(settle_filter(keep, whole), whole)
        if asked is not None:
            infos = found.pruned(infos, facts, [whole.field(name) for name in needed])
    if not columns and schema is None and name in ("json", "jsonl"):
        stored = pa.schema(list(whole)[: len(whole) - len(in_path.schema)])
        chosen = make_format(name, format_options, known=stored)
    source = FileSource(
        listing.store,
        whole,
        FileList(infos),
        chosen,
        in_path,
        is_filtered=asked is not None,
    )
    logger.info("%d files found, %d to read, %d columns", len(listed), len(infos), len(output))
    return replace(
        Discovered.of(source, output, filters=asked),
        roots=listing.roots,
        broken=found.broken,
        counts=access.meter.drain(),
        listing=listing,
    )


@dataclass(slots=True)
class _Inspection:
    """Looks into files, and remembers those that it could not read."""

    store: Store
    format: Format
    in_path: PathColumns
    skip_broken: bool
    broken: list[str] = field(default_factory=list)
    schemas: dict[bytes, pa.Schema] = field(default_factory=dict)

    def prune(self, files: list[DataFileInfo], keep: ds.Expression) -> list[DataFileInfo]:
        """Return the files that their paths do not exclude."""
        columns = self.in_path.schema
        keep = settle_filter(relaxed(keep, columns.names), columns)
        kept = values_where([self.in_path.values(file.path) for file in files], columns, keep)
        left = [file for file, keeps in zip(files, kept, strict=True) if keeps]
        logger.info("paths rule out %d of %d files", len(files) - len(left), len(files))
        return left

    def inspect(
        self, files: list[DataFileInfo], keep: ds.Expression | None
    ) -> tuple[list[DataFileInfo], list[FileFacts]]:
        """Look into files in parallel; broken ones are left out or raise."""
        threads = _REMOTE_INSPECTING_THREADS
        if self.store.local:
            threads = min(_INSPECTING_THREADS, len(files) // _FILES_A_THREAD)
        look = partial(self.look, keep=keep)
        looked: Iterable[FileFacts | ReadError] = map(look, files)
        if threads > 1:
            looked = side_by_side(look, files, threads=threads)
        infos: list[DataFileInfo] = []
        facts: list[FileFacts] = []
        for file, one in zip(files, looked, strict=True):
            if isinstance(one, ReadError):
                self.broken.append(str(one))
                continue
            facts.append(one)
            infos.append(one.added_to(file))
        return infos, facts

    def look(self, file: DataFileInfo, keep: ds.Expression | None) -> FileFacts | ReadError:
        """Look into a file; return why it is broken if broken files are skipped."""
        try:
            facts = self.format.inspect(self.store, file, keep)
        except ReadError as error:
            if not may_be_skipped(error):
                raise
            error = self._with_hint(file, error)
            if not self.skip_broken:
                raise error from error.__cause__
            return error
        # Many files have few schemas, so one object of each is kept. They are compared as bytes,
        # because a type made in Python may have no hash.
        key = facts.schema.serialize().to_pybytes()
        return replace(facts, schema=self.schemas.setdefault(key, facts.schema))

    def any_schema(self, files: list[DataFileInfo]) -> pa.Schema:
        """Return the columns of the first file that can be read."""
        for file in files:
            result = self.look(file, None)
            if not isinstance(result, ReadError):
                return result.schema
        return pa.schema([])

    def pruned(
        self, infos: list[DataFileInfo], facts: list[FileFacts], needed: Sequence[pa.Field]
    ) -> list[DataFileInfo]:
        """Return the files with the row groups that statistics leave, where these can be trusted.

        They can if a file has the columns that a filter needs in the types of the data set: rows
        are filtered in those, and in other types an expression may give another result. Columns
        that are also in paths have the values of the path, and statistics of others.
        """
        in_paths = set(self.in_path.schema.names)
        found: list[DataFileInfo] = []
        for file, fact in zip(infos, facts, strict=True):
            stored = dict(zip(fact.schema.names, fact.schema.types, strict=True))
            if fact.matching is not None and all(
                column.name not in stored
                or (stored[column.name] == column.type and column.name not in in_paths)
                for column in needed
            ):
                file = replace(file, row_groups=fact.matching)
            found.append(file)
        return found

    def _with_hint(self, file: DataFileInfo, error: ReadError) -> ReadError:
        """Return an error with a hint at the other format that the file looks like, if any."""
        try:
            hint = hint_of(file.path, read_head(self.store, file), self.format.name)
        except (HeadraceError, OSError):
            hint = None
        return error if hint is None else ReadError(f"{error}; {hint}")


def _is_needed(
    columns: Sequence[str] | None, schema: pa.Schema | None, keep: ds.Expression | None, name: str
) -> bool:
    """Return True if the user names a column of files, or names none, or the filter may use it."""
    if schema is not None:
        return name in schema.names
    if columns is None or isinstance(columns, str):
        return True
    filtered = names_in(keep)
    named = any(name in (str(one), str(one).partition(".")[0]) for one in columns)
    return named or filtered is None or name in filtered


def _given_schema(given: pa.Schema, known: Collection[str]) -> pa.Schema:
    """Return the columns that the user gives in place of those of the files."""
    for name in given.names:
        if name not in known:
            raise SchemaError(f"no file has a column {name!r}; {near_names(name, known)}")
    return plain_schema(given).remove_metadata()


# --- formats


def make_format(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    schema: pa.Schema | None = None,
    known: pa.Schema | None = None,
) -> Format:
    """Return the format of a name with a user's options.

    Args:
        name: Name of the format.
        options: Options of the user for the format.
        schema: Types of columns, for formats that store none.
        known: All columns of the data set; any other field of JSON is an error.
    """
    given = dict(options or {})
    if name == "csv":
        return CsvFormat(given, schema=schema)
    if name == "json":
        return JsonFormat(given, schema=schema, known=known)
    if name == "jsonl":
        return JsonLinesFormat(given, schema=schema, known=known)
    if name == "parquet":
        return ParquetFormat(given)
    if given:
        raise OptionError(f"format_options are for csv, json, jsonl and parquet, not for {name}")
    formats: dict[str, Format] = {"orc": OrcFormat(), "arrow": ArrowFormat()}
    return formats[name]


def format_of(path: str) -> str | None:
    """Return the format of an extension, also if the file is compressed."""
    name = path.rpartition("/")[2].lower()
    for format_, endings in _ENDINGS.items():
        if name.endswith(endings):
            return format_
    return None


def select_files(
    listing: Listing, format_: str | None, *, check: bool = False
) -> tuple[str, list[DataFileInfo]]:
    """Return the format and the files of it, sorted by path.

    Without a format the extensions decide, and must agree. If none is known, the first file that is
    not empty is looked into. In a directory only files with an extension of the format are taken,
    or, if there are none, those without any extension.

    Args:
        listing: The files.
        format_: The name of the format; None if the files decide.
        check: True to raise an error for files of tables.
    """
    if format_ is not None and format_ not in _EXTENSIONS:
        raise OptionError(f"format must be one of {', '.join(FORMAT_NAMES)} or None: {format_!r}")
    by_format: dict[str | None, list[DataFileInfo]] = {}
    for file in listing.files:
        by_format.setdefault(format_of(file.path), []).append(file)
    try:
        format_ = format_ or _only_format(listing, by_format)
    except OptionError:
        if check:
            refuse_tables(listing, listing.files)
        raise
    files = by_format.pop(format_, [])
    if listing.named:  # whatever their extensions
        files += [one for some in by_format.values() for one in some if one.path in listing.named]
    files = sorted(files or _without_extension(listing), key=attrgetter("path"))
    if check:
        refuse_tables(listing, files or listing.files)
    if not files:
        others = sorted(filter(None, by_format))
        hint = (
            f"; these look like {' and '.join(others)}: use format={others[0]!r}" if others else ""
        )
        raise NothingFoundError(
            f"no {format_} file among the {len(listing.files)} files of "
            f"{', '.join(listing.roots)}; a {format_} file ends in "
            f"{' or '.join(_EXTENSIONS[format_])}{hint}"
        )
    return format_, files


def _only_format(listing: Listing, by_format: Mapping[str | None, Sequence[DataFileInfo]]) -> str:
    """Return the one format of the files, by their extensions or by the content of the first."""
    known = sorted(filter(None, by_format))
    tars = set()
    for file in by_format.get(None, ()):
        if file.path.endswith(".tar"):
            tars.add(file.path[:-4])
    if tars:
        _refuse_tars(listing, tars, [file.path for name in known for file in by_format[name]])
    if not known:
        return _format_by_content(listing)
    if len(known) > 1:
        raise OptionError(
            f"{', '.join(listing.roots)} holds {' and '.join(known)} files; "
            "give format= one of them"
        )
    return known[0]


def _without_extension(listing: Listing) -> list[DataFileInfo]:
    return [file for file in listing.files if "." not in file.path.rpartition("/")[2]]


def _format_by_content(listing: Listing) -> str:
    """Return the format that the first file with content looks like."""
    files = [f for f in listing.files if f.path in listing.named] or _without_extension(listing)
    for file in files:
        if file.file_size == 0:
            continue
        with naming(file.path):
            head = read_head(listing.store, file)
        compression, name = compression_in(head), looks_like(head)
        if compression is not None and not file.path.lower().endswith(compression[1]):
            raise OptionError(f"{file.path}: {hint_of(file.path, head, name or '')}")
        if name is None:
            raise OptionError(
                f"{file.path}: neither its extension nor its content identifies a format; "
                f"give format= one of {', '.join(FORMAT_NAMES)}"
            )
        return name
    raise OptionError(
        f"no extension in {', '.join(listing.roots)} identifies a format, and there is no file "
        f"with content to look into; give format= one of {', '.join(FORMAT_NAMES)}"
    )


def _refuse_tars(listing: Listing, tars: set[str], others: Sequence[str]) -> None:
    """Raise an error for tars, unless there are other files beside them than their indexes."""
    indexes = [path for path in others if path.removesuffix(".json") in tars]
    indexes += [path for path in others if path.removesuffix(".idx.arrow") in tars]
    if len(indexes) == len(others):
        raise OptionError(
            f"{', '.join(listing.roots)} holds tars; open them with headrace.TarDataset, or give "
            f"format= one of {', '.join(FORMAT_NAMES)} for other files"
        )
