"""``shuffle_into``: a copy of any source whose rows are in random order."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.options import checked_keywords, parse_bytes
from headrace.storage import Access, Options
from headrace.write.journal import Journal
from headrace.write.keys import row_keys
from headrace.write.memory import MemoryPlan
from headrace.write.overlap import refuse_overlap
from headrace.write.parts import PartSizes, write_parts
from headrace.write.scatter import scatter
from headrace.write.source import FileRows, SourceRows, as_rows
from headrace.write.target import (
    Receipt,
    TargetOptions,
    TargetWriter,
    make_target,
    target_kind,
)
from headrace.write.work import PathLike, Progress, nobody, target_location, work_directory

__all__ = ["ROW_GROUP_ROWS", "ShuffleReport", "shuffle_into"]

logger = logging.getLogger(__name__)

ROW_GROUP_ROWS = 5_000
"""as few as chunks of 1,000 rows are read well from, and not so few that files become slow"""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """What was written."""

    target: str
    format: str
    rows: int
    parts: tuple[Receipt, ...]
    """one for each file or fragment"""
    resumed: bool
    """whether earlier, unfinished work was gone on with"""


@checked_keywords
def shuffle_into(
    source: Any,
    target: PathLike,
    *,
    format: str | None = None,
    target_format: str | None = None,
    seed: int = 0,
    memory_bytes: int | str = "1GiB",
    row_group_rows: int = ROW_GROUP_ROWS,
    file_rows: int | None = None,
    file_bytes: int | str | None = None,
    compression: str | None = None,
    columns: Sequence[str] | None = None,
    filters: ds.Expression | Sequence[Any] | None = None,
    schema: pa.Schema | None = None,
    partitioning: str | ds.Partitioning | None = None,
    format_options: Mapping[str, Any] | None = None,
    as_files: bool = False,
    storage_options: Options | None = None,
    target_options: Options | None = None,
    work_dir: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ShuffleReport:
    """Write the rows of ``source`` to ``target``, each exactly once, in random order.

    The order is a function of the seed and of the order of the source: every permutation is as
    likely as any other. No more than about ``memory_bytes`` of data is in memory at a time; the
    rest waits in ``work_dir``. The target appears when it is complete. A run that was killed is
    gone on with by the next one with the same source and options, other limits of memory allowed.

    ``storage_options`` are for the source, ``target_options`` for the target. ``as_files`` reads
    the files of a table format with the rows that were deleted, as for ``StructuredDataset``.
    """
    memory = MemoryPlan(parse_bytes("memory_bytes", memory_bytes))
    row_keys(seed, 0, 0)  # a seed that is none is refused before anything is read
    if file_rows is not None and file_bytes is not None:
        raise OptionError("file_rows and file_bytes both say how large a file is; give one")
    part_bytes = parse_bytes("file_bytes", "512MiB" if file_bytes is None else file_bytes)
    sizes = PartSizes(row_group_rows, file_rows, part_bytes)
    rows, named = as_rows(
        source,
        format=format,
        columns=columns,
        filters=filters,
        schema=schema,
        partitioning=partitioning,
        format_options=format_options,
        as_files=as_files or None,
        access=None if storage_options is None else Access(storage_options=storage_options),
    )
    location = target_location(target)
    paths = rows.files.paths if isinstance(rows, FileRows) else ()
    refuse_overlap(paths, named, location)
    kind = target_kind(target_format, location)
    directory = work_directory(work_dir, location, "shuffle")
    writer = make_target(
        kind,
        TargetOptions(
            location=location,
            work_dir=directory,
            overwrite=overwrite,
            compression=compression,
            storage_options=target_options or {},
        ),
    )
    work = {
        "version": _VERSION,
        **rows.facts,
        "target": location,
        "target_format": kind,
        "seed": seed,
        **asdict(sizes),
        "compression": compression,
    }
    shuffle = _Shuffle(rows, writer, memory, sizes, progress or nobody)
    if not Journal.exists(directory):
        writer.refuse(rows.schema)
    journal = Journal(directory, work)
    try:
        receipts = shuffle.finish(journal, seed, {"format": kind, "seed": seed})
        logger.info("%s: %d rows in %d parts", location, _rows_of(receipts), len(receipts))
        _tidy(journal)
    finally:
        journal.close()
    return ShuffleReport(location, kind, _rows_of(receipts), tuple(receipts), journal.resumed)


@dataclass(frozen=True, slots=True)
class _Shuffle:
    rows: SourceRows
    target: TargetWriter
    memory: MemoryPlan
    sizes: PartSizes
    progress: Progress

    def finish(self, journal: Journal, seed: int, facts: Mapping[str, Any]) -> list[Receipt]:
        """Do what the journal does not say is done."""
        for entry in journal.all("committed"):
            receipts: list[Receipt] = entry["committed"]
            return receipts
        if not journal.all("begun"):
            journal.note({"begun": uuid4().hex})
        run = journal.all("begun")[0]["begun"]
        self.progress("sorting", 0.0)
        totals = scatter(
            self.rows,
            journal,
            seed=seed,
            memory=self.memory,
            progress=lambda share: self.progress("sorting", share),
        )
        layout = self.sizes.layout(**totals)
        receipts = write_parts(
            self.target,
            journal,
            self.rows.schema,
            layout,
            run=run,
            memory=self.memory,
            progress=lambda share: self.progress("writing", share),
        )
        told = {"run": run, "rows": layout.rows, "row_group_rows": layout.group_rows, **facts}
        self.target.commit(self.rows.schema, receipts, told)
        journal.note({"committed": receipts})
        self.progress("writing", 1.0)
        return receipts


def _rows_of(receipts: Sequence[Receipt]) -> int:
    return sum(int(receipt["rows"]) for receipt in receipts)


def _tidy(journal: Journal) -> None:
    """Remove what was in the work directory; the journal last, so that a kill is harmless."""
    for name in ("runs", "parts"):
        shutil.rmtree(journal.directory / name, ignore_errors=True)
    journal.forget()
    if not any(journal.directory.iterdir()):
        journal.directory.rmdir()
