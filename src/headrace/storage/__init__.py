"""Storage: files on this machine, in object stores, on web servers, and wherever fsspec goes."""

from headrace.storage._access import (
    Access,
    Listing,
    find_files,
    load_manifest,
    named_locations,
    protocol_of,
    save_manifest,
    shown_location,
    store_for,
)
from headrace.storage._disk_cache import DiskCache
from headrace.storage._engine import Engine, RequestError
from headrace.storage._options import Options, ResolvedOptions, resolve, store_options
from headrace.storage._pool import check_on, cores_of_a_node, run_by_processes, run_on_ray
from headrace.storage._ranges import Parts, Requests, will_read
from headrace.storage._redaction import Redaction, has_secret, of_environment, without_secrets
from headrace.storage._remote import RemoteStore, RetryPolicy, Store
from headrace.storage._store import (
    UNKNOWN_SIZE,
    FileStatus,
    LocalStore,
    Meter,
    atomic_write,
    changed,
    file_lock,
    flush_directory,
    matches,
    remove_partial,
    vanished,
)
from headrace.storage._threads import (
    PYARROW_CLIENTS,
    NativeLibrary,
    Patience,
    SideThreads,
    Submit,
    interruptibly,
    side_by_side,
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
    "SideThreads",
    "Store",
    "Submit",
    "atomic_write",
    "changed",
    "check_on",
    "cores_of_a_node",
    "file_lock",
    "find_files",
    "flush_directory",
    "has_secret",
    "interruptibly",
    "load_manifest",
    "matches",
    "named_locations",
    "of_environment",
    "protocol_of",
    "remove_partial",
    "resolve",
    "run_by_processes",
    "run_on_ray",
    "save_manifest",
    "shown_location",
    "side_by_side",
    "store_for",
    "store_options",
    "vanished",
    "will_read",
    "without_secrets",
]
