"""Contracts that a new format or store is put through: inherit one in a test module.

Needs pytest and hypothesis; nothing in the library imports this room.
"""

import pytest

pytest.register_assert_rewrite(
    "penstock.testing.chunks",
    "penstock.testing.format_contract",
    "penstock.testing.loader_contract",
    "penstock.testing.resume_contract",
)

from penstock.testing.chunks import assert_same_rows  # noqa: E402
from penstock.testing.format_contract import FormatContract  # noqa: E402
from penstock.testing.loader_contract import LoaderContract, frozen, ids_of  # noqa: E402
from penstock.testing.resume_contract import ResumeContract, saved  # noqa: E402

__all__ = [
    "FormatContract",
    "LoaderContract",
    "ResumeContract",
    "assert_same_rows",
    "frozen",
    "ids_of",
    "saved",
]
