"""Reads ahead and cuts: what happens to blocks between storage and a batch."""

from headrace.stream._readahead import Job, Pace, ReadAhead
from headrace.stream.cut import Located, Run, cut

__all__ = ["Job", "Located", "Pace", "ReadAhead", "Run", "cut"]
