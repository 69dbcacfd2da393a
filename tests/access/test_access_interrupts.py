"""Interrupting a process that locates or takes rows, while a server is silent, ends the process."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from array_record_files import records_of, write_records
from sample_tars import write_tar
from servers.faults import Request, SlowFirstByte
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from warm_interpreters import WarmProcess, assert_interrupted

from headrace.sources.tar import index_tars

FOR_EVER = SlowFirstByte(3600)
ROWS = 60_000


def arrow(folder: Path, number: int) -> None:
    feather.write_feather(table(number), folder / f"{number}.arrow", compression="uncompressed")


def parquet(folder: Path, number: int) -> None:
    pq.write_table(table(number), folder / f"{number}.parquet", row_group_size=ROWS // 3)


def table(number: int) -> pa.Table:
    return pa.table({"id": np.arange(number * ROWS, (number + 1) * ROWS)})


def records(folder: Path, number: int) -> None:
    write_records(folder / f"{number}.array_record", records_of(20, number))


def tar(folder: Path, number: int) -> None:
    write_tar(folder / f"{number}.tar", [(f"{i:03}.txt", b"%d" % i) for i in range(20)])


def indexed(folder: Path, number: int) -> None:
    tar(folder, number)
    index_tars(folder / f"{number}.tar")


def is_of_rows(request: Request) -> bool:
    """Return True for a request for the first row group, False for one for the footer."""
    return request.range is not None and request.range.startswith("bytes=4-")


CASES: dict[str, tuple[Callable[[Path, int], None], str, dict[str, Any]]] = {
    "shards of Arrow": (arrow, "ArrowBackend(urls)", {"path": "1.arrow", "method": "GET"}),
    "rows of Parquet": (
        parquet,
        "ParquetBackend(urls).take([1, 70_000, 130_000])",
        {"path": "1.parquet", "where": is_of_rows},
    ),
    "ArrayRecord": (
        records,
        "ArrayRecordBackend(urls, cache_dir=folder)",
        {"path": "1.array_record", "method": "GET"},
    ),
    "indices of tars that are asked for": (tar, "TarShards(urls)", {"path": "1.idx.arrow"}),
    "indices of tars that are counted": (
        indexed,
        "len(TarShards(urls))",
        {"path": "1.idx.arrow", "method": "GET"},
    ),
    "tars that are indexed": (
        tar,
        "index_tars(urls, folder)",
        {"path": "1.tar", "method": "GET"},
    ),
}
READING = """
import json, sys
from headrace.access import ArrayRecordBackend, ArrowBackend, ParquetBackend
from headrace import TarShards
from headrace.sources.tar import index_tars
urls, folder = json.loads(sys.argv[1]), sys.argv[2]
"""


def test_an_interrupt_while_one_of_many_is_silent(http_server: HttpServer, tmp_path: Path) -> None:
    """Run all cases at once, because each interrupted process waits seconds for the server."""
    with ThreadPoolExecutor(len(CASES)) as side_by_side:
        futures = {
            case: side_by_side.submit(
                interrupted, http_server, tmp_path / str(number), *CASES[case]
            )
            for number, case in enumerate(CASES)
        }
    for case, future in futures.items():
        assert_interrupted(*future.result(), case)


def interrupted(
    server: HttpServer,
    folder: Path,
    write: Callable[[Path, int], None],
    reading: str,
    silent: dict[str, Any],
) -> tuple[CompletedProcess[str], float]:
    """Interrupt a process once the server is silent; return its result, and how long it took to
    end.
    """
    source, name = folder / "source", uuid4().hex
    source.mkdir(parents=True)
    for number in range(3):
        write(source, number)
    for file in source.iterdir():
        server.put(f"{name}/{file.name}", file.read_bytes())
    with FaultProxy(server.url) as proxy:
        rule = proxy.inject(FOR_EVER, **silent)
        names = sorted(file.name for file in source.iterdir())
        files = [name for name in names if not name.endswith(".idx.arrow")]
        urls = json.dumps([f"{proxy.url}/{name}/{file}" for file in files])
        with WarmProcess("-c", READING + reading, urls, folder / "made") as process:
            while not rule.hits:
                assert process.poll() is None, process.finish().stderr
                time.sleep(0.01)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            return process.finish(timeout_s=100), time.monotonic() - began
