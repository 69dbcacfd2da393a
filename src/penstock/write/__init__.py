"""Copies of data sets that are cheap to read in random order ever after."""

from penstock.write.shuffle import ROW_GROUP_ROWS, Progress, ShuffleReport, shuffle_into
from penstock.write.target import Receipt, TargetOptions, TargetWriter, register_target

__all__ = [
    "ROW_GROUP_ROWS",
    "Progress",
    "Receipt",
    "ShuffleReport",
    "TargetOptions",
    "TargetWriter",
    "register_target",
    "shuffle_into",
]
