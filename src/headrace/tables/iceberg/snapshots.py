"""Which snapshot of a table is meant, pinned with the schema it is read in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headrace.errors import NothingFoundError, OptionError

__all__ = ["Pinned", "Wanted", "is_known", "pin", "pin_again"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user says of the snapshot; nothing: the newest one."""

    snapshot_id: int | None = None
    tag: str | None = None
    branch: str | None = None
    as_of: datetime | str | int | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__slots__ if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} exclude each other: give one of them")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A snapshot of a table, and the schema in which it is read."""

    name: str
    table: Table
    schema: Schema
    snapshot: Snapshot | None
    """None: nothing was ever written"""

    @property
    def version(self) -> tuple[int, int]:
        """Snapshot and schema, by their ids; -1: no snapshot."""
        return self.snapshot_id or -1, self.schema.schema_id

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot's id."""
        return None if self.snapshot is None else self.snapshot.snapshot_id


def pin(name: str, table: Table, wanted: Wanted) -> Pinned:
    """The snapshot that is wanted.

    The newest one, and that of a branch, is read in the table's current schema; one of the past
    in the schema that it was written in.
    """
    metadata = table.metadata
    if wanted.branch is not None:
        snapshot = _by_ref(name, metadata, wanted.branch, "branch")
    elif wanted.tag is not None:
        snapshot = _by_ref(name, metadata, wanted.tag, "tag")
    elif wanted.as_of is not None:
        snapshot = _as_of(name, table, wanted.as_of)
    elif wanted.snapshot_id is not None:
        snapshot = _by_id(name, metadata, wanted.snapshot_id)
    else:
        return Pinned(name, table, table.schema(), metadata.current_snapshot())
    schema = table.schema()
    if wanted.branch is None and snapshot.schema_id is not None:
        schema = _schema(metadata, snapshot.schema_id) or schema
    return Pinned(name, table, schema, snapshot)


def is_known(table: Table, version: tuple[int, int]) -> bool:
    """Whether what was loaded of a table has the snapshot and the schema of a ``version``."""
    snapshot_id, schema_id = version
    there = snapshot_id == -1 or table.metadata.snapshot_by_id(snapshot_id) is not None
    return there and _schema(table.metadata, schema_id) is not None


def pin_again(name: str, table: Table, version: tuple[int, int]) -> Pinned:
    """The snapshot and schema of a ``version`` that was pinned before."""
    snapshot_id, schema_id = version
    metadata = table.metadata
    snapshot = None if snapshot_id == -1 else _by_id(name, metadata, snapshot_id)
    schema = _schema(metadata, schema_id)
    if schema is None:
        raise NothingFoundError(
            f"table {name!r} no longer has the schema {schema_id}, in which it was read"
        )
    return Pinned(name, table, schema, snapshot)


def _schema(metadata: TableMetadata, schema_id: int) -> Schema | None:
    return next((one for one in metadata.schemas if one.schema_id == schema_id), None)


def _by_id(name: str, metadata: TableMetadata, snapshot_id: int) -> Snapshot:
    found = metadata.snapshot_by_id(snapshot_id)
    if found is None:
        raise NothingFoundError(
            f"table {name!r} has no snapshot {snapshot_id}: it never had, or it has expired; "
            f"there are {_some(one.snapshot_id for one in metadata.snapshots)}"
        )
    return found


def _by_ref(name: str, metadata: TableMetadata, ref: str, kind: str) -> Snapshot:
    found = metadata.refs.get(ref)
    if found is None or str(found.snapshot_ref_type.value) != kind:
        there = [r for r, one in metadata.refs.items() if one.snapshot_ref_type.value == kind]
        raise NothingFoundError(f"table {name!r} has no {kind} {ref!r}; there are {_some(there)}")
    return _by_id(name, metadata, found.snapshot_id)


def _as_of(name: str, table: Table, when: datetime | str | int) -> Snapshot:
    found = table.snapshot_as_of_timestamp(_milliseconds(when))
    if found is None:
        raise NothingFoundError(
            f"table {name!r} had no snapshot at {when}, or it has expired: the oldest that is "
            f"known is of {_some(one.timestamp_ms for one in table.metadata.snapshots[:1])} (in "
            "milliseconds since 1970)"
        )
    return found


def _milliseconds(when: Any) -> int:
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            raise OptionError(f"as_of={when!r} is no time as in ISO 8601") from None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise OptionError(f"as_of={when} does not say in which time zone it is")
        return int(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int):
        raise OptionError(
            "as_of must be a datetime with a time zone, such a time as text, or milliseconds "
            f"since 1970, not {when!r}"
        )
    return when


def _some(values: Iterable[object]) -> str:
    known = [str(value) for value in values]
    return f"{', '.join(known[-20:])}{' and older ones' if len(known) > 20 else ''}" or "none"
