"""Which snapshot of a table is meant, pinned with the schema it is read in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import NothingFoundError, OptionError

__all__ = ["Pinned", "Wanted", "pin", "pin_again"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user says of the snapshot; nothing: the newest one."""

    snapshot_id: int | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        if self.snapshot_id is not None and self.tag is not None:
            raise OptionError("snapshot_id and tag exclude each other: give one of them")
        if self.snapshot_id is not None and (
            isinstance(self.snapshot_id, bool) or not isinstance(self.snapshot_id, int)
        ):
            raise OptionError(f"snapshot_id must be a number, not {self.snapshot_id!r}")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A snapshot of a table, and the schema in which it is read."""

    name: str
    table: FileStoreTable = field(repr=False)
    """in that schema, at that snapshot"""
    snapshot: Snapshot | None
    """None: nothing was ever written"""

    @property
    def version(self) -> tuple[int, int]:
        """Snapshot and schema, by their ids; -1: no snapshot."""
        return (-1 if self.snapshot is None else self.snapshot.id), self.table.table_schema.id


def pin(name: str, table: FileStoreTable, wanted: Wanted) -> Pinned:
    """The snapshot that is wanted.

    The newest one is read in the table's current schema; one of the past in the schema that it was
    written in.
    """
    if wanted.tag is not None:
        snapshot = _tagged(name, table, wanted.tag)
    elif wanted.snapshot_id is not None:
        snapshot = _by_id(name, table, wanted.snapshot_id)
    else:
        newest = table.snapshot_manager().get_latest_snapshot()
        return Pinned(name, table._copy_with_snapshot(newest), newest)
    return _pinned(name, table, snapshot, snapshot.schema_id)


def pin_again(name: str, table: FileStoreTable, version: tuple[int, int]) -> Pinned:
    """The snapshot and schema of a ``version`` that was pinned before."""
    snapshot_id, schema_id = version
    snapshot = None if snapshot_id == -1 else _by_id(name, table, snapshot_id)
    return _pinned(name, table, snapshot, schema_id)


def _pinned(name: str, table: FileStoreTable, snapshot: Snapshot | None, schema_id: int) -> Pinned:
    """The table in one of its schemas, with the options that it has today."""
    if schema_id != table.table_schema.id:
        schema = table.schema_manager.get_schema(schema_id)
        if schema is None:
            raise NothingFoundError(
                f"table {name!r} no longer has the schema {schema_id}, in which it was read"
            )
        table = FileStoreTable(
            table.file_io,
            table.identifier,
            table.table_path,
            schema.copy(new_options=table.table_schema.options),
            table.catalog_environment,
        )
    return Pinned(name, table._copy_with_snapshot(snapshot), snapshot)


def _by_id(name: str, table: FileStoreTable, snapshot_id: int) -> Snapshot:
    """The snapshot, which a tag may have kept after it expired."""
    found = table.snapshot_manager().get_snapshot_by_id(snapshot_id)
    if found is not None:
        return found
    tags = table.tag_manager()
    for tag in tags.list_tags():
        kept = tags.get(tag)
        if kept is not None and kept.trim_to_snapshot().id == snapshot_id:
            return kept.trim_to_snapshot()
    there = (one.id for one in table.snapshot_manager().list_snapshots())
    raise NothingFoundError(
        f"table {name!r} has no snapshot {snapshot_id}: it never had, or it has expired; there "
        f"are {_some(there)}"
    )


def _tagged(name: str, table: FileStoreTable, tag: str) -> Snapshot:
    tags = table.tag_manager()
    found = tags.get(tag)
    if found is None:
        raise NothingFoundError(
            f"table {name!r} has no tag {tag!r}; there are {_some(tags.list_tags())}"
        )
    return found.trim_to_snapshot()


def _some(values: Iterable[object]) -> str:
    known = [str(value) for value in values]
    return f"{', '.join(known[-20:])}{' and older ones' if len(known) > 20 else ''}" or "none"
