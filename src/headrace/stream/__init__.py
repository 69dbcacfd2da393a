"""Reads ahead, mixes and cuts: what happens to blocks between storage and a batch."""

from headrace.stream.cut import Located, Run, cut
from headrace.stream.readahead import Job, Pace, ReadAhead

__all__ = ["Job", "Located", "Pace", "ReadAhead", "Run", "cut"]
