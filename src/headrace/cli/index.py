"""``headrace index``: make, convert and verify the indexes of tars."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import get_args

from headrace.cli.terminal import as_flag, chosen_storage, counted, progress_bar
from headrace.errors import OptionError
from headrace.options import arguments as options_of
from headrace.sources.tar import index_tars
from headrace.sources.tar.grouping import DotRule
from headrace.sources.tar.indexing import convert_indexes, verify_tars

_OF_SCANNING = (
    "format",
    "geometry",
    "no_sidecars",
    "hash",
    "workers",
    "range",
    "keep_going",
    "sample_key",
    "force",
    "on",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="tars, folders, globs, URLs, hf://datasets/owner/name/folder; with --from-json and "
        "--to-json index files",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="for the indexes (default: beside the tars, or the cache)"
    )
    parser.add_argument("--one-file", metavar="PATH", help="one columnar index of all tars")
    parser.add_argument(
        "--format", choices=["arrow", "json"], help="of the indexes (default: arrow)"
    )
    parser.add_argument("--geometry", action="store_true", help="with width and height of images")
    parser.add_argument(
        "--no-sidecars", action="store_true", help="read headers only, embed no JSON and captions"
    )
    parser.add_argument(
        "--hash", action="store_true", help="store SHA-256 of tars and members; reads all bytes"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="tars that are scanned at a time")
    parser.add_argument("--range", metavar="A,B", help="only tars A to B - 1 in sorted order")
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="index the readable beginning of broken tars, and leave out files that are not tars",
    )
    parser.add_argument(
        "--sample-key",
        choices=get_args(DotRule),
        help="where the key of a sample ends in the names of its members (default: as in an "
        "existing index, else at the first dot)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="index tars again that have an index; captions that you wrote are kept",
    )
    parser.add_argument(
        "--on", choices=["ray"], help="run on a Ray cluster, whose nodes reach tars and indexes"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--verify", action="store_true", help="compare indexes with their tars")
    instead.add_argument("--from-json", action="store_true", help="JSON indexes into columnar ones")
    instead.add_argument("--to-json", action="store_true", help="columnar indexes into JSON ones")
    parser.add_argument("--metadata", metavar="PLACE", help="location of the indexes to verify")
    parser.add_argument("--storage-options", metavar="JSON", help="credentials and the like")


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    if arguments.metadata is not None and not arguments.verify:
        raise OptionError("--metadata has no effect without --verify; --out says where to write")
    instead = [name for name in ("verify", "from_json", "to_json") if getattr(arguments, name)]
    if not instead:
        return _index(arguments)
    for name in _OF_SCANNING:
        if getattr(arguments, name) not in (None, False):
            raise OptionError(f"{as_flag(name)} has no effect with {as_flag(instead[0])}")
    return _verify(arguments) if arguments.verify else _convert(arguments)


def _index(arguments: Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    given |= {
        "sidecars": not arguments.no_sidecars,
        "range": _range(arguments.range),
        "storage_options": chosen_storage(arguments),
    }
    with progress_bar() as bar:
        report = index_tars(
            arguments.source, arguments.out, progress=bar, **options_of(index_tars, given)
        )
    for problem in report.failed:
        print(f"not indexed: {problem}")
    for tar in report.broken:
        print(f"truncated: {tar.name}, the last good member is {tar.last_good!r}")
    there = sum(tar.was_there for tar in report.tars)
    earlier = f" ({there:,} of them before)" if there else ""
    print(f"{report.members:,} members of {counted(len(report.tars), 'tar')} indexed{earlier}")
    return 1 if report.failed or report.broken else 0


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, comma, stop = text.partition(",")
    if not (comma and start.strip().isdigit() and stop.strip().isdigit()):
        raise OptionError(f"--range must be two numbers such as 0,1000, not {text!r}")
    return int(start), int(stop)


def _convert(arguments: Namespace) -> int:
    written = convert_indexes(
        arguments.source,
        "json" if arguments.to_json else "arrow",
        out=arguments.out,
        one_file=arguments.one_file,
        storage_options=chosen_storage(arguments),
    )
    more = f" and {len(written) - 1:,} more" if len(written) > 1 else ""
    print(f"written: {written[0]}{more}")
    return 0


def _verify(arguments: Namespace) -> int:
    with progress_bar() as bar:
        problems = verify_tars(
            arguments.source,
            arguments.metadata,
            storage_options=chosen_storage(arguments),
            progress=bar,
        )
    for name, found in problems.items():
        for problem in found:
            print(f"{name}: {problem}")
    wrong = sum(bool(found) for found in problems.values())
    good = counted(len(problems) - wrong, "index", "indices")
    print(f"{good} right, {wrong:,} not")
    return 1 if wrong else 0
