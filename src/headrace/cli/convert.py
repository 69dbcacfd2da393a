"""``headrace convert``: a source in another form, its rows in the order that they have.

Each form has options of its own beside those of all copies: ``headrace convert --to tar --help``
shows those of tars. Options of other forms are unknown arguments.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from headrace.cli.sources import add_copy_arguments, copy_options, open_source
from headrace.cli.terminal import chosen_storage, counted, progress_bar
from headrace.errors import OptionError
from headrace.sources.array_record.codecs import CODECS
from headrace.write import (
    ROW_GROUP_ROWS,
    copy_rows,
    write_array_record,
    write_tar,
    write_video_frames,
)

__all__ = ["add_arguments", "add_form_arguments", "run"]

_NOTED = ("geometry", "hash", "sidecars")
"""what an index of a tar can hold"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="files, directories, globs, URLs; or a table, ArrayRecord files, tars, videos",
    )
    parser.add_argument("target", metavar="TARGET", help="a file or a directory, made by this")
    parser.add_argument(
        "--to",
        required=True,
        choices=list(_FORMS),
        help="the form of TARGET, with options of its own",
    )
    add_copy_arguments(parser)
    parser.epilog = "headrace convert --to FORM --help shows the options of a form."


def add_form_arguments(parser: ArgumentParser, given: Sequence[str]) -> None:
    """Add the options of the form that is given, if one is."""
    finder = ArgumentParser(add_help=False)
    finder.add_argument("--to", nargs="?")
    form = finder.parse_known_args(given)[0].to
    if form in _FORMS:
        add, _ = _FORMS[form]
        add(parser.add_argument_group(form))


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    _, write = _FORMS[arguments.to]
    print(write(arguments))
    return 0


def _add_rows(group: Any) -> None:
    group.add_argument("--compression", help="of the files, such as zstd or none")
    group.add_argument("--row-group-rows", type=int, default=ROW_GROUP_ROWS, help="of a row group")
    group.add_argument("--file-rows", type=int, help="rows of a file")
    group.add_argument("--file-bytes", help="size of a file's data in memory (default: 512MiB)")


def _write_rows(arguments: Namespace) -> str:
    source, options = open_source(arguments.source, arguments)
    with progress_bar() as bar:
        report = copy_rows(
            source,
            arguments.target,
            target_format=arguments.to,
            compression=arguments.compression,
            row_group_rows=arguments.row_group_rows,
            file_rows=arguments.file_rows,
            file_bytes=arguments.file_bytes,
            progress=bar,
            **copy_options(arguments),
            **options,
        )
    parts = counted(len(report.parts), f"{report.format} part")
    return f"{report.rows:,} rows in {parts}: {report.target}"


def _add_records(group: Any) -> None:
    group.add_argument("--codec", choices=CODECS, default=CODECS[0], help="how a row is packed")
    group.add_argument("--group-size", type=int, default=1, help="records compressed as one")
    group.add_argument("--compression", default="zstd:3", help="such as zstd:3, brotli:6, none")
    group.add_argument(
        "--shard-records", type=int, help="records of a file; TARGET is then a directory"
    )


def _write_records(arguments: Namespace) -> str:
    source, options = open_source(arguments.source, arguments)
    with progress_bar() as bar:
        report = write_array_record(
            source,
            arguments.target,
            codec=arguments.codec,
            group_size=arguments.group_size,
            compression=arguments.compression,
            shard_records=arguments.shard_records,
            progress=bar,
            **copy_options(arguments),
            **options,
        )
    return f"{report.rows:,} rows in {counted(len(report.files), 'file')}: {report.target}"


