"""Checksums of states: one that was edited or damaged is refused, whatever its numbers mean.

A state crosses files, checkpoints and other programs between the run that saves it and the run that
loads it. Tuples may come back as lists, and integers as those of numpy: neither changes a checksum.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from headrace.errors import StateMismatchError

__all__ = ["CHECKSUM", "check_checksum", "check_names", "plain_state", "with_checksum"]

CHECKSUM = "checksum"
"""the key of a state that holds the checksum of all the others"""


def with_checksum(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the checksum of its other items."""
    others = {name: value for name, value in state.items() if name != CHECKSUM}
    return {**others, CHECKSUM: _checksum(others)}


def plain_state(state: object, names: Collection[str]) -> dict[str, Any]:
    """Return those items of a state that have one of these names, as JSON has them.

    Raises:
        StateMismatchError: It is no mapping, or holds values that no state has.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"not a state of this library: {type(state).__name__}")
    return {name: _plain(state[name]) for name in names if name in state}


def check_names(state: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise a StateMismatchError unless a state has all of these names."""
    missing = [name for name in names if name not in state]
    if missing:
        raise StateMismatchError(f"the state is damaged: it has no {', '.join(missing)}")


def check_checksum(state: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise a StateMismatchError unless a plain state has all of these names and its checksum."""
    check_names(state, names)
    others = {name: state[name] for name in names if name != CHECKSUM}
    if state[CHECKSUM] != _checksum(others):
        raise StateMismatchError(
            "the state is damaged: its checksum is not that of its content, so something changed "
            "it after it was taken; load it as state_dict or merge_states returned it, or go on "
            "from an older one"
        )


def _checksum(items: Mapping[str, Any]) -> str:
    plain = {name: _plain(value) for name, value in items.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise StateMismatchError(
            f"the state is damaged: it holds {type(value).__name__}, which no state has"
        ) from None
