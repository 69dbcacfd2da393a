"""Options that reach a store, fresh when they have to be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.errors import OptionError

__all__ = ["Options", "Resolved", "resolve"]

Options = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""what a user gives: options, or a function that returns them"""

_EARLY_S = 60.0
"""so long before they expire, credentials are asked for again"""
_EARLY_SHARE = 0.25
"""of how long they last; or short-lived ones would be asked for at every request"""
EXPIRY = "expires_at"
"""the option that says when the others expire"""
SOURCE = "credentials"
"""the option that may hold a function which returns others"""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Options with the values that they have now."""

    options: Mapping[str, Any]
    expires_at: float | None
    """in seconds since the epoch"""
    renewable: bool
    """whether asking again may give others"""
    resolved_at: float = field(default_factory=time.time)

    @property
    def stale(self) -> bool:
        """Whether it is time to ask again."""
        if self.expires_at is None or not self.renewable:
            return False
        lifetime_s = max(self.expires_at - self.resolved_at, 0.0)
        return time.time() > self.expires_at - min(_EARLY_S, _EARLY_SHARE * lifetime_s)


def resolve(given: Options) -> Resolved:
    """Call what is callable: the whole, ``credentials``, or the value of any option."""
    options = _called(given, "storage_options") if callable(given) else given
    renewable = callable(given)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if not callable(value):
            found[name] = value
        elif name == SOURCE:
            found.update(_called(value, SOURCE))
        else:
            found[name] = value()
        renewable = renewable or callable(value)
    expires_at = _seconds(found.pop(EXPIRY, None))
    if expires_at is not None and not renewable:
        expires_at = None  # nothing can be done about it
    return Resolved(found, expires_at, renewable)


def _called(source: Callable[[], Any], name: str) -> Mapping[str, Any]:
    options = source()
    if not isinstance(options, Mapping):
        raise OptionError(
            f"the function given as {name} must return a mapping of options, "
            f"not a {type(options).__name__}"
        )
    return options


def _parsed(moment: str) -> datetime:
    try:
        return datetime.fromisoformat(moment)
    except ValueError:
        pass
    raise OptionError(f"{EXPIRY} is no time, such as 2026-12-31T23:59:59Z")


def _seconds(moment: Any) -> float | None:
    """A time as boto, Azure and people write it: a number, a datetime, or ISO 8601."""
    if moment is None or (isinstance(moment, int | float) and not isinstance(moment, bool)):
        return None if moment is None else float(moment)
    if isinstance(moment, str):
        moment = _parsed(moment)
    if not isinstance(moment, datetime):
        raise OptionError(f"{EXPIRY} must be a datetime or seconds, not {type(moment).__name__}")
    return moment.timestamp()
