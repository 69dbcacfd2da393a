"""Where bytes are: local files, and any other location through fsspec."""

from penstock.storage.listing import Listing, find_files
from penstock.storage.stores import FileStatus, LocalStore, Store, open_pinned, store_for

__all__ = ["FileStatus", "Listing", "LocalStore", "Store", "find_files", "open_pinned", "store_for"]
