"""Small Parquet objects whose rows count up, and loaders over them."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from servers.proxy import FaultProxy

from headrace import StatefulLoader, StructuredDataset

FILES, ROWS, GROUP_ROWS = 4, 600, 150
ALL_IDS = list(range(FILES * ROWS))
NAMES = [f"part-{number}.parquet" for number in range(FILES)]


def parquet_bytes(start: int, rows: int = ROWS, *, seed: int = 0, sign: int = 1) -> bytes:
    """A file of about 80 kB that does not compress: of the same size for any seed and sign."""
    noise = np.random.default_rng([seed, start]).bytes(128 * rows)
    table = pa.table(
        {
            "id": pa.array(sign * np.arange(start, start + rows, dtype=np.int64)),
            "noise": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(128), rows, [None, pa.py_buffer(noise)]
            ),
        }
    )
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        row_group_size=GROUP_ROWS,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue()


BODIES = [parquet_bytes(number * ROWS) for number in range(FILES)]


def put_all(put: Callable[[str, bytes], object]) -> None:
    """Write the files of the data set by their names."""
    for name, body in zip(NAMES, BODIES, strict=True):
        put(name, body)


def make_loader(paths: str | Sequence[str], **options: Any) -> StatefulLoader:
    """A loader that tries a failed request again soon, and has patience with a slow machine."""
    settings: dict[str, Any] = {
        "batch_size": 50,
        "split_rows": GROUP_ROWS,
        "num_workers": 0,
        "output_format": "numpy",
        "retries": 5,
        "timeout_s": 60.0,
        "max_elapsed_s": 300.0,
        **options,
    }
    return StructuredDataset.create_dataloader(paths, **settings)[0]


def wait_until(condition: Callable[[], Any], patience_s: float = 100.0) -> None:
    """Wait for something that happens in another thread or process."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def ids_of(batches: Any) -> list[int]:
    """The ids of some batches, in their order."""
    return [int(number) for batch in batches for number in batch["id"]]


class Source:
    """The data set behind a proxy, on S3 or on a web server."""

    def __init__(self, kind: str, proxy: FaultProxy, folder: str) -> None:
        self.proxy = proxy
        self.folder = f"s3://{folder}" if kind == "s3" else f"{proxy.url}/{folder}"
        self.options: dict[str, Any] = {}
        if kind == "s3":
            self.options = {"key": "AKIAFIRST", "secret": "hidden", "endpoint_url": proxy.url}

    def loader(self, **options: Any) -> StatefulLoader:
        return make_loader(self.folder, **{"storage_options": self.options, **options})


def with_parent(batch: Any) -> tuple[int, Any]:
    """A batch with the process that started the one which made it."""
    return os.getppid(), batch
