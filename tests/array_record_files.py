"""ArrayRecord files for tests, written by the package's own writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

__all__ = ["records_of", "write_records"]


def records_of(count: int, seed: int = 0, size: int = 200) -> list[bytes]:
    """Return records of different lengths that contain their number."""
    rng = np.random.default_rng(seed)
    return [b"%d:" % i + rng.bytes(int(rng.integers(1, size))) for i in range(count)]


def write_records(path: Path, records: list[bytes], group_size: int = 1) -> Path:
    """Write these records to an ArrayRecord file."""
    writer = ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in records:
        writer.write(record)
    writer.close()
    return path
