"""Copies of data sets: shuffled or in order, as files, tables, records, tars and frames."""

from headrace.write._array_record import write_array_record
from headrace.write._copier import CopyReport, Progress, Receipt, Share, TargetOptions, TargetWriter
from headrace.write._hub import push_to_hub
from headrace.write._rows import copy_rows, register_target
from headrace.write._shuffle import shuffle_into
from headrace.write._tar import write_tar
from headrace.write._tar_writer import TarWriter
from headrace.write._video import VideoFramesReport, write_video_frames

__all__ = [
    "CopyReport",
    "Progress",
    "Receipt",
    "Share",
    "TarWriter",
    "TargetOptions",
    "TargetWriter",
    "VideoFramesReport",
    "copy_rows",
    "push_to_hub",
    "register_target",
    "shuffle_into",
    "write_array_record",
    "write_tar",
    "write_video_frames",
]