def _add_tars(group: Any) -> None:
    group.add_argument("--shard-bytes", default="1GiB", help="of a tar at most (default: 1GiB)")
    group.add_argument("--shard-samples", type=int, help="of a tar at most")
    group.add_argument("--pattern", default="shard_{:05d}.tar", help="of the names of tars")
    group.add_argument(
        "--index",
        choices=["json", "arrow", "none"],
        default="json",
        help="the form of the index beside each tar (default: json)",
    )
    group.add_argument(
        "--note",
        metavar="A,B",
        default="hash,sidecars",
        help="what the index holds: geometry, hash, sidecars (default: hash,sidecars)",
    )
    group.add_argument(
        "--field",
        metavar="COLUMN=FIELD",
        action="append",
        default=[],
        help="what a column is called in the tar, such as image=jpg; may be repeated",
    )
    group.add_argument("--key-column", help="holds the keys (default: __key__, or rows numbered)")
    group.add_argument(
        "--keys",
        choices=["keep", "prefix", "number"],
        default="keep",
        help="prefix: the path of each source tar before its keys; number: new ones",
    )
    group.add_argument("--metadata", help="where the indexes of source tars are")


def _write_tars(arguments: Namespace) -> str:
    source, options = open_source(arguments.source, arguments, as_paths=["tar"])
    noted = [name for name in arguments.note.split(",") if name]
    unknown = [name for name in noted if name not in _NOTED]
    if unknown:
        raise OptionError(f"--note must be some of {', '.join(_NOTED)}, not {unknown[0]!r}")
    with progress_bar() as bar:
        report = write_tar(
            source,
            arguments.target,
            shard_bytes=arguments.shard_bytes,
            shard_samples=arguments.shard_samples,
            pattern=arguments.pattern,
            index=None if arguments.index == "none" else arguments.index,
            geometry="geometry" in noted,
            hash="hash" in noted,
            sidecars="sidecars" in noted,
            fields=_fields(arguments.field),
            key_column=arguments.key_column,
            keys=arguments.keys,
            metadata=arguments.metadata,
            progress=bar,
            **copy_options(arguments),
            **options,
        )
    return f"{report.samples:,} samples in {counted(len(report.shards), 'tar')}: {report.target}"


def _fields(given: Sequence[str]) -> dict[str, str]:
    fields = {}
    for text in given:
        column, equals, field = text.rpartition("=")
        if not equals or not column or not field:
            raise OptionError(f"--field must be like image=jpg, not {text!r}")
        fields[column] = field
    return fields


def _add_frames(group: Any) -> None:
    group.add_argument("--codec", default="webp", help="webp (default) or jpeg")
    group.add_argument("--quality", type=int, default=90, help="of frames, 1 to 100 (default: 90)")
    group.add_argument("--size", type=int, help="of the shorter side; the other one follows")
    group.add_argument("--fps", type=float, help="frames to keep of a second")
    group.add_argument("--every", type=int, default=1, help="keep one of so many frames")
    group.add_argument("--fragment-bytes", default="128MiB", help="of a fragment of the data set")
    group.add_argument(
        "--on-error", choices=["raise", "skip"], default="raise", help="at a damaged video"
    )


def _write_frames(arguments: Namespace) -> str:
    for name in ("format", "columns", "catalog"):
        if getattr(arguments, name) is not None:
            raise OptionError(f"--{name} has no effect with --to video-frames")
    with progress_bar() as bar:
        report = write_video_frames(
            arguments.source,
            arguments.target,
            codec=arguments.codec,
            quality=arguments.quality,
            size=arguments.size,
            fps=arguments.fps,
            every=arguments.every,
            fragment_bytes=arguments.fragment_bytes,
            on_error=arguments.on_error,
            storage_options=chosen_storage(arguments),
            progress=bar,
            **copy_options(arguments),
        )
    left_out = f", {len(report.skipped):,} skipped" if report.skipped else ""
    videos = counted(report.videos, "video")
    return f"{report.frames:,} frames of {videos}{left_out}: {report.target}"


_FORMS: dict[str, tuple[Callable[[Any], None], Callable[[Namespace], str]]] = {
    **dict.fromkeys(("parquet", "arrow", "lance", "paimon"), (_add_rows, _write_rows)),
    "array-record": (_add_records, _write_records),
    "tar": (_add_tars, _write_tars),
    "video-frames": (_add_frames, _write_frames),
}
