"""What commands that read a source are told of it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from penstock.access import Backend
from penstock.errors import OptionError
from penstock.loader import ArrayRecordDataset, IcebergDataset, LanceDataset, PaimonDataset
from penstock.loader.opening import kind_of

__all__ = [
    "TABLES",
    "chosen_backend",
    "chosen_columns",
    "chosen_source",
    "chosen_storage",
    "json_options",
]

TABLES = ("iceberg", "paimon")
"""formats that are no formats of files"""
_LANCE, _ARRAY_RECORD = "lance", "array-record"


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
    """The rows of a Lance table or of ArrayRecord files; None if it is anything else."""
    named = [source] if isinstance(source, str) else list(source)
    kind = arguments.format or kind_of(named[0])
    if kind not in (_LANCE, _ARRAY_RECORD):
        return None
    if arguments.catalog is not None:
        raise OptionError("--catalog has no effect without --format iceberg or paimon")
    storage = chosen_storage(arguments)
    if kind == _ARRAY_RECORD:
        return ArrayRecordDataset(named, storage_options=storage).backend
    if len(named) > 1:
        raise OptionError("one Lance table is converted at a time")
    return LanceDataset(named[0], storage_options=storage).backend


def chosen_columns(arguments: Namespace) -> list[str] | None:
    """Those of ``--columns``."""
    return arguments.columns.split(",") if arguments.columns else None


def chosen_storage(arguments: Namespace) -> dict[str, Any] | None:
    """What stands in ``--storage-options``."""
    return json_options("--storage-options", arguments.storage_options)


def json_options(name: str, text: str | None) -> dict[str, Any] | None:
    """What stands in an argument of JSON; it is not shown, for it may be secret."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f'{name} must be JSON such as {{"endpoint_url": "https://host"}}')
    return found
