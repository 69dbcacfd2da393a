"""``headrace audit``: kill, resume and resize a loader, and count its rows."""

from __future__ import annotations

import importlib
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import distributed

from headrace import StatefulLoader, StructuredDataset
from headrace.cli.sources import add_options, given_options
from headrace.errors import OptionError
from headrace.model import computed_once
from headrace.options import FileFormat, StructuredOptions
from headrace.testing.auditing import ColumnIds, audit

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_DEFAULT_SIZES = "1x0,1x2,2x0,2x2"
_EVEN = {"drop": "drop", "no": False}
_OF_LOADERS = ("batch_size", "shuffle", "split_rows", "mix", "interleave", "lanes")


@dataclass(frozen=True)
class LocationLoaders:
    """Loaders of this library over a location: a factory that can be sent to other processes."""

    location: str
    format: FileFormat | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of ``create_dataloader``."""

    def __call__(self, rank: int, world_size: int, num_workers: int) -> StatefulLoader:
        """Create the loader of one rank; ranks share a process group, as in training."""
        if world_size > 1:
            distributed.init_process_group("gloo")
        loader, _ = StructuredDataset.create_dataloader(
            self.location,
            self.format,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            **self.options,
        )
        return loader

    def may_drop(self, ranks: int) -> int:
        """Return how many rows of an epoch may be left out, so that ranks take as many steps.

        Counted rows are shared to the last round: fewer rows than there are ranks are left out.
        """
        if self.options.get("even") is False:
            return 0
        size = 1 if self.are_rows_counted else int(self.options.get("batch_size", 1024))
        return (ranks - 1) * size

    @computed_once
    def are_rows_counted(self) -> bool:
        """True if the number of rows is known before they are read."""
        dataset = StructuredDataset(self.location, self.format, **self.options)
        return dataset.num_rows is not None


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "target",
        metavar="MODULE:FACTORY | URL",
        help="a function of (rank, world_size, num_workers) that makes a loader, "
        "or a file, directory, glob or URL that this library's own loader reads",
    )
    parser.add_argument("--schedules", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument(
        "--sizes", default=_DEFAULT_SIZES, help=f"ranks x workers (default: {_DEFAULT_SIZES})"
    )
    parser.add_argument("--epochs", type=int, default=2, help="of each schedule (default: 2)")
    parser.add_argument("--expected-rows", type=int, help="rows that an epoch must have")
    parser.add_argument("--may-drop", type=int, help="rows that may be missing at an epoch's end")
    parser.add_argument(
        "--order",
        choices=["rank", "global", "none"],
        default="rank",
        help="rank: where the size stays (default); global: step by step over ranks, always",
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a leg may take")
    parser.add_argument(
        "--start-method", default="forkserver", help="of the ranks (default: forkserver)"
    )
    factory = parser.add_argument_group("with MODULE:FACTORY")
    factory.add_argument("--row-id", metavar="MODULE:FUNCTION", help="from a batch to its ids")
    factory.add_argument("--merge", metavar="MODULE:FUNCTION", help="from all states to one")
    location = parser.add_argument_group("with URL")
    location.add_argument("--format", help="taken from the extension if left out")
    location.add_argument("--id", default="id", help='column that names a row (default: "id")')
    location.add_argument(
        "--even", choices=list(_EVEN), default="drop", help="what ranks do at an epoch's end"
    )
    add_options(parser, StructuredOptions, only=_OF_LOADERS)


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    factory, row_id, merge, may_drop = _subject(arguments)
    report = audit(
        factory,
        schedules=arguments.schedules,
        seed=arguments.seed,
        sizes=_sizes(arguments.sizes),
        row_id=row_id,
        epochs=arguments.epochs,
        may_drop=may_drop if arguments.may_drop is None else arguments.may_drop,
        order=None if arguments.order == "none" else arguments.order,
        merge=merge,
        start_method=arguments.start_method,
        timeout_s=arguments.timeout,
    )
    print(report)
    if arguments.expected_rows not in (None, report.rows):
        print(f"an epoch has {report.rows:,} rows; {arguments.expected_rows:,} were expected")
        return 1
    return 0 if report.ok else 1


def _subject(arguments: Namespace) -> tuple[Any, Any, Any, Any]:
    """Return the factory, its row ids, its merge function, and its number of dropped rows."""
    if _FUNCTION.fullmatch(arguments.target):
        factory = _imported(arguments.target)
        return factory, _imported(arguments.row_id), _imported(arguments.merge), 0
    options = {
        "even": _EVEN[arguments.even],
        **given_options(arguments, StructuredOptions, only=_OF_LOADERS),
    }
    loaders = LocationLoaders(arguments.target, arguments.format, options)
    return loaders, ColumnIds(arguments.id), None, loaders.may_drop


def _imported(name: str | None) -> Callable[..., Any] | None:
    """Return the object called ``module:function``, also from the working directory."""
    if name is None:
        return None
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise OptionError(f"{name} cannot be imported: {error}") from error
    return found


def _sizes(text: str) -> list[tuple[int, int]]:
    """
    >>> _sizes("1x0,2x2")
    [(1, 0), (2, 2)]
    """
    sizes = [re.fullmatch(r"(\d+)x(\d+)", size) for size in text.split(",")]
    if not all(sizes):
        raise OptionError(f'--sizes must be ranks x workers, such as "1x0,2x2", not {text!r}')
    return [(int(size[1]), int(size[2])) for size in sizes if size]
