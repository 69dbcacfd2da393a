"""Columns whose values are in the path of a file, such as ``year=2024/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from headrace.errors import OptionError
from headrace.sources.files.filters import values_where

_NO_COLUMNS = pa.schema([])
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class PathColumns:
    """The columns in paths, and how to get their values from a path."""

    schema: pa.Schema = _NO_COLUMNS
    roots: Sequence[str] = ()
    scheme: ds.Partitioning | None = None
    """How pyarrow parses a path; None for key=value."""

    def values(self, path: str) -> dict[str, Any]:
        """Return the value of each column for one file; None where the path has none."""
        relative = _below(path, self.roots)
        if self.scheme is not None:
            found: Mapping[str, Any] = ds.get_partition_keys(self.scheme.parse(relative))
        else:
            found = _key_values(relative)
        return {f.name: _typed(found.get(f.name), f.type) for f in self.schema}

    def expression(self, values: Mapping[str, Any]) -> ds.Expression:
        """Return the expression that is true for every row of a file with these values."""
        known = ds.scalar(True)
        for column in self.schema:
            value, name = values[column.name], ds.field(column.name)
            known = known & (
                name.is_null() if value is None else name == pa.scalar(value, column.type)
            )
        return known


def path_columns(
    partitioning: str | ds.Partitioning | None, paths: Sequence[str], roots: Sequence[str]
) -> PathColumns:
    """Return the columns of all paths: integers if every value is one, else text."""
    if partitioning is None:
        return PathColumns()
    if isinstance(partitioning, ds.Partitioning):
        return PathColumns(partitioning.schema, tuple(roots), partitioning)
    if partitioning != "hive":
        raise OptionError(
            f"partitioning must be None, 'hive' or a pyarrow Partitioning, not {partitioning!r}"
        )
    seen: dict[str, set[str | None]] = {}
    for path in paths:
        for key, value in _key_values(_below(path, roots)).items():
            seen.setdefault(key, set()).add(value)
    fields = [pa.field(key, _common_type(values)) for key, values in seen.items()]
    return PathColumns(pa.schema(fields), tuple(roots))


def matching_paths(columns: PathColumns, paths: Sequence[str], keep: ds.Expression) -> list[bool]:
    """Return True for each path whose rows pass a filter that uses no other columns."""
    return values_where([columns.values(path) for path in paths], columns.schema, keep)


def possible_paths(
    columns: PathColumns, paths: Sequence[str], keep: ds.Expression, schema: pa.Schema
) -> list[bool]:
    """Return True for each path whose file may hold a row for ``keep``; nothing is opened.

    ``schema`` names all columns that ``keep`` uses. Paths with the same values are judged once.
    """
    values = [columns.values(path) for path in paths]
    distinct = {tuple(v.items()): v for v in values}
    format_, nowhere = ds.ParquetFileFormat(), pafs.LocalFileSystem()
    fragments = [
        format_.make_fragment(str(i), nowhere, partition_expression=columns.expression(value))
        for i, value in enumerate(distinct.values())
    ]
    judged = ds.FileSystemDataset(fragments, schema, format_, nowhere)
    try:
        left = {int(fragment.path) for fragment in judged.get_fragments(filter=keep)}
    except pa.ArrowException:  # an expression that cannot be computed of constants excludes nothing
        return [True] * len(paths)
    survivors = {key for i, key in enumerate(distinct) if i in left}
    return [tuple(v.items()) in survivors for v in values]


def _below(path: str, roots: Sequence[str]) -> str:
    """Return the path below the root, with the key=value parts at the end of the root itself."""
    root = max((r for r in roots if path.startswith(r.rstrip("/") + "/")), key=len, default="")
    parts = root.rstrip("/").split("/")
    kept = len(parts)
    while kept and "=" in parts[kept - 1]:
        kept -= 1
    return path[len("/".join(parts[:kept])) :]


def _key_values(relative: str) -> dict[str, str | None]:
    pairs = (part.partition("=") for part in relative.split("/")[:-1] if "=" in part)
    return {
        unquote(key): None if value == _HIVE_NULL else unquote(value) for key, _, value in pairs
    }


def _common_type(values: set[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    return pa.int64() if known and all(map(_INTEGER.fullmatch, known)) else pa.string()


def _typed(value: Any, type_: pa.DataType) -> Any:
    if value is None or not isinstance(value, str):
        return value
    return pa.scalar(value).cast(type_).as_py()
