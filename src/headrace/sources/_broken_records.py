"""Records that a stream leaves out, and the error that names them at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import ReadError
from headrace.sources.files.failures import may_be_skipped

T = TypeVar("T")


@dataclass(slots=True)
class BrokenRecords:
    """Counts the records that are left out, and keeps the error of the first one."""

    first: ReadError | None = None
    count: int = 0

    def all_but(self, numbers: Sequence[int], read: Callable[[int], T]) -> list[tuple[int, T]]:
        """Return the value of each number that can be read, with its index."""
        found: list[tuple[int, T]] = []
        for place, number in enumerate(numbers):
            try:
                found.append((place, read(number)))
            except ReadError as error:
                if not may_be_skipped(error):
                    raise
                self.first = self.first or error
                self.count += 1
        return found

    def tell(self) -> None:
        """Raise a ReadError if any record was left out."""
        if self.first is not None:
            more = f" (and so are {self.count - 1} more records)" if self.count > 1 else ""
            raise ReadError(f"{self.first}; it is left out{more}") from self.first
