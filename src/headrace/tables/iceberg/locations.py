"""Where the files of a table are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsspec import AbstractFileSystem

from headrace.errors import OptionError
from headrace.storage import Access, RemoteStore, Store
from headrace.tables.iceberg.deletes import store_path
from headrace.tables.iceberg.planning import PlannedFile
from headrace.tables.iceberg.snapshots import Pinned

__all__ = ["protocol_of", "store_of"]


def protocol_of(pinned: Pinned, planned: Sequence[PlannedFile]) -> str:
    """The protocol of the table's files; nothing for those of this machine."""
    return _protocol(next(_paths(pinned, planned)))


def store_of(pinned: Pinned, planned: Sequence[PlannedFile], access: Access) -> Store:
    """The one store that holds all files."""
    one_each = {_protocol(path): path for path in _paths(pinned, planned)}
    given = access.filesystem
    if given is not None and not isinstance(given, AbstractFileSystem) and set(one_each) != {""}:
        raise OptionError(
            f"the files of table {pinned.name!r} have URLs ({next(iter(one_each.values()))}), "
            f"which a {type(given).__name__} does not take: give a filesystem of fsspec, or "
            "storage_options="
        )
    store = access.store_for(list(one_each.values()))[0]
    return replace(store, immutable=True) if isinstance(store, RemoteStore) else store


def _paths(pinned: Pinned, planned: Sequence[PlannedFile]) -> Iterator[str]:
    paths = [file.path for file in planned] or [pinned.table.metadata.location]
    return map(store_path, paths)


def _protocol(path: str) -> str:
    return path.partition("://")[0] if "://" in path else ""
