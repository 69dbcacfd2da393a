"""Folders served as buckets through a proxy that sees every request, and files to put there."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc, orc
from servers.fast_s3 import FastS3Process
from servers.faults import Request
from servers.proxy import FaultProxy

from headrace import StructuredDataset


@dataclass(frozen=True, slots=True)
class Served:
    """A folder as a bucket. What is listed is what was there at the start."""

    folder: Path
    proxy: FaultProxy

    @property
    def bucket(self) -> str:
        return f"s3://{self.folder.name}"

    @property
    def options(self) -> dict[str, str]:
        return {"key": "any", "secret": "any", "endpoint_url": self.proxy.url}

    def loader(self, place: str, format: str | None = "parquet", **options: Any) -> Any:
        """A loader and its dataset; threads read unless told otherwise."""
        given = {"num_workers": 0, "storage_options": self.options, **options}
        return StructuredDataset.create_dataloader(f"{self.bucket}/{place}", format, **given)

    def taken(self) -> Asked:
        """The requests since the last call."""
        log, self.proxy.log[:] = list(self.proxy.log), []
        return Asked(log)


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests that were made."""

    log: list[Request]

    @property
    def reads(self) -> list[Request]:
        """Those for bytes of objects."""
        return [r for r in self.log if r.method == "GET" and "list-type" not in r.query]

    @property
    def listings(self) -> list[Request]:
        return [r for r in self.log if "list-type" in r.query]

    @property
    def heads(self) -> list[Request]:
        return [r for r in self.log if r.method == "HEAD"]

    @property
    def bytes(self) -> int:
        return sum(request.body_bytes for request in self.reads)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A folder whose files are all there, as a bucket of the same name."""
    with FastS3Process(folder) as server, FaultProxy(server.url) as proxy:
        yield Served(folder, proxy)


def rows_of(loader: Any, column: str = "id") -> list[int]:
    """The ids that one epoch gives, in order."""
    return [int(value) for batch in loader for value in batch[column]]


def numbers(rows: int, first: int = 0, columns: int = 3) -> pa.Table:
    """Rows that do not compress, with an id each."""
    rng = np.random.default_rng(first)
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, **{f"x{i}": rng.random(rows) for i in range(columns)}})


def wide(rows: int) -> pa.Table:
    """21 columns: an id, numbers, strings and nested ones."""
    rng = np.random.default_rng(7)
    words = rng.integers(1 << 40, size=(2, rows))
    lengths = rng.integers(0, 8, rows)
    ends = np.concatenate([[0], lengths.cumsum()])
    many = pa.array(rng.random(int(ends[-1])))
    columns: dict[str, Any] = {"id": np.arange(rows)}
    columns |= {f"x{i}": rng.random(rows) for i in range(16)}
    columns |= {f"s{i}": [f"word {word:x}" for word in words[i]] for i in range(2)}
    columns["many"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), many)
    columns["point"] = pa.StructArray.from_arrays(
        [pa.array(rng.random(rows)), pa.array(rng.integers(0, 1 << 60, rows))], ["x", "n"]
    )
    return pa.table(columns)


def parquet(table: pa.Table, group_rows: int = 10_000, **how: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=group_rows, **how)
    return target.getvalue()


def orc_file(table: pa.Table, group_rows: int = 10_000, **how: Any) -> bytes:
    """Stripes of about so many rows; ORC itself counts bytes."""
    target = io.BytesIO()
    row_bytes = max(table.nbytes // max(table.num_rows, 1), 1)
    orc.write_table(table, target, stripe_size=group_rows * row_bytes, batch_size=1024, **how)
    return target.getvalue()


def arrow(table: pa.Table, group_rows: int = 10_000, **how: Any) -> bytes:
    target = io.BytesIO()
    with ipc.new_file(target, table.schema, options=ipc.IpcWriteOptions(**how)) as file:
        file.write_table(table, max_chunksize=group_rows)
    return target.getvalue()


WRITERS: dict[str, Callable[..., bytes]] = {"parquet": parquet, "orc": orc_file, "arrow": arrow}


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
