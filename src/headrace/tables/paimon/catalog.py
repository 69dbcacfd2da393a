"""Catalogs: from the name of a table to the table, with errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pypaimon import CatalogFactory
from pypaimon.api import rest_exception
from pypaimon.catalog import catalog_exception
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import (
    AccessDeniedError,
    HeadraceError,
    NothingFoundError,
    OptionError,
    ReadError,
)
from headrace.storage import Redaction

__all__ = ["explained", "hiding", "load_table"]

T = TypeVar("T")

_TELLING = re.compile("key|secret|token|credential|password|auth|connection|header", re.I)
_MISSING = (
    catalog_exception.TableNotExistException,
    catalog_exception.DatabaseNotExistException,
    rest_exception.NoSuchResourceException,
)
_REFUSED = (
    catalog_exception.TableNoPermissionException,
    catalog_exception.DatabaseNoPermissionException,
    rest_exception.NotAuthorizedException,
    rest_exception.ForbiddenException,
    PermissionError,
)
_UNREACHABLE = (
    catalog_exception.CatalogException,
    rest_exception.RESTException,
    OSError,
    RuntimeError,
)
_FAILURES = (*_UNREACHABLE, NotImplementedError, ValueError, TypeError, KeyError, ImportError)
_UNREAD = {
    "scan.fallback-branch": (
        "rows of another branch; read the branches one by one, as table 'db.table$branch_name'"
    ),
    "query-auth.enabled": (
        "rows and columns that the catalog hides from some users; read it with an engine that "
        "asks the catalog, and write what may be read into another table"
    ),
    "record-level.expire-time": (
        "rows that expire one by one; let an engine compact it into a table without that option"
    ),
}
"""options of tables under which files hold other rows than the table"""


def load_table(name: str, options: Mapping[str, Any]) -> FileStoreTable:
    """The table of that name: ``database.table``, or ``database.table$branch_name``."""
    if not isinstance(options, Mapping):
        raise OptionError(
            "catalog_options must be a mapping of options for pypaimon, not a "
            f"{type(options).__name__}"
        )
    if not isinstance(name, str) or name.count(".") < 1 or not all(name.split(".")):
        raise OptionError(f"table must be a name such as 'database.table', not {name!r}")
    hidden = hiding(options)
    catalog = explained(
        f"the catalog of table {name!r}", hidden, lambda: CatalogFactory.create(dict(options))
    )
    table = explained(f"table {name!r}", hidden, lambda: catalog.get_table(name))
    if not isinstance(table, FileStoreTable):
        raise OptionError(
            f"table {name!r} is a {type(table).__name__}, and only tables with data files of "
            "their own are read here"
        )
    _check(name, table)
    return table


def _check(name: str, table: FileStoreTable) -> None:
    for option, what in _UNREAD.items():
        value = table.table_schema.options.get(option)
        if value is not None and str(value).lower() != "false":
            raise OptionError(f"table {name!r} has the option {option}={value}: {what}")


def hiding(options: Mapping[str, Any]) -> Redaction:
    """Hides what options say that is nobody else's business; not the address of the catalog."""
    return Redaction({k: v for k, v in options.items() if _TELLING.search(str(k))})


def explained(what: str, hidden: Redaction, action: Callable[[], T]) -> T:
    """What an action gives; errors of pypaimon and its clients as ours.

    Theirs may hold secrets: ours are raised where none of them is at hand to be kept with it.
    """
    try:
        return action()
    except HeadraceError:
        raise
    except _FAILURES as error:
        ours = _ours(what, error, _told(error, hidden))
    raise ours


def _ours(what: str, error: BaseException, told: str) -> HeadraceError:
    if isinstance(error, _MISSING):
        return NothingFoundError(
            f"{what}: there is none; check its name and the warehouse in catalog_options"
        )
    if isinstance(error, _REFUSED):
        return AccessDeniedError(
            f"{what}: access is refused: {told}; check the credentials in catalog_options"
        )
    if isinstance(error, NotImplementedError):
        return OptionError(f"{what} has what pypaimon cannot read: {told}")
    if isinstance(error, _UNREACHABLE):
        return ReadError(f"{what} cannot be reached: {told}")
    return OptionError(f"{what} cannot be read with these options: {told}")


def _told(error: BaseException, hidden: Redaction) -> str:
    """What an error says, and the one that it came from; some have no text of their own."""
    texts = [f"{type(error).__name__}: {error}"]
    if error.__cause__ is not None:
        texts.append(f"{type(error.__cause__).__name__}: {error.__cause__}")
    return hidden("; ".join(texts))
