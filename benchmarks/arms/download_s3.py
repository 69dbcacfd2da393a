"""The lowest floor for object stores: only the bytes of the files, without decoding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import obstore
from data import Data
from obstore.store import S3Store
from remote_store import BUCKET, location, storage_options

from arms.registry import Mark, Pieces, arm

_AT_ONCE = 16
_PART_BYTES = 6 << 20


@arm("download_s3.bytes-20ms", reads="parquet")
def download(data: Data) -> Pieces:
    """Fetch parts of all files with obstore, in the size and number that were fastest."""
    options = storage_options()
    store = S3Store(
        BUCKET,
        endpoint=options["endpoint_url"],
        access_key_id=options["key"],
        secret_access_key=options["secret"],
        region=options["client_kwargs"]["region_name"],
        client_options={"allow_http": True},
    )
    folder = location(data, "parquet").removeprefix(f"s3://{BUCKET}/")
    parts = [
        (file["path"], start, min(start + _PART_BYTES, file["size"]))
        for page in obstore.list(store, folder)
        for file in page
        for start in range(0, file["size"], _PART_BYTES)
    ]
    yield Mark.CLOCK_STARTS
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(
            lambda part: obstore.get_range(store, part[0], start=part[1], end=part[2]), parts
        ):
            pass
    yield data.rows("parquet")
