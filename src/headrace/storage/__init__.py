"""Storage: files on this machine, in object stores, on web servers, and wherever fsspec goes."""

from headrace.storage._disk_cache import DiskCache
from headrace.storage._engine import Engine, RequestError, StoreFailure
from headrace.storage._manifest import load_manifest, save_manifest
from headrace.storage._ranges import Parts, Requests, will_read
from headrace.storage._remote import RemoteStore, RetryPolicy
from headrace.storage._threads import (
    PYARROW_CLIENTS,
    NativeLibrary,
    Patience,
    Submit,
    interruptibly,
    side_by_side,
    side_threads,
)
from headrace.storage.access import Access, protocol_of, shown_location, store_for
from headrace.storage.listing import Listing, find_files, named_locations
from headrace.storage.options import Options, ResolvedOptions, resolve
from headrace.storage.redaction import Redaction
from headrace.storage.store import (
    UNKNOWN_SIZE,
    FileStatus,
    LocalStore,
    Meter,
    Store,
    atomic_write,
    file_lock,
    flush_directory,
    remove_partial,
)

__all__ = [
    "PYARROW_CLIENTS",
    "UNKNOWN_SIZE",
    "Access",
    "DiskCache",
    "Engine",
    "FileStatus",
    "Listing",
    "LocalStore",
    "Meter",
    "NativeLibrary",
    "Options",
    "Parts",
    "Patience",
    "Redaction",
    "RemoteStore",
    "RequestError",
    "Requests",
    "ResolvedOptions",
    "RetryPolicy",
    "Store",
    "StoreFailure",
    "Submit",
    "atomic_write",
    "file_lock",
    "find_files",
    "flush_directory",
    "interruptibly",
    "load_manifest",
    "named_locations",
    "protocol_of",
    "remove_partial",
    "resolve",
    "save_manifest",
    "shown_location",
    "side_by_side",
    "side_threads",
    "store_for",
    "will_read",
]
