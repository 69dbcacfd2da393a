"""Archives of records: indexed tars, ArrayRecord files, and how rows are packed into records."""

from headrace.archives.tar.caption_writing import write_captions
from headrace.archives.tar.indexing import IndexReport, index_tars

__all__ = ["IndexReport", "index_tars", "write_captions"]
