"""Storage: files on this machine, in object stores, on web servers, in filesystems of fsspec."""

from headrace.storage._disk_cache import DiskCache
from headrace.storage._engine import Engine, RequestError
from headrace.storage._listing import Listing, find_files, load_manifest, save_manifest
from headrace.storage._options import Options, ResolvedOptions, resolve_options, store_options
from headrace.storage._pool import check_on, cores_of_a_node, run_by_processes, run_on_ray
from headrace.storage._ranges import Parts, Requests, will_read
from headrace.storage._redaction import (
    Redaction,
    has_secret,
    shown_location,
    without_secrets,
)
from headrace.storage._remote import Access, RemoteStore, RetryPolicy, Store, store_for
from headrace.storage._store import (
    LocalStore,
    Meter,
    atomic_write,
    changed,
    check_version,
    file_lock,
    flush_directory,
    named_locations,
    protocol_of,
    remove_partial,
    vanished,
)
from headrace.storage._threads import (
    PYARROW_CLIENTS,
    NativeLibrary,
    Patience,
    SideThreads,
    side_by_side,
)

__all__ = [
    "PYARROW_CLIENTS",
    "Access",
    "DiskCache",
    "Engine",
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
    "atomic_write",
    "changed",
    "check_on",
    "check_version",
    "cores_of_a_node",
    "file_lock",
    "find_files",
    "flush_directory",
    "has_secret",
    "load_manifest",
    "named_locations",
    "protocol_of",
    "remove_partial",
    "resolve_options",
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
