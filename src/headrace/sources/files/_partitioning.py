"""Columns whose values are in the path of a file, such as ``year=2024/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.sources.files.filters import values_where

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class PathColumns:
    """The columns in paths, and how to get their values from a path."""

    schema: pa.Schema
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


NO_PATH_COLUMNS = PathColumns(pa.schema([]))


def path_columns(
    partitioning: str | ds.Partitioning | None, paths: Sequence[str], roots: Sequence[str]
) -> PathColumns:
    """Return the columns of all paths: integers if every value is one, else text."""
    if partitioning is None:
        return NO_PATH_COLUMNS
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
