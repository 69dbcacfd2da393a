"""``headrace convert ... --to video-frames``: videos as rows, one encoded frame each."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from headrace.cli.common import Bar, chosen_storage, json_options
from headrace.write.video_frames import write_video_frames

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Options of videos; source, target, codec and overwrite are those of all forms."""
    group = parser.add_argument_group("video-frames", "videos as a Lance data set of frames")
    group.add_argument("--quality", type=int, default=90, help="of frames, 1 to 100 (default: 90)")
    group.add_argument("--size", type=int, help="of the shorter side; the other one follows")
    group.add_argument("--fps", type=float, help="frames to keep of a second")
    group.add_argument("--every", type=int, default=1, help="keep one of so many frames")
    group.add_argument("--fragment-bytes", default="128MiB", help="of a fragment of the data set")
    group.add_argument(
        "--on-error", choices=["raise", "skip"], default="raise", help="at a damaged video"
    )


def run(arguments: Namespace) -> int:
    """Write the data set, and say what is in it; what is left out is logged as it is met."""
    bar = Bar(sys.stderr)
    try:
        report = write_video_frames(
            arguments.source,
            arguments.target,
            codec=arguments.codec or "webp",
            quality=arguments.quality,
            size=arguments.size,
            fps=arguments.fps,
            every=arguments.every,
            fragment_bytes=arguments.fragment_bytes,
            on_error=arguments.on_error,
            storage_options=chosen_storage(arguments),
            target_options=json_options("--target-options", arguments.target_options),
            work_dir=arguments.work_dir,
            overwrite=arguments.overwrite,
            progress=bar,
        )
    finally:
        bar.close()
    left_out = f", {len(report.skipped):,} skipped" if report.skipped else ""
    videos = f"{report.videos:,} video{'s' if report.videos != 1 else ''}"
    print(f"{report.frames:,} frames of {videos}{left_out}: {report.target}")
    return 0
