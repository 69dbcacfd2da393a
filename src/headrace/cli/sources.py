"""The arguments of commands that read a source."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from typing import Any, get_args

import headrace
from headrace.cli.terminal import as_flag, chosen_storage, json_options
from headrace.errors import OptionError
from headrace.options import RowSourceOptions, known_options
from headrace.sources.kind import kind_of

_OPENED = {"lance": "LanceDataset", "array-record": "ArrayRecordDataset", "tar": "TarDataset"}
"""Public names of the datasets that open a kind of source. They import torch, so that they are
imported for these kinds only."""
_OF_SOURCES = known_options(RowSourceOptions).keys()
"""Keywords that ``open_source`` returns."""


def add_source_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of all copies that describe the source."""
    source = parser.add_argument_group("source")
    source.add_argument(
        "--format",
        help="format of the files, or folder, tar, iceberg, paimon, lance, array-record (default: "
        "by name)",
    )
    source.add_argument("--columns", metavar="A,B", help="the columns to copy (default: all)")
    source.add_argument("--partitioning", choices=["hive"], help="columns in the source's paths")
    source.add_argument("--catalog", metavar="JSON", help="of a table: its catalog_config/_options")
    source.add_argument("--storage-options", metavar="JSON", help="credentials for SOURCE")


def add_options(
    parser: ArgumentParser, kind: type, *, without: Sequence[str] = (), only: Sequence[str] = ()
) -> None:
    """Add keywords of an options class as arguments, which are absent if they are not given.

    Args:
        parser: The parser.
        kind: The options class.
        without: Keywords that are left out, beside those of the source, and ``progress``.
        only: The keywords to add; none for all others.
    """
    groups: dict[str, Any] = {}
    for name, option in known_options(kind).items():
        if name in (*without, "progress", *_OF_SOURCES) or (only and name not in only):
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        types = get_args(option.type) or (option.type,)
        how: dict[str, Any] = {
            "type": next((one for one in (str, float, int) if one in types), str)
        }
        if option.type is bool:
            how = {"action": BooleanOptionalAction if option.default else "store_true"}
        elif _is_json(name):
            how = {"metavar": "JSON"}
        elif option.choices:
            or_none = ["none"] if type(None) in types and option.default is not None else []
            how = {"choices": [*option.choices, *or_none]}
        default = "" if option.default in (None, False) else f" (default: {option.default})"
        text = f"{option.doc.rstrip('.')}{default}".replace("%", "%%")
        groups[option.group].add_argument(as_flag(name), help=text, default=SUPPRESS, **how)


def given_options(arguments: Namespace, kind: type, *, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keywords of an options class that were given."""
    given = {}
    for name, option in known_options(kind).items():
        if name in _OF_SOURCES:
            continue
        if hasattr(arguments, name) and (not only or name in only):
            value = getattr(arguments, name)
            if _is_json(name):
                value = json_options(as_flag(name), value)
            given[name] = None if option.choices and value == "none" else value
    return given


def _is_json(name: str) -> bool:
    return name == "fields" or name.endswith("_options")


def open_source(
    named: str | Sequence[str], arguments: Namespace, *, as_paths: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return the source of a copy, and its keywords; a dataset has consumed its own keywords.

    Args:
        named: The source as the user named it.
        arguments: Those of ``add_source_arguments``.
        as_paths: Kinds of sources that the writer opens itself.
    """
    names = [named] if isinstance(named, str) else list(named)
    source = names[0] if len(names) == 1 else names
    kind = arguments.format or kind_of(names[0])
    catalog = json_options("--catalog", arguments.catalog)
    chosen: dict[str, Any] = {
        "columns": arguments.columns.split(",") if arguments.columns else None,
        "storage_options": chosen_storage(arguments),
    }
    if kind in ("iceberg", "paimon", "lance") and len(names) > 1:
        raise OptionError(f"one table of {kind} is copied at a time")
    if kind == "iceberg":
        return headrace.IcebergDataset(names[0], catalog, **chosen), {}
    if kind == "paimon":
        return headrace.PaimonDataset(names[0], catalog_options=catalog or {}, **chosen), {}
    if catalog is not None:
        raise OptionError("--catalog has no effect without --format iceberg or paimon")
    if kind in _OPENED and kind not in as_paths:
        return getattr(headrace, _OPENED[kind])(source, **chosen), {}
    chosen |= {"format": arguments.format, "partitioning": arguments.partitioning}
    return source, {name: value for name, value in chosen.items() if value is not None}
