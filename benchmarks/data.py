"""The data of the benchmarks: written once, with the same bytes on every machine.

    python benchmarks/data.py [--scale 0.05]

Twenty float32 columns ``f00`` to ``f19`` of normal noise and one int64 column ``row``, which counts
from 0 over the whole data set, so that it is sorted and identifies every row.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pyarrow.parquet as pq

FILES = 8
GROUPS_PER_FILE = 5
FLOAT_COLUMNS = [f"f{i:02d}" for i in range(20)]
LIST_LENGTH = 64
KINDS = ("parquet", "orc", "arrow", "csv", "jsonl", "lists")
SMALL_FILES = 5000
SMALL_FILE_ROWS = 100
_TEXT_AND_LISTS = {"csv", "jsonl", "lists"}
FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Data:
    """A generated data set; published results have ``scale`` 1."""

    scale: float = 1.0

    @property
    def rows_per_group(self) -> int:
        """The number of rows of a row group of the Parquet files."""
        return max(1, round(100_000 * self.scale))

    def rows(self, kind: str) -> int:
        """Return the rows of all files; text and lists have a quarter of those of other formats."""
        if kind == "small":
            return self.file_count(kind) * SMALL_FILE_ROWS
        rows = FILES * GROUPS_PER_FILE * self.rows_per_group
        return rows // 4 if kind in _TEXT_AND_LISTS else rows

    def file_count(self, kind: str) -> int:
        """Return the number of files of one kind; small files are many."""
        return max(1, round(SMALL_FILES * self.scale)) if kind == "small" else FILES

    def folder(self, kind: str) -> Path:
        """Return the folder that contains only the files of one kind."""
        return FOLDER / f"scale-{self.scale:g}" / kind

    def files(self, kind: str) -> list[Path]:
        """Return the files in order, with those of subfolders."""
        return sorted(path for path in self.folder(kind).rglob("*") if path.is_file())

    def filter_range(self) -> tuple[int, int]:
        """Return the first and last value of ``row`` to keep: two adjacent row groups of forty."""
        return 12 * self.rows_per_group, 14 * self.rows_per_group - 1


def make(data: Data, kinds: Sequence[str] = KINDS) -> None:
    """Write the data that do not exist yet."""
    for kind in kinds:
        folder = data.folder(kind)
        if folder.exists():
            continue
        print(f"writing {kind} at scale {data.scale:g}", flush=True)
        unfinished = folder.with_name(kind + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        count = data.file_count(kind)
        rows, digits = data.rows(kind) // count, len(str(count - 1))
        for number in range(count):
            path = unfinished / f"part-{number:0{digits}}.{kind}"
            _WRITERS[kind](path, _table(kind, number, rows))
        _take_out_of_cache(unfinished)
        unfinished.rename(folder)


def write_missing(data: Data, writers: Mapping[str, Callable[[Data, Path], None]]) -> None:
    """Write the kinds that do not exist yet; a folder appears when it is complete."""
    for kind, write in writers.items():
        folder = data.folder(kind)
        if folder.exists():
            continue
        unfinished = folder.with_name(f"{kind}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(data, unfinished)
        _take_out_of_cache(unfinished)
        unfinished.rename(folder)


def write_again(data: Data, kind: str) -> None:
    """Write the files of a kind again, as ``KIND-written``, so that they stay in the page cache."""
    folder = data.folder(f"{kind}-written")
    folder.mkdir(parents=True, exist_ok=True)
    for path in data.files(kind):
        (folder / path.name).write_bytes(path.read_bytes())


def _take_out_of_cache(folder: Path) -> None:
    """Remove files from the page cache, so that they are read from the disk as files of others are.

    Files that were just written are in the page cache in larger pieces, and are copied from it two
    or three times as fast as files that were read.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _table(kind: str, number: int, rows: int) -> pa.Table:
    noise = np.random.default_rng(number)
    if kind == "lists":
        values = pa.array(noise.standard_normal(rows * LIST_LENGTH, np.float32))
        return pa.table({"vector": pa.FixedSizeListArray.from_arrays(values, LIST_LENGTH)})
    columns: dict[str, np.ndarray] = {
        name: noise.standard_normal(rows, np.float32) for name in FLOAT_COLUMNS
    }
    columns["row"] = np.arange(number * rows, (number + 1) * rows)
    return pa.table(columns)


def _write_parquet(path: Path, table: pa.Table) -> None:
    group_rows = -(-len(table) // GROUPS_PER_FILE)
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=group_rows)


def _write_small(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path.with_suffix(".parquet"))


def _write_arrow(path: Path, table: pa.Table) -> None:
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(table) // GROUPS_PER_FILE)


def _write_jsonl(path: Path, table: pa.Table) -> None:
    """Write lines with Arrow: a Python dictionary for each row would take minutes."""
    parts: list[object] = []
    for name in table.column_names:
        parts += [("{" if not parts else ",") + f'"{name}":', table[name].cast(pa.string())]
    lines = pc.binary_join_element_wise(*parts, "}", "")
    with path.open("w") as file:
        for chunk in lines.chunks:
            file.write("\n".join(chunk.to_pylist()) + "\n")


def _write_orc(path: Path, table: pa.Table) -> None:
    orc.write_table(table, str(path))


def _write_csv(path: Path, table: pa.Table) -> None:
    csv.write_csv(table, path)


_WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "parquet": _write_parquet,
    "orc": _write_orc,
    "arrow": _write_arrow,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "lists": _write_parquet,
    "small": _write_small,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0)
    make(Data(parser.parse_args().scale))
