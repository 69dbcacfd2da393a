"""Copies of data sets: in random order, as ArrayRecord files, as frames of videos."""

from penstock.write.array_record import ArrayRecordReport, write_array_record
from penstock.write.shuffle import ROW_GROUP_ROWS, ShuffleReport, shuffle_into
from penstock.write.target import Receipt, TargetOptions, TargetWriter, register_target
from penstock.write.video_frames import VideoFramesReport, write_video_frames
from penstock.write.work import Progress

__all__ = [
    "ROW_GROUP_ROWS",
    "ArrayRecordReport",
    "Progress",
    "Receipt",
    "ShuffleReport",
    "TargetOptions",
    "TargetWriter",
    "VideoFramesReport",
    "register_target",
    "shuffle_into",
    "write_array_record",
    "write_video_frames",
]
