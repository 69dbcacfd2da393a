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

from headrace.cli.sources import add_options, add_source_arguments, given_options, open_source
from headrace.cli.terminal import counted, progress_bar
from headrace.errors import OptionError
from headrace.options import (
    CopyOptions,
    FrameOptions,
    RecordCopyOptions,
    RowCopyOptions,
    TarCopyOptions,
)
from headrace.write import (
    CopyReport,
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
    add_source_arguments(parser)
    parser.epilog = "headrace convert --to FORM --help shows the options of a form."


def add_form_arguments(parser: ArgumentParser, given: Sequence[str]) -> None:
    """Add the options of the form that is given, if one is."""
    finder = ArgumentParser(add_help=False)
    finder.add_argument("--to", nargs="?")
    to = finder.parse_known_args(given)[0].to
    if to not in _FORMS:
        add_options(parser, CopyOptions)
        return
    form = _FORMS[to]
    add_options(parser, form.options, without=form.without)
    if to == "tar":
        _add_tar_arguments(parser.add_argument_group(to))


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    form = _FORMS[arguments.to]
    source, options = open_source(arguments.source, arguments, as_paths=form.as_paths)
    options |= given_options(arguments, form.options)
    if arguments.to == "tar":
        options |= _tar_options(arguments)
    with progress_bar() as bar:
        report = form.write(source, arguments.target, progress=bar, **options)
    print(f"{form.summary(report)}: {report.target}")
    return 0


def _add_tar_arguments(group: Any) -> None:
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


def _tar_options(arguments: Namespace) -> dict[str, Any]:
    noted = [name for name in arguments.note.split(",") if name]
    unknown = [name for name in noted if name not in _NOTED]
    if unknown:
        raise OptionError(f"--note must be some of {', '.join(_NOTED)}, not {unknown[0]!r}")
    return {
        **{name: name in noted for name in _NOTED},
        "fields": _fields(arguments.fields),
        "key_column": arguments.key_column,
        "keys": arguments.keys,
        "metadata": arguments.metadata,
    }


def _fields(given: Sequence[str]) -> dict[str, str]:
    fields = {}
    for text in given:
        column, equals, field = text.rpartition("=")
        if not equals or not column or not field:
            raise OptionError(f"--field must be like image=jpg, not {text!r}")
        fields[column] = field
    return fields


def _write_frames(
    source: Any, target: str, *, format: str | None, columns: Any, **options: Any
) -> VideoFramesReport:
    for name, value in (("format", format), ("columns", columns)):
        if value is not None:
            raise OptionError(f"--{name} has no effect with --to video-frames")
    return write_video_frames(source, target, **options)


def _summary(part: str, report: CopyReport) -> str:
    items = "samples" if isinstance(report, TarReport) else "rows"
    return f"{report.rows:,} {items} in {counted(len(report.parts), part)}"


def _frames_summary(report: VideoFramesReport) -> str:
    left_out = f", {len(report.skipped):,} skipped" if report.skipped else ""
    return f"{report.frames:,} frames of {counted(report.videos, 'video')}{left_out}"


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of the target.

    Attributes:
        options: The keywords of ``write`` that are arguments.
        write: Writes a source.
        summary: Returns what was written, in words.
        as_paths: Kinds of sources that ``write`` opens itself.
        without: Keywords that are no arguments.
    """

    options: type
    write: Callable[..., CopyReport]
    summary: Callable[[Any], str]
    as_paths: Sequence[str] = ()
    without: Sequence[str] = ()


_FORMS = {
    **{
        name: _Form(
            RowCopyOptions,
            partial(copy_rows, target_format=name),
            partial(_summary, f"{name} part"),
            without=["target_format"],
        )
        for name in ("parquet", "arrow", "lance", "paimon")
    },
    "array-record": _Form(RecordCopyOptions, write_array_record, partial(_summary, "file")),
    "tar": _Form(TarCopyOptions, write_tar, partial(_summary, "tar"), ["tar"], _NOTED),
    "video-frames": _Form(FrameOptions, _write_frames, _frames_summary, ["tar", "lance"]),
}
