"""Contracts for formats, stores and loaders, and the audit.

``audit`` needs only this library. The contracts, which a test module inherits, need pytest and
hypothesis, and are imported on first use. Nothing in the library imports this room.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.testing.auditing import AuditReport, audit

if TYPE_CHECKING:
    from headrace.testing.backend_contract import BackendContract
    from headrace.testing.format_contract import FormatContract, assert_same_rows
    from headrace.testing.loader_contract import (
        LoaderContract,
        ResumeContract,
        frozen,
        ids_of,
        saved,
    )

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

_CONTRACTS = [f"{__name__}.{kind}_contract" for kind in ("backend", "format", "loader")]

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(*_CONTRACTS)


def __getattr__(name: str) -> Any:
    found = map(import_module, _CONTRACTS if name in __all__ else ())
    for module in found:
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
