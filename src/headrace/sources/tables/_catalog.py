"""Catalogs of tables: their errors, the wanted snapshot, and the store of the files.

Errors of the libraries are converted to errors that say what to do, without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from headrace.errors import HeadraceError, NothingFoundError, OptionError
from headrace.options import check_together
from headrace.storage import Access, Options, Redaction, RemoteStore, Store, protocol_of

T = TypeVar("T")
N = TypeVar("N")
S = TypeVar("S")
Failures = Sequence[tuple[tuple[type[BaseException], ...], type[HeadraceError], str]]
"""Exceptions of a library, the error raised for them, and its message, with ``{what}`` for the
request and ``{reason}`` for the text of the library. The first entry that fits the exception, or
one of its causes, applies."""
StoreAccess = Callable[[Callable[[], Options]], Access]
"""Function that returns the access to a store; its argument returns options of the catalog."""

_SECRET = re.compile("key|secret|token|credential|password|auth|sas|connection|header", re.I)
_MOST_SHOWN = 20


# --- errors


def hide_secrets(options: Mapping[str, Any]) -> Redaction:
    """Return a redaction of the secrets of a catalog's options; addresses stay visible."""
    return Redaction({k: v for k, v in options.items() if _SECRET.search(str(k))})


def explain_errors(what: str, hidden: Redaction, action: Callable[[], T], failures: Failures) -> T:
    """Return the result of an action, with errors of a library as ours.

    Errors of libraries may hold secrets. Ours are raised outside of the handler, so that they have
    no context.

    Args:
        what: The requested thing, for messages.
        hidden: Hides secrets.
        action: Calls the library.
        failures: The meanings of errors; others are raised as they are.
    """
    try:
        return action()
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:
        chain = list(_causes(error))
        found = next((one for one in failures if any(isinstance(e, one[0]) for e in chain)), None)
        if found is None:
            raise
        # Some errors have no text of their own; the text is in their cause.
        errors = [error, *([error.__cause__] if error.__cause__ is not None else [])]
        reason = hidden("; ".join(f"{type(one).__name__}: {one}" for one in errors))
        ours = found[1](found[2].format(what=what, reason=reason))
    raise ours


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes; for denied access an OSError."""
    while error is not None:
        yield PermissionError() if "ACCESS_DENIED" in str(error) else error
        error = error.__cause__ or error.__context__


def list_last(values: Iterable[object]) -> str:
    """Return the last of some values as text, for messages that list the existing ones."""
    known = [str(value) for value in values]
    return (
        f"{', '.join(known[-_MOST_SHOWN:])}{' and older ones' * (len(known) > _MOST_SHOWN)}"
        or "none"
    )


# --- snapshots


@dataclass(frozen=True, slots=True)
class SnapshotChoice:
    """The snapshot that the user names; by default the newest one.

    Attributes:
        snapshot_id: Its id.
        tag: The name of a tag.
        branch: The name of a branch.
        as_of: A time at which it was the newest snapshot.

    Raises:
        OptionError: More than one of them is given.
    """

    snapshot_id: int | None = None
    tag: str | None = None
    branch: str | None = None
    as_of: datetime | str | int | None = None

    def __post_init__(self) -> None:
        check_together(asdict(self))
        number = self.snapshot_id
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise OptionError(f"snapshot_id must be a number, not {number!r}")


@dataclass(frozen=True, slots=True)
class PinnedSnapshot(Generic[N, S]):
    """A snapshot of a table, and the schema in which it is read.

    Attributes:
        name: The name of the table.
        location: The directory of the table.
        table: The table as an object of its library.
        snapshot: The snapshot as an object of the library; None if nothing was ever written.
        version: The ids of snapshot and schema; -1 for no snapshot.
    """

    name: str
    location: str
    table: N = field(repr=False)
    snapshot: S | None
    version: tuple[int, int]

    @property
    def snapshot_id(self) -> int | None:
        """Id of the snapshot."""
        return None if self.snapshot is None else self.version[0]


def no_snapshot(table: str, snapshot_id: int) -> NothingFoundError:
    """Return the error for a snapshot that does not exist."""
    return NothingFoundError(
        f"table {table!r} has no snapshot {snapshot_id}: it never existed, or it has expired"
    )


def no_ref(table: str, kind: str, name: str, known: Iterable[object]) -> NothingFoundError:
    """Return the error for a tag or a branch that does not exist."""
    return NothingFoundError(
        f"table {table!r} has no {kind} {name!r}; there are {list_last(known)}"
    )


def no_schema(table: str, schema_id: int) -> NothingFoundError:
    """Return the error for a schema that does not exist any more."""
    return NothingFoundError(
        f"table {table!r} no longer has the schema {schema_id}, in which it was read"
    )


# --- where files are


def store_path(path: str) -> str:
    """Return a path of a table's metadata in the form that stores use.

    Engines write local files as ``file:///x`` and ``file:/x``, and S3 with other schemes.
    """
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    scheme, separator, rest = path.partition("://")
    return f"s3://{rest}" if separator and scheme in ("s3a", "s3n") else path


def as_store_options(
    options: Mapping[str, Any], names: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return options of a catalog under the names that stores know.

    Args:
        options: The options of the catalog.
        names: For each option of a store, its names in the catalog; the first one that is set
            applies.
    """
    found = {
        name: next((options[one] for one in known if options.get(one)), None)
        for name, known in names.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def store_of(
    table: str,
    paths: Sequence[str],
    access: StoreAccess,
    options: Callable[[str], Options],
) -> tuple[Access, Store]:
    """Return the store that holds all files of a table.

    Args:
        table: The name of the table, for messages.
        paths: Paths of its files; if there are none, the path of the table.
        access: Returns the access to stores, with the options that a function returns.
        options: Returns the options that the catalog gives for files of a protocol.
    """
    one_each = {protocol_of(path): path for path in paths}
    protocol = next(iter(one_each))
    found = access(lambda: options(protocol))
    given = found.filesystem
    if given is not None and set(one_each) != {""}:
        from fsspec import AbstractFileSystem

        if not isinstance(given, AbstractFileSystem):
            raise OptionError(
                f"the files of table {table!r} have URLs ({next(iter(one_each.values()))}), which "
                f"a {type(given).__name__} does not accept: give a filesystem of fsspec, or "
                "storage_options="
            )
    store = found.store_for(list(one_each.values()))[0]
    return found, replace(store, immutable=True) if isinstance(store, RemoteStore) else store
