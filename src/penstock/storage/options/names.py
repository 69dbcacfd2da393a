"""Names of options: many in use, one that is meant."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from penstock.errors import OptionError

__all__ = ["Names", "flag"]


class Names:
    """The options that a kind of store knows, by the names that people give them."""

    def __init__(self, store: str, **names: str) -> None:
        self._store = store
        self._meant = {alias: name for name, text in names.items() for alias in text.split()}

    def meant(self, options: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
        """Options by the name that is meant; None counts as not given, an unknown one is an error.

        Values are not shown: they may be secret.
        """
        found: dict[str, Any] = {}
        for name, value in options.items():
            meant = self._meant.get(name)
            if meant is None:
                raise self._unknown(name, inside)
            if value is None:
                continue
            if meant in found and found[meant] != value:
                raise OptionError(
                    f"storage_options for {self._store} names {meant} twice, by different values"
                )
            found[meant] = value
        return found

    def _unknown(self, name: str, inside: str) -> OptionError:
        where = f"storage_options{inside}"
        near = get_close_matches(str(name), self._meant, 1)
        guess = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(sorted(self._meant))
        return OptionError(
            f"{where} for {self._store} has {name!r}, which is not known{guess}; known are {known}"
        )


def flag(options: dict[str, Any], name: str) -> bool | None:
    """An option that is True or False; None when it was not given."""
    value = options.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"storage option {name!r} must be True or False")
    return value
