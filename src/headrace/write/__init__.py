"""Copies of data sets: in random order, as ArrayRecord files, as tars, as frames of videos."""

from headrace.write.array_record import ArrayRecordReport, write_array_record
from headrace.write.shuffle import ROW_GROUP_ROWS, ShuffleReport, shuffle_into
from headrace.write.tar import TarWriter
from headrace.write.tar_copy import TarReport, write_tar
from headrace.write.target import Receipt, TargetOptions, TargetWriter, register_target
from headrace.write.video_frames import VideoFramesReport, write_video_frames
from headrace.write.work import Progress

__all__ = [
    "ROW_GROUP_ROWS",
    "ArrayRecordReport",
    "Progress",
    "Receipt",
    "ShuffleReport",
    "TarReport",
    "TarWriter",
    "TargetOptions",
    "TargetWriter",
    "VideoFramesReport",
    "register_target",
    "shuffle_into",
    "write_array_record",
    "write_tar",
    "write_video_frames",
]
