"""The floor for object stores: pyarrow.dataset on its own S3FileSystem, to record batches.

No tensors are made and no batches of 1,024 rows are cut. The dataset exists and has read all
footers before the clock starts, as in the library.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from data import FILES, Data
from pyarrow.fs import S3FileSystem
from remote_store import TWO_COLUMNS, location, storage_options

from arms.registry import Mark, Pieces, arm

_IO_THREADS = 48
_AHEAD = {"fragment_readahead": FILES, "batch_readahead": 64}


def _dataset(data: Data) -> ds.Dataset:
    options = storage_options()
    filesystem = S3FileSystem(
        access_key=options["key"],
        secret_key=options["secret"],
        endpoint_override=options["endpoint_url"],
        region=options["client_kwargs"]["region_name"],
    )
    place = location(data, "parquet").removeprefix("s3://")
    dataset = ds.dataset(place, format="parquet", filesystem=filesystem)
    for fragment in dataset.get_fragments():
        fragment.ensure_complete_metadata()
    return dataset


def _scan(data: Data, *, columns: list[str] | None, **settings: Any) -> Pieces:
    dataset = _dataset(data)
    yield Mark.CLOCK_STARTS
    for batch in dataset.scanner(columns=columns, **settings).to_batches():
        yield batch.num_rows


for _work, _columns in (("all", None), ("two", TWO_COLUMNS)):
    arm(f"arrow_s3.{_work}-default-20ms", reads="parquet")(partial(_scan, columns=_columns))
    arm(
        f"arrow_s3.{_work}-ahead-20ms",
        reads="parquet",
        prepare=partial(pa.set_io_thread_count, _IO_THREADS),
    )(partial(_scan, columns=_columns, **_AHEAD))
