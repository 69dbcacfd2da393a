"""From rows in their final order to the parts of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import OptionError, WriteError
from headrace.write.gather import Place, ShuffledRows
from headrace.write.journal import Journal
from headrace.write.memory import MemoryPlan
from headrace.write.scatter import run_paths
from headrace.write.target import Receipt, TargetWriter

__all__ = ["Layout", "PartSizes", "write_parts"]


@dataclass(frozen=True, slots=True)
class PartSizes:
    """How large the parts of a copy are to be."""

    group_rows: int
    part_rows: int | None
    part_bytes: int
    """of data in memory; counts where there is no number of rows"""

    def __post_init__(self) -> None:
        for name, value in (("row_group_rows", self.group_rows), ("file_rows", self.part_rows)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if value is not None and not whole:
                raise OptionError(f"{name} must be a positive number of rows, not {value!r}")

    def layout(self, rows: int, size_bytes: int) -> Layout:
        """Where parts end; those that follow from bytes are whole groups."""
        if self.part_rows is not None:
            return Layout(rows, self.part_rows, self.group_rows)
        fitting = self.part_bytes * max(rows, 1) // max(size_bytes, 1)
        return Layout(rows, max(fitting // self.group_rows, 1) * self.group_rows, self.group_rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a copy are divided."""

    rows: int
    part_rows: int
    group_rows: int

    @property
    def parts(self) -> int:
        """How many there are; of nothing at all one, which says what the columns are."""
        return max(1, -(-self.rows // self.part_rows))

    def rows_in(self, part: int) -> int:
        """The rows of one of them."""
        return min(self.part_rows, self.rows - part * self.part_rows)


def write_parts(
    target: TargetWriter,
    journal: Journal,
    schema: pa.Schema,
    layout: Layout,
    *,
    run: str,
    memory: MemoryPlan,
    progress: Callable[[float], None],
) -> list[Receipt]:
    """Write the parts that are missing; what the target says of each of all."""
    done, start = _done(target, journal, run)
    if len(done) == layout.parts:
        return done
    with ShuffledRows(
        run_paths(journal), schema, range_bytes=memory.range_bytes, start=start
    ) as shuffled:
        for part in range(len(done), layout.parts):
            wanted = layout.rows_in(part)
            groups = _groups(shuffled, layout, part, progress)
            receipt = target.write(part, layout.parts, schema, groups)
            if receipt["rows"] != wanted:
                raise WriteError(
                    f"part {part} got {receipt['rows']} rows and not {wanted}: files in "
                    f"{journal.directory} are gone; delete that directory and start anew"
                )
            place = shuffled.place
            entry = {"part": part, "receipt": receipt, "key": place.key, "skip": place.skip}
            journal.note(entry)
            done.append(receipt)
    return done


def _done(target: TargetWriter, journal: Journal, run: str) -> tuple[list[Receipt], Place]:
    """The parts from the first on that are still there, and where the next one begins."""
    latest = {entry["part"]: entry for entry in journal.all("part")}
    receipts: list[Receipt] = []
    place = Place()
    while (entry := latest.get(len(receipts))) is not None and target.holds(entry["receipt"], run):
        receipts.append(entry["receipt"])
        place = Place(entry["key"], entry["skip"])
    return receipts, place


def _groups(
    shuffled: ShuffledRows, layout: Layout, part: int, progress: Callable[[float], None]
) -> Iterator[pa.Table]:
    missing = layout.rows_in(part)
    at = part * layout.part_rows
    while missing > 0:
        progress(at / layout.rows)
        group = shuffled.take(min(missing, layout.group_rows))
        if not group.num_rows:
            return
        yield group
        missing -= group.num_rows
        at += group.num_rows
