"""Arrow IPC files and streams with bytes that were overwritten: an error, or rows; never a crash.

Arrow IPC has no checksums, so that a changed number is only another number. Whatever would lead
outside of the data (offsets, lengths, codes, text that is not UTF-8) is found.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.access import ArrowBackend
from headrace.errors import HeadraceError
from headrace.model import DataFileInfo, FileSplit
from headrace.sources.arrow._format import ArrowFormat
from headrace.storage import LocalStore

ROWS, FILES = 60, 200
MOST_GROWTH_MB = 300

TABLE = pa.table(
    {
        "number": np.arange(ROWS),
        "text": [f"text {i}" * (i % 4) for i in range(ROWS)],
        "list": [[i] * (i % 3) for i in range(ROWS)],
        "texts": [[str(i)] * (i % 3) for i in range(ROWS)],
        "codes": pa.array(["a", "bb", "c"] * (ROWS // 3)).dictionary_encode(),
        "struct": [{"a": i, "b": str(i)} for i in range(ROWS)],
        "null": [None if i % 5 == 0 else i for i in range(ROWS)],
        "view": pa.array([f"a text that is long {i}" for i in range(ROWS)], pa.string_view()),
    }
)


def damaged(path: Path, seed: int) -> None:
    """Write a file of some columns, and overwrite some of its bytes."""
    chance = random.Random(seed)
    names = chance.choice([*([name] for name in TABLE.schema.names), TABLE.schema.names])
    table = TABLE.select(names)
    options = ipc.IpcWriteOptions(compression=chance.choice([None, None, "lz4", "zstd"]))
    make_writer = chance.choice([ipc.new_file, ipc.new_stream])
    sink = pa.BufferOutputStream()
    with make_writer(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=20)
    raw = bytearray(sink.getvalue().to_pybytes())
    for _ in range(chance.choice([1, 1, 2, 4])):
        raw[chance.randrange(len(raw))] = chance.choice([0, 127, 128, 255, chance.randrange(256)])
    path.write_bytes(raw)


def read_in_order(path: Path) -> int:
    listed, store = DataFileInfo(str(path), file_size=path.stat().st_size), LocalStore()
    facts = ArrowFormat().inspect(store, listed)
    file = DataFileInfo(listed.path, listed.file_size, facts.record_count, facts.row_groups)
    tables = list(ArrowFormat().read(store, FileSplit(file), facts.schema, 1 << 20))
    for table in tables:
        table.validate(full=True)
    assert sum(table.num_rows for table in tables) == facts.record_count
    return int(facts.record_count or 0)


def take_all(path: Path) -> int:
    backend = ArrowBackend(path)
    if backend.num_rows:
        backend.take(np.arange(backend.num_rows)[::-1]).validate(full=True)
    return backend.num_rows


def get_rows(path: Path) -> int:
    backend = ArrowBackend(path)
    for row in range(backend.num_rows):
        backend.get_row(row)
    return backend.num_rows


def child(folder: Path, first: int) -> None:
    """Read files until all are read; print how each was read."""
    path = folder / f"{first}.arrow"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(first, first + FILES):
        damaged(path, seed)
        print(json.dumps([seed, "begun"]), flush=True)
        for read in (read_in_order, take_all, get_rows):
            try:
                rows = read(path)
            except HeadraceError:
                outcome = "refused"
            else:
                outcome = "read" if rows <= ROWS else f"{rows} rows"
            print(json.dumps([seed, read.__name__, outcome]))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(json.dumps([first, "grown", grown]), flush=True)


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    outcomes = [line[2] for line in lines if len(line) == 3 and line[1] != "grown"]
    assert len(outcomes) == 3 * FILES
    assert set(outcomes) == {"refused", "read"}
    assert lines[-1][2] < MOST_GROWTH_MB


if __name__ == "__main__":
    child(Path(sys.argv[1]), int(sys.argv[2]))
