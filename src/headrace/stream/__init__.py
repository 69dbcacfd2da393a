"""Reads ahead, mixes and cuts: what happens to blocks between storage and a batch."""

from headrace.stream.cut import Cursor, Located, Run, cut
from headrace.stream.readahead import Job, Pace, ReadAhead

__all__ = ["Cursor", "Job", "Located", "Pace", "ReadAhead", "Run", "cut"]
