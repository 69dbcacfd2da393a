"""Rows of the table about object stores."""

from __future__ import annotations

from comparison import Comparison
from remote_store import CAP_BYTES_PER_S

__all__ = ["REMOTE"]

_TDU = "torch-dataloader-utils with s3fs, its best setting"
_ARROW = "`pyarrow.dataset` on its own `S3FileSystem`, record batches"
_WORKS = (
    ("all", "Parquet from S3, all columns, 20 ms a request"),
    ("two", "Parquet from S3, 2 of 21 columns, 20 ms a request"),
)
_TDU_SETTINGS = (
    "workers-0",
    "workers-2",
    "round-robin-workers-0",
    "round-robin-workers-2",
    "round-robin-uncached-workers-0",
)
_ARROW_SETTINGS = ("default", "ahead")


def _against(work: str, title: str) -> tuple[Comparison, ...]:
    arm = f"remote.{work}-20ms"
    tdu = tuple(f"tdu_s3.{work}-{setting}-20ms" for setting in _TDU_SETTINGS)
    arrow = tuple(f"arrow_s3.{work}-{setting}-20ms" for setting in _ARROW_SETTINGS)
    return (
        Comparison(f"remote-{work}-peer", title, arm, tdu, _TDU, 5),
        Comparison(f"remote-{work}-floor", title, arm, arrow, _ARROW, 1),
        Comparison(
            f"remote-{work}-bytes",
            f"{title}: bytes fetched in the epoch",
            arm,
            1.0,
            "bytes of these columns, by the footers",
            1.1,
            "fetched_per_needed",
        ),
    )


REMOTE = (
    *(row for work, title in _WORKS for row in _against(work, title)),
    Comparison(
        "remote-all-download",
        "the bytes of these files by obstore, 20 ms a request, nothing decoded",
        "download_s3.bytes-20ms",
        tuple(f"tdu_s3.all-{setting}-20ms" for setting in _TDU_SETTINGS),
        _TDU,
    ),
    Comparison(
        "remote-latency",
        "Parquet from S3, all columns, 100 ms a request",
        "remote.all-100ms",
        ("remote.all-20ms",),
        "20 ms a request",
        0.8,
    ),
    Comparison(
        "remote-cap",
        "Parquet from S3, all columns, 20 ms a request, at most 100 MB/s",
        "remote.all-capped",
        CAP_BYTES_PER_S,
        "100 MB/s",
        0.9,
        "fetched_rate",
    ),
    Comparison(
        "remote-startup",
        "listing 5,000 Parquet files in S3, their footers and a plan, 20 ms a request",
        "remote.startup-20ms",
        ("tdu_s3.startup-20ms",),
        "torch-dataloader-utils with s3fs, its default strategy",
        10,
    ),
)
