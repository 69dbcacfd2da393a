"""Where bytes are: on this machine, in object stores, on web servers, and wherever fsspec goes."""

from headrace.storage.access import Access, store_for
from headrace.storage.credentials import Options
from headrace.storage.disk_cache import DiskCache
from headrace.storage.fetching import Patience, side_by_side, side_threads
from headrace.storage.files import atomic_write, file_lock, flush_directory, remove_partial
from headrace.storage.listing import Listing, find_files
from headrace.storage.local import LocalStore
from headrace.storage.manifest import load_manifest, save_manifest
from headrace.storage.meter import Meter
from headrace.storage.ranges import Requests
from headrace.storage.redaction import Redaction
from headrace.storage.remote import RemoteStore
from headrace.storage.remote_file import will_read
from headrace.storage.retrying import RetryPolicy
from headrace.storage.store import FileStatus, Store

__all__ = [
    "Access",
    "DiskCache",
    "FileStatus",
    "Listing",
    "LocalStore",
    "Meter",
    "Options",
    "Patience",
    "Redaction",
    "RemoteStore",
    "Requests",
    "RetryPolicy",
    "Store",
    "atomic_write",
    "file_lock",
    "find_files",
    "flush_directory",
    "load_manifest",
    "remove_partial",
    "save_manifest",
    "side_by_side",
    "side_threads",
    "store_for",
    "will_read",
]
