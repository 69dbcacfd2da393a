"""``headrace convert``: write a source in another form, with its rows in the same order.

Each form adds options to those of all copies: ``headrace convert --to tar --help`` shows the
options of tars. An option of another form is an unknown argument.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.cli.sources import add_options, add_source_arguments, given_options, open_source
from headrace.cli.terminal import counted, progress_bar
from headrace.options import (
    CopyOptions,
    FrameOptions,
    RecordCopyOptions,
    RowCopyOptions,
    TarCopyOptions,
)
from headrace.write import (
    CopyReport,
    VideoFramesReport,
    copy_rows,
    write_array_record,
    write_tar,
    write_video_frames,
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="files, directories, globs, URLs; or a table, ArrayRecord files, tars, videos",
    )
    parser.add_argument("target", metavar="TARGET", help="a file or a directory; it is created")
    parser.add_argument(
        "--to",
        required=True,
        choices=list(_FORMS),
        help="the form of TARGET, which adds its own options",
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
    add_options(parser, form.options, without=["target_format"])  # which --to gives


def run(arguments: Namespace) -> int:
    """Do the work, print to stdout, and return the exit code."""
    form = _FORMS[arguments.to]
    source, options = open_source(arguments.source, arguments, as_paths=form.as_paths)
    options |= given_options(arguments, form.options)
    with progress_bar() as bar:
        report = form.write(source, arguments.target, progress=bar, **options)
    print(f"{form.summary(report)}: {report.target}")
    return 0


def _summary(items: str, part: str, report: CopyReport) -> str:
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
    """

    options: type
    write: Callable[..., CopyReport]
    summary: Callable[[Any], str]
    as_paths: Sequence[str] = ()


_FORMS = {
    **{
        name: _Form(
            RowCopyOptions,
            partial(copy_rows, target_format=name),
            partial(_summary, "rows", "part"),
        )
        for name in ("parquet", "arrow", "lance")
    },
    "array-record": _Form(RecordCopyOptions, write_array_record, partial(_summary, "rows", "file")),
    "tar": _Form(TarCopyOptions, write_tar, partial(_summary, "samples", "tar"), ["tar"]),
    "video-frames": _Form(FrameOptions, write_video_frames, _frames_summary, ["tar", "lance"]),
}
