"""Contracts for formats, stores and loaders, and the audit.

``audit`` needs nothing but this library. The contracts, which a test module inherits, need pytest
and hypothesis, and are imported when they are asked for. Nothing in the library imports this room.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.testing.auditing import AuditReport, audit

if TYPE_CHECKING:
    from headrace.testing.backend_contract import BackendContract
    from headrace.testing.chunks import assert_same_rows
    from headrace.testing.format_contract import FormatContract
    from headrace.testing.loader_contract import LoaderContract, frozen, ids_of
    from headrace.testing.resume_contract import ResumeContract, saved

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
    "BackendContract": "headrace.testing.backend_contract",
    "FormatContract": "headrace.testing.format_contract",
    "LoaderContract": "headrace.testing.loader_contract",
    "ResumeContract": "headrace.testing.resume_contract",
    "assert_same_rows": "headrace.testing.chunks",
    "frozen": "headrace.testing.loader_contract",
    "ids_of": "headrace.testing.loader_contract",
    "saved": "headrace.testing.resume_contract",
}

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(*sorted(set(_CONTRACTS.values())))


def __getattr__(name: str) -> Any:
    if name not in _CONTRACTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CONTRACTS[name]), name)
