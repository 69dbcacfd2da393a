"""Copies of data sets: in random order, as ArrayRecord files, as tars, as frames of videos."""

from penstock.write.array_record import ArrayRecordReport, write_array_record
from penstock.write.shuffle import ROW_GROUP_ROWS, ShuffleReport, shuffle_into
from penstock.write.tar import TarWriter
from penstock.write.tar_copy import TarReport, write_tar
from penstock.write.target import Receipt, TargetOptions, TargetWriter, register_target
from penstock.write.video_frames import VideoFramesReport, write_video_frames
from penstock.write.work import Progress

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
