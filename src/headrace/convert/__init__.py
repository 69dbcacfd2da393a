"""Convert Arrow blocks to torch, numpy, Arrow or Python batches: once a block, cut as views.

Public names are imported when they are first used: sources need the kinds of columns, but no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.convert._converter import Converter
    from headrace.convert._stacks import NUMERIC
    from headrace.convert.columns import Block, concat

__all__ = ["NUMERIC", "Block", "Converter", "concat"]

_MODULES = {
    "Converter": "_converter",
    "NUMERIC": "_stacks",
    "Block": "columns",
    "concat": "columns",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
