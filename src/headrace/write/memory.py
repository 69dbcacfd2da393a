"""How a limit of memory is divided among what needs some at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import OptionError

__all__ = ["MemoryPlan"]

_LEAST = 1 << 20
_MOST_AT_ONCE = 1 << 30
"""more brings nothing, and a column of texts may hold 2 GiB only"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of Arrow data.

    The first pass holds a run that is being filled, one that is being sorted, of which there are
    two copies for a while, and what was read ahead. The second holds a range of keys from which
    rows are taken, and the next one while it is loaded and joined.
    """

    limit_bytes: int

    def __post_init__(self) -> None:
        if self.limit_bytes < _LEAST:
            raise OptionError(f"memory must be 1MiB at least, not {self.limit_bytes} bytes")

    @property
    def run_bytes(self) -> int:
        """Rows that are sorted together in the first pass."""
        return min(self.limit_bytes // 4, _MOST_AT_ONCE)

    @property
    def range_bytes(self) -> int:
        """Rows that are sorted together in the second pass."""
        return min(self.limit_bytes // 6, _MOST_AT_ONCE)

    @property
    def ahead_bytes(self) -> int:
        """Rows that are read ahead."""
        return self.limit_bytes // 8

    @property
    def block_bytes(self) -> int:
        """Rows that are decoded at a time."""
        return max(1 << 16, min(16 << 20, self.limit_bytes // 32))
