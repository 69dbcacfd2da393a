"""Archives of records: indexed tars."""

from headrace.archives.tar.caption_writing import write_captions
from headrace.archives.tar.indexing import IndexReport, index_tars

__all__ = ["IndexReport", "index_tars", "write_captions"]
