"""Reads ahead, mixes and cuts: what happens to blocks between storage and a batch."""

from penstock.stream.cut import Cursor, Located, Run, cut
from penstock.stream.pace import Pace
from penstock.stream.readahead import Job, ReadAhead

__all__ = ["Cursor", "Job", "Located", "Pace", "ReadAhead", "Run", "cut"]
