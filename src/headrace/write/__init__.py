"""Copies of data sets: shuffled or in order, as files, tables, records, tars and frames."""

from headrace.write._array_record import ArrayRecordReport, write_array_record
from headrace.write._copier import Progress, Share
from headrace.write._hub import push_to_hub
from headrace.write._shuffle import ROW_GROUP_ROWS, RowsReport, copy_rows, shuffle_into
from headrace.write._tar import TarReport, write_tar
from headrace.write._tar_writer import TarWriter
from headrace.write._targets import Receipt, TargetOptions, TargetWriter, register_target
from headrace.write._video import VideoFramesReport, write_video_frames

__all__ = [
    "ROW_GROUP_ROWS",
    "ArrayRecordReport",
    "Progress",
    "Receipt",
    "RowsReport",
    "Share",
    "TarReport",
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
