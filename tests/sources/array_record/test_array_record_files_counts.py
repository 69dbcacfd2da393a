"""How many records there are: all files are looked at side by side."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from array_record_files import records_of, write_records

from headrace.access import ArrayRecordBackend
from headrace.errors import ReadError
from headrace.model import DataFileInfo
from headrace.sources.array_record.files import RecordFiles
from headrace.storage import LocalStore

PATIENCE_S = 20.0


@contextmanager
def written_to(pipe: Path) -> Iterator[None]:
    """Open a pipe, to which somebody has to have come as a reader."""
    deadline = time.monotonic() + PATIENCE_S
    while (end := _opened(pipe)) is None:
        assert time.monotonic() < deadline, f"nobody reads {pipe.name}"
        time.sleep(0.01)
    yield
    os.close(end)


def _opened(pipe: Path) -> int | None:
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def test_no_file_waits_for_another(tmp_path: Path) -> None:
    """Of some pipes the last is being opened while the first waits for somebody to write."""
    pipes = [tmp_path / f"{number}.array_record" for number in range(8)]
    for pipe in pipes:
        os.mkfifo(pipe)
    files = RecordFiles(LocalStore(), None, None)
    infos = [DataFileInfo(str(pipe)) for pipe in pipes]
    with ThreadPoolExecutor(1) as threads:
        counting = threads.submit(files.counts, infos)
        with ExitStack() as ends:
            for pipe in reversed(pipes):
                ends.enter_context(written_to(pipe))
        found = counting.result(PATIENCE_S)
    assert [type(one) for one in found] == [ReadError] * len(pipes)


def test_counts_stand_as_files_do(tmp_path: Path) -> None:
    counts = [(7 * number) % 31 + 1 for number in range(40)]
    for number, count in enumerate(counts):
        write_records(tmp_path / f"{number:02d}.array_record", records_of(count))
    backend = ArrayRecordBackend(tmp_path)
    assert backend.shard_rows.tolist() == counts
    assert backend.num_rows == sum(counts)
    with pytest.raises(IndexError):
        backend.get_row(sum(counts))
