"""Rows of the table about random access."""

from __future__ import annotations

from comparison import Comparison

__all__ = ["ACCESS", "ACCESS_MODULES", "ACCESS_STOPS_EARLY"]

ACCESS_MODULES = ("take", "records", "map_style", "windows")
"""modules of arms that read the data of ``access_data.py``"""
ACCESS_STOPS_EARLY = ("take.table", "map_style.single-workers-0", "map_style.single-workers-2")

_ARROW = "Arrow IPC, 256 rows at random of 200,000 in 200 record batches, to tensors"
_GATHER = "a numpy gather over one batch in memory"
_SOURCE = "array_record's `ArrayRecordDataSource"
_INDICES_PER_S = 20e6


def _of_source(kind: str) -> tuple[str, ...]:
    return f"records.source-{kind}", f"records.source-{kind}-unthreaded"


def _map_style(workers: int) -> Comparison:
    return Comparison(
        f"access-batches-workers-{workers}",
        f"batches of 256 rows at random in a torch `DataLoader`, {workers} workers",
        f"map_style.batched-workers-{workers}",
        (f"map_style.single-workers-{workers}",),
        "the same rows by `[i]` and default collate",
        5,
    )


def _windows(order: str, title: str, *, by_pillow: bool = False) -> Comparison:
    work = f"windows of 16 video frames of 128 × 128, hop 4, 8 in a batch, {title}"
    return Comparison(
        f"access-video-{order}{'-pillow' if by_pillow else ''}",
        f"{work}, without simplejpeg" if by_pillow else work,
        f"windows.{'pillow' if by_pillow else 'ours'}-{order}",
        (f"windows.bare-{order}",),
        "one Lance take a window, frames decoded one after the other",
        None if by_pillow else 1.5,
    )


ACCESS = (
    Comparison("access-arrow-gather", _ARROW, "take.arrow", ("take.gather",), _GATHER, 0.7),
    Comparison(
        "access-arrow-table",
        _ARROW,
        "take.arrow",
        ("take.table",),
        "`pa.Table.take` over the same batches",
        50,
    ),
    Comparison(
        "access-lance",
        "Lance, 256 rows at random, to Arrow",
        "take.lance",
        ("take.lance-bare",),
        "bare `lance.dataset(...).take`",
        0.95,
    ),
    Comparison(
        "access-records",
        "ArrayRecord, batches of 64 records of 20 KB at random, to `bytes`",
        "records.batches",
        _of_source("batches"),
        f"{_SOURCE}.__getitems__`, its best setting",
        2,
    ),
    Comparison(
        "access-record",
        "ArrayRecord, one record of 20 KB at random",
        "records.singles",
        _of_source("singles"),
        f"{_SOURCE}[i]`, its best setting",
        3,
    ),
    Comparison(
        "access-records-order",
        "ArrayRecord in order, one file of groups of 500, 2 workers",
        "records.order",
        ("records.order-by-files", "records.order-by-files-unthreaded"),
        "a dataset that gives each of 2 workers whole files, record by record, its best setting",
        2,
    ),
    _map_style(0),
    _map_style(2),
    _windows("random", "windows at random"),
    _windows("order", "windows in order"),
    Comparison(
        "access-sampler",
        "`GlobalShuffleSampler.indices`, 20,000,000 in slices of a million",
        "sampling.global",
        _INDICES_PER_S,
        "20,000,000 a second",
        1,
    ),
    Comparison(
        "access-arrow-first-epoch",
        f"{_ARROW}: the first epoch alone",
        "take.arrow",
        ("take.gather",),
        _GATHER,
        None,
        "first_epoch_rate",
    ),
    Comparison(
        "access-arrow-cut",
        _ARROW,
        "take.arrow",
        ("take.gather-cut",),
        f"{_GATHER}, with blobs cut by their offsets",
    ),
    _windows("random", "windows at random", by_pillow=True),
    _windows("order", "windows in order", by_pillow=True),
    Comparison(
        "access-arrow-taken",
        f"{_ARROW}, by `ArrowBackend.take` and from its table",
        "take.arrow-taken",
        ("take.gather",),
        _GATHER,
    ),
    Comparison(
        "access-arrow-rows",
        f"{_ARROW}, by `RowDataset.__getitems__`",
        "take.arrow-rows",
        ("take.gather",),
        _GATHER,
    ),
    Comparison(
        "access-records-taken",
        "ArrayRecord, batches of 64 records of 20 KB at random, to `bytes`, by "
        "`ArrayRecordBackend.take` and from its table",
        "records.batches-taken",
        _of_source("batches"),
        f"{_SOURCE}.__getitems__`, its best setting",
    ),
    Comparison(
        "access-records-packed",
        "ArrayRecord, batches of 64 records of 20 KB at random, left in one Arrow buffer",
        "records.batches-packed",
        _of_source("batches"),
        f"{_SOURCE}.__getitems__`, its best setting",
    ),
    Comparison(
        "access-parquet",
        "Parquet, 256 rows at random of 200,000 in row groups of 10,000, to Arrow",
        "take.parquet",
        ("take.parquet-groups",),
        "`read_row_group` of each that holds one of them, and `take`",
    ),
    Comparison(
        "access-parquet-paged",
        "the same in files with page indices",
        "take.paged",
        ("take.parquet-groups",),
        "`read_row_group` of each that holds one of them, and `take`",
    ),
    Comparison(
        "access-sampler-permutation",
        "`GlobalShuffleSampler.indices`, 20,000,000 in slices of a million",
        "sampling.global",
        ("sampling.permutation",),
        "one `numpy` permutation in memory, and copies of its slices",
    ),
)
