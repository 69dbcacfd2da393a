"""``headrace convert``: a source in another form, its rows in the order that they have.

Each form has options of its own beside those of all copies: ``headrace convert --to tar --help``
shows those of tars. Options of other forms are unknown arguments.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.cli.sources import add_copy_arguments, copy_options, open_source
from headrace.cli.terminal import counted, progress_bar
from headrace.errors import OptionError
from headrace.sources.array_record.codecs import CODECS
from headrace.write import (
    ROW_GROUP_ROWS,
    ArrayRecordReport,
    RowsReport,
    TarReport,
    VideoFramesReport,
    copy_rows,
    write_array_record,
    write_tar,
    write_video_frames,
)

_NOTED = ("geometry", "hash", "sidecars")
"""The contents of an index that ``--note`` chooses from."""


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
        _FORMS[form].add(parser.add_argument_group(form))


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    form = _FORMS[arguments.to]
    source, options = open_source(arguments.source, arguments, as_paths=form.as_paths)
    own = ArgumentParser()
    form.add(own)
    options |= {name: getattr(arguments, name) for name in vars(own.parse_args([]))}
    with progress_bar() as bar:
        report = form.write(
            source, arguments.target, progress=bar, **copy_options(arguments), **options
        )
    print(f"{form.summary(report)}: {report.target}")
    return 0


def _add_rows(group: Any) -> None:
    group.add_argument("--compression", help="of the files, such as zstd or none")
    group.add_argument("--row-group-rows", type=int, default=ROW_GROUP_ROWS, help="of a row group")
    group.add_argument("--file-rows", type=int, help="rows of a file")
    group.add_argument("--file-bytes", help="size of a file's data in memory (default: 512MiB)")


def _rows_summary(report: RowsReport) -> str:
    return f"{report.rows:,} rows in {counted(len(report.parts), f'{report.format} part')}"


def _add_records(group: Any) -> None:
    group.add_argument("--codec", choices=CODECS, default=CODECS[0], help="how a row is packed")
    group.add_argument("--group-size", type=int, default=1, help="records compressed as one")
    group.add_argument("--compression", default="zstd:3", help="such as zstd:3, brotli:6, none")
    group.add_argument(
        "--shard-records", type=int, help="records of a file; TARGET is then a directory"
    )


def _records_summary(report: ArrayRecordReport) -> str:
    return f"{report.rows:,} rows in {counted(len(report.files), 'file')}"


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
        dest="fields",
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


def _write_tars(
    source: Any, target: str, *, note: str, index: str, fields: Sequence[str], **options: Any
) -> TarReport:
    noted = [name for name in note.split(",") if name]
    unknown = [name for name in noted if name not in _NOTED]
    if unknown:
        raise OptionError(f"--note must be some of {', '.join(_NOTED)}, not {unknown[0]!r}")
    options |= {name: name in noted for name in _NOTED}
    form = None if index == "none" else index
    return write_tar(source, target, index=form, fields=_fields(fields), **options)


def _fields(given: Sequence[str]) -> dict[str, str]:
    fields = {}
    for text in given:
        column, equals, field = text.rpartition("=")
        if not equals or not column or not field:
            raise OptionError(f"--field must be like image=jpg, not {text!r}")
        fields[column] = field
    return fields


def _tars_summary(report: TarReport) -> str:
    return f"{report.samples:,} samples in {counted(len(report.shards), 'tar')}"


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


def _write_frames(
    source: Any, target: str, *, format: str | None, columns: Any, **options: Any
) -> VideoFramesReport:
    for name, value in (("format", format), ("columns", columns)):
        if value is not None:
            raise OptionError(f"--{name} has no effect with --to video-frames")
    return write_video_frames(source, target, **options)


def _frames_summary(report: VideoFramesReport) -> str:
    left_out = f", {len(report.skipped):,} skipped" if report.skipped else ""
    return f"{report.frames:,} frames of {counted(report.videos, 'video')}{left_out}"


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of the target.

    Attributes:
        add: Declares its options, which are called like the keywords of ``write``.
        write: Writes a source.
        summary: Returns what was written, in words.
        as_paths: Kinds of sources that ``write`` opens itself.
    """

    add: Callable[[Any], None]
    write: Callable[..., Any]
    summary: Callable[[Any], str]
    as_paths: Sequence[str] = ()


_FORMS = {
    **{
        name: _Form(_add_rows, partial(copy_rows, target_format=name), _rows_summary)
        for name in ("parquet", "arrow", "lance", "paimon")
    },
    "array-record": _Form(_add_records, write_array_record, _records_summary),
    "tar": _Form(_add_tars, _write_tars, _tars_summary, ["tar"]),
    "video-frames": _Form(_add_frames, _write_frames, _frames_summary, ["tar", "lance"]),
}
