"""Catalogs: from the name of a table to the table, with errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pypaimon import CatalogFactory
from pypaimon.api import rest_exception
from pypaimon.catalog import catalog_exception
from pypaimon.table.file_store_table import FileStoreTable

from penstock.errors import (
    AccessDeniedError,
    NothingFoundError,
    OptionError,
    PenstockError,
    ReadError,
)
from penstock.storage import Redaction

__all__ = ["explained", "hiding", "load_table"]

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
)
_UNREACHABLE = (
    catalog_exception.CatalogException,
    rest_exception.RESTException,
    OSError,
    RuntimeError,
)
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
    with explained(f"the catalog of table {name!r}", hiding(options)):
        catalog = CatalogFactory.create(dict(options))
    with explained(f"table {name!r}", hiding(options)):
        table = catalog.get_table(name)
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


@contextmanager
def explained(what: str, hidden: Redaction) -> Iterator[None]:
    """Errors of pypaimon and its clients as ours; their texts may hold secrets, so no chain."""
    try:
        yield
    except PenstockError:
        raise
    except _MISSING:
        raise NothingFoundError(
            f"{what}: there is none; check its name and the warehouse in catalog_options"
        ) from None
    except _REFUSED as error:
        raise AccessDeniedError(
            f"{what}: the catalog refuses access: {_told(error, hidden)}; check the credentials "
            "in catalog_options"
        ) from None
    except NotImplementedError as error:
        raise OptionError(f"{what} has what pypaimon cannot read: {_told(error, hidden)}") from None
    except (ValueError, TypeError, KeyError, ImportError) as error:
        raise OptionError(
            f"{what} cannot be read with these options: {_told(error, hidden)}"
        ) from None
    except _UNREACHABLE as error:
        raise ReadError(f"{what} cannot be reached: {_told(error, hidden)}") from None


def _told(error: BaseException, hidden: Redaction) -> str:
    """What an error says, and the one that it came from; some have no text of their own."""
    texts = [f"{type(error).__name__}: {error}"]
    if error.__cause__ is not None:
        texts.append(f"{type(error.__cause__).__name__}: {error.__cause__}")
    return hidden("; ".join(texts))
