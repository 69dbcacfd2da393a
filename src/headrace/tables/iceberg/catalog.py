"""Catalogs: from the name of a table to the table, with errors that say what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeVar

from pydantic import ValidationError
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from headrace.errors import (
    AccessDeniedError,
    FileChangedError,
    HeadraceError,
    NothingFoundError,
    OptionError,
    ReadError,
)
from headrace.storage import Redaction
from headrace.tables.iceberg.rows import LISTED

__all__ = ["explained", "hiding", "load_table", "reading_metadata"]

T = TypeVar("T")

_TELLING = re.compile("key|secret|token|credential|password|auth|sas|connection|header", re.I)
_MISSING = (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError)
_REFUSED = (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError)
_NOT_UNDERSTOOD = (exceptions.ValidationError, ValidationError)
_FOREIGN = {
    "sqlalchemy.exc": ("SQLAlchemyError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "thrift.Thrift": ("TException",),
}
"""errors of the clients that catalogs use, which need not be installed"""


def load_table(name: str, config: Mapping[str, Any] | Catalog | None) -> Table:
    """The table of that name.

    Of ``a.b.c`` the first part is the name of the catalog; where that catalog has no table
    ``b.c``, all of it is taken for a table in nested namespaces.
    """
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) < 2 or not all(parts):
        raise OptionError(f"table must be a name such as 'catalog.database.table', not {name!r}")
    if isinstance(config, Catalog):
        own = [tuple(parts[1:])] if parts[0] == config.name and len(parts) > 2 else []
        candidates = [*own, tuple(parts)]
        hidden = hiding(config.properties)
        return explained(f"table {name!r}", hidden, lambda: _first(name, config, candidates))
    properties = _properties(config)
    hidden = hiding(properties)
    named = properties.pop("name", None)
    whole = len(parts) == 2 or named is not None
    catalog = explained(
        f"the catalog of table {name!r}",
        hidden,
        lambda: load_catalog(named if whole else parts[0], **properties),
    )
    candidates = [tuple(parts)] if whole else [tuple(parts[1:]), tuple(parts)]
    return explained(f"table {name!r}", hidden, lambda: _first(name, catalog, candidates))


def reading_metadata(name: str, table: Table, action: Callable[[], T]) -> T:
    """What an action gives that reads lists of files; errors of its client as ours."""
    try:
        return action()
    except FileChangedError as error:
        raise FileChangedError(f"table {name!r}: {error}; {LISTED}") from error
    except HeadraceError:
        raise
    except (OSError, EOFError, *_NOT_UNDERSTOOD) as error:
        kind = AccessDeniedError if isinstance(error, PermissionError) else ReadError
        ours = kind(
            f"table {name!r}: its lists of files under {table.metadata.location} cannot be read: "
            f"{_told(error, hiding(table.io.properties))}"
        )
    raise ours


def hiding(properties: Mapping[str, Any]) -> Redaction:
    """Hides what properties say that is nobody else's business; not the address of the catalog."""
    return Redaction({k: v for k, v in properties.items() if _TELLING.search(str(k))})


def _first(name: str, catalog: Catalog, candidates: list[tuple[str, ...]]) -> Table:
    for identifier in candidates:
        try:
            return catalog.load_table(identifier)
        except _MISSING:
            continue
    tried = " or ".join(sorted({".".join(identifier) for identifier in candidates}))
    raise NothingFoundError(
        f"there is no table {name!r}: the catalog {catalog.name!r} "
        f"({type(catalog).__name__}) has no {tried}; the first part of a name is the catalog's, "
        "unless catalog_config has a 'name'"
    )


def _properties(config: Mapping[str, Any] | None) -> dict[str, Any]:
    if config is not None and not isinstance(config, Mapping):
        raise OptionError(
            "catalog_config must be a mapping of properties for pyiceberg, or a catalog, not a "
            f"{type(config).__name__}"
        )
    properties = dict(config or {})
    if properties.get("type") == "jdbc":
        properties["type"] = "sql"
        uri = properties.get("uri")
        if isinstance(uri, str):
            properties["uri"] = uri.removeprefix("jdbc:")
    return properties


def explained(what: str, hidden: Redaction, action: Callable[[], T]) -> T:
    """What an action gives; errors of pyiceberg and its clients as ours.

    Theirs may hold secrets: ours are raised where none of them is at hand to be kept with it.
    """
    ours: HeadraceError
    try:
        return action()
    except HeadraceError:
        raise
    except _REFUSED as error:
        ours = AccessDeniedError(
            f"{what}: the catalog refuses access: {_told(error, hidden)}; check the credentials "
            "in catalog_config"
        )
    except _NOT_UNDERSTOOD as error:
        ours = ReadError(
            f"{what}: pyiceberg does not understand its metadata, which is damaged or has features "
            f"newer than pyiceberg {version('pyiceberg')}: {_told(error, hidden)}"
        )
    except exceptions.NotInstalledError as error:
        ours = OptionError(f"{what}: {_told(error, hidden)}")
    except (ValueError, TypeError, ImportError) as error:
        ours = OptionError(
            f"{what} cannot be reached with this catalog_config: {_told(error, hidden)}"
        )
    except _unreachable() as error:
        ours = ReadError(f"{what} cannot be reached: {_told(error, hidden)}")
    raise ours


def _told(error: BaseException, hidden: Redaction) -> str:
    return hidden(f"{type(error).__name__}: {error}")


def _unreachable() -> tuple[type[BaseException], ...]:
    foreign = [
        getattr(sys.modules[module], name)
        for module, names in _FOREIGN.items()
        for name in names
        if module in sys.modules
    ]
    return (OSError, exceptions.RESTError, *foreign)
