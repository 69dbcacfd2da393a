"""Tar archives with an index: read any member of any shard without reading the rest."""

from headrace.sources.tar.index_files import write_captions
from headrace.sources.tar.indexing import IndexReport, index_tars

__all__ = ["IndexReport", "index_tars", "write_captions"]
