"""What formats, stores and loaders are put through.

``audit`` needs nothing but this library. The contracts, which a test module inherits, need pytest
and hypothesis, and are imported when they are asked for. Nothing in the library imports this room.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.testing.auditing import AuditReport, audit

if TYPE_CHECKING:
    from penstock.testing.backend_contract import BackendContract
    from penstock.testing.chunks import assert_same_rows
    from penstock.testing.format_contract import FormatContract
    from penstock.testing.loader_contract import LoaderContract, frozen, ids_of
    from penstock.testing.resume_contract import ResumeContract, saved

__all__ = [
    "AuditReport",
    "BackendContract",
    "FormatContract",
    "LoaderContract",
    "ResumeContract",
    "assert_same_rows",
    "audit",
    "frozen",
    "ids_of",
    "saved",
]

_CONTRACTS = {
    "BackendContract": "penstock.testing.backend_contract",
    "FormatContract": "penstock.testing.format_contract",
    "LoaderContract": "penstock.testing.loader_contract",
    "ResumeContract": "penstock.testing.resume_contract",
    "assert_same_rows": "penstock.testing.chunks",
    "frozen": "penstock.testing.loader_contract",
    "ids_of": "penstock.testing.loader_contract",
    "saved": "penstock.testing.resume_contract",
}

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(*sorted(set(_CONTRACTS.values())))


def __getattr__(name: str) -> Any:
    if name not in _CONTRACTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CONTRACTS[name]), name)
