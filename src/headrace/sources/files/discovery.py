"""From locations to files with all that planning needs: listing, formats, schemas, counts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import (
    HeadraceError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
)
from headrace.model import DataFileInfo, FileList
from headrace.sources.files.failures import may_be_skipped
from headrace.sources.files.filters import (
    binds,
    columns_of,
    names_in,
    near_names,
    settle_filter,
    to_expression,
    with_exact_integers,
)
from headrace.sources.files.partitioning import (
    PathColumns,
    matching_paths,
    path_columns,
    possible_paths,
)
from headrace.sources.files.protocol import FileFacts, Format
from headrace.sources.files.registry import FORMAT_NAMES, make_format, select_files
from headrace.sources.files.schemas import project, unify
from headrace.sources.files.sniffing import hint_of, read_head
from headrace.sources.files.source import FileSource
from headrace.sources.files.table_folders import refuse_tables
from headrace.sources.reader import Discovered, TabularReader
from headrace.storage import (
    Access,
    FileStatus,
    Listing,
    Store,
    find_files,
    load_manifest,
    side_by_side,
)

__all__ = ["discover"]


logger = logging.getLogger(__name__)


_INSPECTING_THREADS = 16
_WAITING_THREADS = 48
_SECONDS_WORTH_A_THREAD = 0.005


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
    """List, prune by path, inspect each file once in parallel, and decide the schema.

    A folder of a table format, or a part of one, is refused unless ``as_files`` is True. What a
    manifest lists was checked when it was found.
    """
    keep = to_expression(filters)
    if schema is not None and not isinstance(schema, pa.Schema):
        raise OptionError(f"schema must be a pyarrow.Schema, not {schema!r}")
    access = access or Access()
    if manifest is None:
        listing = find_files(path, access)
    else:
        listing = load_manifest(path, access, manifest)
    name, statuses = _selected(listing, format, check=manifest is None and not as_files)
    chosen = make_format(name, format_options, schema=schema)
    in_path = path_columns(partitioning, [s.path for s in statuses], listing.roots)
    found = _Inspection(listing.store, chosen, in_path, skip_broken)
    # A filter over paths alone is settled by them: what it keeps, it keeps whole.
    exact = keep is not None and len(in_path.schema) > 0 and binds(keep, in_path.schema)
    by_path = settle_filter(keep, in_path.schema) if keep is not None and exact else keep
    survivors = found.prune(statuses, by_path, exact)
    pushed = None if exact else keep
    infos, facts = found.inspect(survivors, pushed)
    wanted = _wanted(columns, schema, keep)
    schemas = ((info.path, fact.schema) for info, fact in zip(infos, facts, strict=True))
    stored = unify(schemas, wanted=wanted, given=schema)
    if not infos:  # nothing can match, but what columns there are must still be known
        stored = found.any_schema(statuses)
    whole = _whole_schema(stored, in_path, schema)
    output = project(whole, columns)
    needed: Sequence[str] = []
    if keep is not None:
        settled = settle_filter(keep, whole)
        pushed = None if exact else settled
        needed = [] if pushed is None else columns_of(settled, whole)
        infos = found.trusted(infos, facts, [whole.field(name) for name in needed])
    if pushed is not None and _all_settled(infos):
        pushed, needed = None, []
        infos = [_counting_what_is_left(info) for info in infos]
    read = {field.name: field for field in output} | {name: whole.field(name) for name in needed}
    read_schema = pa.schema([read[name] for name in whole.names if name in read])
    if not columns and schema is None:
        in_files = [field for field in whole if field.name not in in_path.schema.names]
        chosen = make_format(name, format_options, known=pa.schema(in_files))
    files = FileList(infos)
    asked = None if exact else keep
    source = FileSource(listing.store, chosen, whole, files, in_path, is_filtered=asked is not None)
    reader = TabularReader(source, output, read_schema, pushed)
    logger.info("%d files found, %d to read, %d columns", len(statuses), len(infos), len(output))
    counts = access.meter.drain()
    return Discovered(
        reader,
        files,
        roots=listing.roots,
        filter=asked,
        broken=found.broken,
        counts=counts,
        listing=listing,
    )


def _selected(
    listing: Listing, format_: str | None, *, check: bool
) -> tuple[str, list[FileStatus]]:
    """Return the format and the files of it; if ``check``, refuse those of tables."""
    try:
        name, statuses = select_files(listing, format_)
    except (OptionError, NothingFoundError):
        if check and (format_ is None or format_ in FORMAT_NAMES):
            refuse_tables(listing, listing.files)
        raise
    if check:
        refuse_tables(listing, statuses)
    return name, statuses


class _Inspection:
    """Looks into files, and remembers those that it could not read."""

    def __init__(
        self, store: Store, format_: Format, in_path: PathColumns, skip_broken: bool
    ) -> None:
        self.broken: list[str] = []
        self._store = store
        self._format = format_
        self._in_path = in_path
        self._skip_broken = skip_broken
        self._schemas: dict[bytes, pa.Schema] = {}

    def prune(
        self, statuses: list[FileStatus], keep: ds.Expression | None, exact: bool
    ) -> list[FileStatus]:
        """Files whose path does not rule them out."""
        if keep is None or not self._in_path.schema.names:
            return statuses
        columns = self._in_path.schema
        paths = [status.path for status in statuses]
        if exact:
            kept = matching_paths(self._in_path, paths, keep)
        else:
            stored = self.any_schema(statuses)
            columns = pa.schema([*(f for f in stored if f.name not in columns.names), *columns])
            if not binds(keep, columns):  # a column that only other files have
                return statuses
            keep = with_exact_integers(keep, columns)
            kept = possible_paths(self._in_path, paths, keep, columns)
        left = [status for status, keeps in zip(statuses, kept, strict=True) if keeps]
        logger.info("paths rule out %d of %d files", len(statuses) - len(left), len(statuses))
        return left

    def inspect(
        self, statuses: list[FileStatus], keep: ds.Expression | None
    ) -> tuple[list[DataFileInfo], list[FileFacts]]:
        """What is in each file; broken ones are left out or raise."""
        results = self._look_at_all(statuses, keep)
        infos: list[DataFileInfo] = []
        facts: list[FileFacts] = []
        for status, result in zip(statuses, results, strict=True):
            if isinstance(result, ReadError):
                self.broken.append(str(result))
                continue
            facts.append(result)
            infos.append(
                DataFileInfo(
                    status.path,
                    status.size,
                    result.record_count,
                    result.row_groups,
                    status.etag,
                    result.body_offset,
                    result.splittable,
                )
            )
        return infos, facts

    def trusted(
        self, infos: list[DataFileInfo], facts: list[FileFacts], filtered: Sequence[pa.Field]
    ) -> list[DataFileInfo]:
        """Files of which statistics may rule out row groups; of others all are taken.

        Rows are filtered in the types of the data set, and statistics are in those of the file:
        where they differ, an expression may come out differently.
        """
        return [
            self._with_all_groups(info) if _in_other_types(fact.schema, filtered) else info
            for info, fact in zip(infos, facts, strict=True)
        ]

    def _with_all_groups(self, file: DataFileInfo) -> DataFileInfo:
        whole = self._format.inspect(self._store, file)
        return replace(file, record_count=whole.record_count, row_groups=whole.row_groups)

    def _look_at_all(
        self, statuses: list[FileStatus], keep: ds.Expression | None
    ) -> Iterator[FileFacts | ReadError]:
        """Look into files in parallel: at local ones, that cost no waiting, if it takes long.

        How long it takes the second tells: the first also makes what all others use again.
        """
        threads = _INSPECTING_THREADS if self._store.local else _WAITING_THREADS
        if self._store.local:
            seconds = 0.0
            for status in statuses[:2]:
                began = time.perf_counter()
                yield self._look(status, keep)
                seconds = time.perf_counter() - began
            statuses = statuses[2:]
            threads = min(threads, int(len(statuses) * seconds / _SECONDS_WORTH_A_THREAD))
        yield from _in_parallel(lambda status: self._look(status, keep), statuses, threads)

    def any_schema(self, statuses: list[FileStatus]) -> pa.Schema:
        """The columns of the first file that can be read."""
        for status in statuses:
            result = self._look(status, None)
            if not isinstance(result, ReadError):
                return result.schema
        return pa.schema([])

    def _look(self, status: FileStatus, keep: ds.Expression | None) -> FileFacts | ReadError:
        file = DataFileInfo(status.path, status.size, etag=status.etag)
        try:
            facts = self._format.inspect(self._store, file, keep)
            if keep is not None and set(facts.schema.names) & set(self._in_path.schema.names):
                # The path's value of a column is what counts, and statistics are of the file's.
                facts = self._format.inspect(self._store, file)
        except ReadError as error:
            if not may_be_skipped(error):
                raise
            error = self._with_hint(file, error)
            if not self._skip_broken:
                raise error from error.__cause__
            return error
        # Many files have few schemas: keep one object of each, and not one a file. By its bytes: a
        # type that somebody made in Python has no hash.
        key = facts.schema.serialize().to_pybytes()
        return replace(facts, schema=self._schemas.setdefault(key, facts.schema))

    def _with_hint(self, file: DataFileInfo, error: ReadError) -> ReadError:
        """Return an error that also says what the file looks like, if that is another format."""
        try:
            hint = hint_of(file.path, read_head(self._store, file), self._format.name)
        except (HeadraceError, OSError):
            hint = None
        return error if hint is None else ReadError(f"{error}; {hint}")


def _in_parallel(
    look: Callable[[FileStatus], FileFacts | ReadError], statuses: list[FileStatus], threads: int
) -> list[FileFacts | ReadError]:
    if threads < 2 or len(statuses) < 2:
        return [look(status) for status in statuses]
    return list(side_by_side(look, statuses, threads=threads))


def _in_other_types(stored: pa.Schema, filtered: Sequence[pa.Field]) -> bool:
    types = dict(zip(stored.names, stored.types, strict=True))
    return any(types.get(field.name, field.type) != field.type for field in filtered)


def _all_settled(files: Sequence[DataFileInfo]) -> bool:
    """Whether statistics have settled a filter: there is no row left that it would drop."""
    groups = [file.row_groups for file in files]
    return bool(groups) and all(g is not None and g.settled.all() for g in groups)


def _counting_what_is_left(file: DataFileInfo) -> DataFileInfo:
    assert file.row_groups is not None
    return replace(file, record_count=int(file.row_groups.rows.sum()))


def _wanted(
    columns: Sequence[str] | None, schema: pa.Schema | None, keep: ds.Expression | None
) -> set[str] | None:
    """Return the columns of files that matter; None if all do."""
    if schema is not None:
        return set(schema.names)
    filtered = names_in(keep)
    if columns is None or isinstance(columns, str) or filtered is None:
        return None
    return filtered.union(*({str(name), str(name).partition(".")[0]} for name in columns))


def _whole_schema(stored: pa.Schema, in_path: PathColumns, given: pa.Schema | None) -> pa.Schema:
    """All columns there are: those of the files, then those of the paths, which win."""
    if given is not None:
        known = {*stored.names, *in_path.schema.names}
        for name in given.names:
            if name not in known:
                raise SchemaError(f"no file has a column {name!r}; {near_names(name, known)}")
        return given.remove_metadata()
    own = [f for f in stored if f.name not in in_path.schema.names]
    return pa.schema([*own, *in_path.schema])
