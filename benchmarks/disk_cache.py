"""Measure how much of an epoch comes from the disk cache, and write the table of docs/storage.md.

    python benchmarks/disk_cache.py [--dry]

The data are 64 MB of Parquet on a loopback S3 server behind a proxy that takes 20 ms to begin each
answer. It takes about 20 seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from engines import PAGE
from remote_store import BUCKET, BucketBehindProxy, Network, serving, storage_options, traffic

from headrace import StructuredDataset

BEGIN, END = "<!-- written by benchmarks/disk_cache.py -->", "<!-- end -->"
NETWORK = Network("20 ms", 0.02)
_FILES, _GROUPS, _GROUP_ROWS, _COLUMNS = 32, 2, 5000, 25
_SHARES = (0.25, 0.5, 0.8, 1.1)
_EPOCHS = 3
_MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dry", action="store_true", help="print the table, write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        _write(data)
        with serving(data) as bucket:
            table = _table(bucket, Path(folder), sum(one.stat().st_size for one in data.iterdir()))
    print(table)
    if not options.dry:
        before, begin, rest = PAGE.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{PAGE} has no place for the table, between {BEGIN} and {END}")
        PAGE.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}")


def _write(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(_FILES):
        rows = rng.random((_COLUMNS, _GROUPS * _GROUP_ROWS))
        table = pa.table({f"f{index}": column for index, column in enumerate(rows)})
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=_GROUP_ROWS, use_dictionary=False
        )


def _table(bucket: BucketBehindProxy, folder: Path, size: int) -> str:
    lines = [
        "| cache, of the data | order | bytes from the cache | MB saved | requests saved |",
        "|---|---|---|---|---|",
    ]
    for order, how in (("in order", {}), ("shuffled", {"shuffle": True, "split_rows": 5000})):
        plain = _epoch(bucket, how)
        for share in _SHARES:
            place = folder / f"{order}-{share}"
            cached = _epoch(bucket, {**how, "cache_dir": place, "cache_bytes": int(share * size)})
            saved = plain["bytes"] - cached["bytes"]
            lines.append(
                f"| {share:.0%} | {order} | {saved / plain['bytes']:.0%} | {saved / _MB:.1f} |"
                f" {1 - cached['requests'] / plain['requests']:.0%} |"
            )
    return "\n".join(lines)


def _epoch(bucket: BucketBehindProxy, how: dict[str, Any]) -> dict[str, float]:
    """Return requests and bytes of an epoch: the mean of all but the first."""
    os.environ.update(bucket.prepare(NETWORK))
    loader, _ = StructuredDataset.create_dataloader(
        f"s3://{BUCKET}/", "parquet", num_workers=0, storage_options=storage_options(), **how
    )
    _read(loader)
    requests, body_bytes = traffic()
    for _ in range(_EPOCHS - 1):
        _read(loader)
    later_requests, later_bytes = traffic()
    found = {
        "requests": later_requests - requests,
        "bytes": later_bytes - body_bytes,
    }
    return {name: value / (_EPOCHS - 1) for name, value in found.items()}


def _read(loader: Any) -> None:
    rows = sum(len(batch["f0"]) for batch in loader)
    if rows != _FILES * _GROUPS * _GROUP_ROWS:
        raise SystemExit(f"{rows} rows were read")


if __name__ == "__main__":
    sys.exit(main())
