"""Where bytes are: on this machine, in object stores, on web servers, and wherever fsspec goes."""

from penstock.storage.access import Access, store_for
from penstock.storage.credentials import Options
from penstock.storage.disk_cache import DiskCache
from penstock.storage.fetching import Patience, side_by_side, side_threads
from penstock.storage.listing import Listing, find_files
from penstock.storage.local import LocalStore
from penstock.storage.manifest import load_manifest, save_manifest
from penstock.storage.meter import Meter
from penstock.storage.ranges import Requests
from penstock.storage.redaction import Redaction
from penstock.storage.remote import RemoteStore
from penstock.storage.remote_file import will_read
from penstock.storage.retrying import RetryPolicy
from penstock.storage.store import FileStatus, Store

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
    "find_files",
    "load_manifest",
    "save_manifest",
    "side_by_side",
    "side_threads",
    "store_for",
    "will_read",
]
