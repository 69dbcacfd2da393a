"""The arguments of commands that read a source."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from headrace.cli.terminal import chosen_storage, json_options
from headrace.errors import OptionError
from headrace.loader import (
    ArrayRecordDataset,
    IcebergDataset,
    LanceDataset,
    PaimonDataset,
    TarDataset,
)
from headrace.loader.datasets import kind_of

_OPENED: dict[str, Callable[..., Any]] = {
    "lance": LanceDataset,
    "array-record": ArrayRecordDataset,
    "tar": TarDataset,
}


def add_copy_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that all copies have beside their source and target."""
    source = parser.add_argument_group("source")
    source.add_argument(
        "--format",
        help="of files, or folder, tar, iceberg, paimon, lance, array-record (default: by name)",
    )
    source.add_argument("--columns", metavar="A,B", help="the columns to copy (default: all)")
    source.add_argument("--catalog", metavar="JSON", help="of a table: its catalog_config/_options")
    source.add_argument("--storage-options", metavar="JSON", help="credentials for SOURCE")
    target = parser.add_argument_group("target")
    target.add_argument("--overwrite", action="store_true", help="replace what is at TARGET")
    target.add_argument("--target-options", metavar="JSON", help="credentials for TARGET")
    target.add_argument("--work-dir", help="for what is on its way (default: beside TARGET)")
    target.add_argument(
        "--workers", type=int, help="processes; 0 for none (default: one a core, for large sources)"
    )
    target.add_argument(
        "--on", choices=["ray"], help="run on a Ray cluster, whose nodes reach SOURCE and TARGET"
    )


def copy_options(arguments: Namespace) -> dict[str, Any]:
    """Return the keywords that all copies have."""
    return {
        "target_options": json_options("--target-options", arguments.target_options),
        "work_dir": arguments.work_dir,
        "overwrite": arguments.overwrite,
        "workers": arguments.workers,
        "on": arguments.on,
    }


def open_source(
    named: str | Sequence[str], arguments: Namespace, *, as_paths: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return what is copied, and keywords: paths have some, and datasets have been given theirs.

    Args:
        named: What the user called the source.
        arguments: Those of ``add_copy_arguments``.
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
        return IcebergDataset(names[0], catalog, **chosen), {}
    if kind == "paimon":
        return PaimonDataset(names[0], catalog_options=catalog or {}, **chosen), {}
    if catalog is not None:
        raise OptionError("--catalog has no effect without --format iceberg or paimon")
    if kind in _OPENED and kind not in as_paths:
        return _OPENED[kind](source, **chosen), {}
    return source, {"format": arguments.format, **chosen}
