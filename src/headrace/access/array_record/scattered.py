"""Records from anywhere in a file, read by the thread that asks and by one beside it.

``seek`` and ``read`` keep the GIL. To read a range gives it up while a record is fetched, checked
and decoded; of one record it costs the same, and no other thread of the package takes part in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.access.array_record.reader import read_records
from headrace.access.crew import Crew

__all__ = ["ScatteredReads"]

_MOST_NUMBER = (1 << 31) - 2
"""of a record that a range can begin with"""


class ScatteredReads:
    """Reads records each of which is decoded by itself: alone, or by two if that is faster.

    There is one second thread, which ends with this. Who asks while it is busy does not wait for
    it.
    """

    def __init__(self, crew: Crew | None = None) -> None:
        self._crew = crew or Crew(most=2)
        self._beside = ThreadPoolExecutor(1, "headrace-records")

    def __reduce__(self) -> tuple[Any, ...]:
        return ScatteredReads, ()

    def read(self, reader: Any, numbers: Sequence[int], shown: str) -> list[bytes]:
        """The records of these numbers, which rise."""
        if numbers[-1] > _MOST_NUMBER:
            return read_records(reader, numbers, shown)
        threads = self._crew.size(len(numbers))
        began = time.perf_counter()
        found = self._read_by_two(reader, numbers) if threads > 1 else None
        if found is None:  # also if one cannot be read at all: this says which, and why
            found = read_records(reader, numbers, shown)
        self._crew.note(threads, len(numbers), time.perf_counter() - began)
        return found

    def _read_by_two(self, reader: Any, numbers: Sequence[int]) -> list[bytes] | None:
        """None if not all can be read so."""
        found = [b""] * len(numbers)
        read, places = reader.read, iter(range(len(numbers)))

        def take_turns() -> bool:
            try:
                for place in places:
                    number = numbers[place]
                    [found[place]] = read(number, number + 1)
            except (RuntimeError, IndexError):
                return False
            return True

        try:
            job = self._beside.submit(take_turns)
        except RuntimeError:  # no thread begins any more where the interpreter ends
            return None
        mine = take_turns()
        theirs = job.cancel() or job.result()
        return found if mine and theirs else None
