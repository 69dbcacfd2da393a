"""What commands that read a source are told of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from headrace.access import Backend
from headrace.cli.common import chosen_storage, json_options
from headrace.errors import OptionError
from headrace.loader import (
    ArrayRecordDataset,
    IcebergDataset,
    LanceDataset,
    PaimonDataset,
    TarDataset,
)
from headrace.loader.datasets import kind_of

__all__ = [
    "TABLES",
    "chosen_backend",
    "chosen_columns",
    "chosen_source",
    "opened_source",
]

TABLES = ("iceberg", "paimon")
"""formats that are no formats of files"""
_LANCE, _ARRAY_RECORD, _TAR = "lance", "array-record", "tar"
_OPENED: dict[str, Callable[..., Any]] = {
    _LANCE: LanceDataset,
    _ARRAY_RECORD: ArrayRecordDataset,
    _TAR: TarDataset,
}


def chosen_source(source: Any, arguments: Namespace) -> Any:
    """What is copied: a location, or the dataset of a table."""
    catalog = json_options("--catalog", arguments.catalog)
    if arguments.format not in TABLES:
        if catalog is not None:
            raise OptionError("--catalog has no effect without --format iceberg or paimon")
        return source
    chosen: dict[str, Any] = {
        "columns": chosen_columns(arguments),
        "storage_options": chosen_storage(arguments),
    }
    if arguments.format == "iceberg":
        return IcebergDataset(source, catalog, **chosen)
    return PaimonDataset(source, catalog_options=catalog or {}, **chosen)


def chosen_backend(source: str | Sequence[str], arguments: Namespace) -> Backend | None:
    """The rows of a Lance table, of ArrayRecord files or tars; None if it is anything else."""
    named = [source] if isinstance(source, str) else list(source)
    kind = arguments.format or kind_of(named[0])
    if kind not in _OPENED:
        return None
    if arguments.catalog is not None:
        raise OptionError("--catalog has no effect without --format iceberg or paimon")
    storage = chosen_storage(arguments)
    if kind == _ARRAY_RECORD:
        return ArrayRecordDataset(named, storage_options=storage).backend
    if kind == _TAR:
        return TarDataset(named, storage_options=storage).backend
    if len(named) > 1:
        raise OptionError("one Lance table is converted at a time")
    return LanceDataset(named[0], storage_options=storage).backend


def opened_source(source: str, arguments: Namespace) -> Any:
    """What is copied row by row: a location of files, or the dataset of anything else."""
    kind = arguments.format or kind_of(source)
    if kind not in _OPENED:
        return chosen_source(source, arguments)
    if arguments.catalog is not None:
        raise OptionError("--catalog has no effect without --format iceberg or paimon")
    storage, columns = chosen_storage(arguments), chosen_columns(arguments)
    return _OPENED[kind](source, storage_options=storage, columns=columns)


def chosen_columns(arguments: Namespace) -> list[str] | None:
    """Those of ``--columns``."""
    return arguments.columns.split(",") if arguments.columns else None
