"""Rows of the table about order and state: shuffles, resumes, adaptive balance."""

from __future__ import annotations

from comparison import Comparison

__all__ = ["ADAPTIVE", "RESUMES", "RESUME_PLACES", "SHUFFLES", "SHUFFLE_BUFFER"]

_MIXED = ("library.shuffled", "row-shuffled, `split_rows=100_000, mix=4`")
_MORE = ("library.shuffled-more", "row-shuffled, `split_rows=100_000, mix=16`")
_WHOLE = ("library.shuffled-whole", "row-shuffled, `split_rows=100_000, mix=40`")
"""each peer is compared with the first of these that mixes at least as many row groups"""

RESUME_PLACES = (1, 50, 99)
"""per cent of an epoch"""

_TDU = (
    "torch-dataloader-utils, `shuffle_buffer_size=10_000`",
    ("tdu.shuffle-workers-0", "tdu.shuffle-workers-2", "tdu.shuffle-round-robin-workers-0"),
)
_PEERS = (
    ("shuffle-tdu", _MIXED, *_TDU),
    (
        "shuffle-datasets",
        _MORE,
        "Hugging Face datasets streaming, `.shuffle(buffer_size=10_000)`",
        ("hf_datasets.shuffle-workers-0", "hf_datasets.shuffle-workers-2"),
    ),
    (
        "shuffle-litdata",
        _MIXED,
        "litdata over Parquet, `shuffle=True`",
        ("litdata.shuffle-workers-0", "litdata.shuffle-workers-2"),
    ),
    (
        "shuffle-lance",
        _MIXED,
        "lance.torch, batches in random order",
        ("lance.shuffle-blocks-workers-0",),
    ),
    (
        "shuffle-lance-rows",
        _WHOLE,
        "lance.torch, rows in random order",
        ("lance.shuffle-rows-workers-2",),
    ),
    (
        "shuffle-mosaic",
        _WHOLE,
        "Mosaic streaming over MDS, `shuffle=True`",
        ("mosaic.shuffle-workers-0", "mosaic.shuffle-workers-2"),
    ),
    (
        "shuffle-ray",
        _MORE,
        "Ray Data, `local_shuffle_buffer_size=10_000`",
        ("ray_data.shuffle-buffer",),
    ),
)

SHUFFLES = tuple(
    Comparison(key, work, arm, against, title, 2) for key, (arm, work), title, against in _PEERS
)

SHUFFLE_BUFFER = Comparison(
    "shuffle-buffer",
    "row-shuffled, `shuffle_buffer_rows=10_000`",
    "library.shuffled-buffer",
    _TDU[1],
    _TDU[0],
)

ADAPTIVE = Comparison(
    "adaptive",
    'one of 2 workers slowed 4 times, epoch with `balance="adaptive"`',
    "library.slow-worker-adaptive",
    ("library.slow-worker-static",),
    '`balance="static"`',
    0.65,
    "seconds",
)

_RESUMES = (
    ("library.resume-in-order", "headrace, in order"),
    ("library.resume-shuffled", "headrace, `shuffle=True, split_rows=100_000, mix=4`"),
    ("hf_datasets.resume-in-order", "Hugging Face datasets streaming, in order"),
    ("hf_datasets.resume-shuffled", "Hugging Face datasets streaming, 10,000-row buffer"),
    ("litdata.resume-shuffled", "litdata, `shuffle=True`"),
    ("mosaic.resume-shuffled", "Mosaic streaming, `shuffle=True`"),
    ("tdu.resume-in-order", "torch-dataloader-utils, in order"),
)

RESUMES = tuple(
    Comparison(
        f"{arm.replace('.', '-')}-{place}",
        f"resume at {place} % of an epoch to the first batch, {title}",
        f"{arm}-{place}",
        (f"{arm}-fresh",),
        "a fresh start",
        None,
        "first_batch_seconds",
        (title, place),
    )
    for arm, title in _RESUMES
    for place in RESUME_PLACES
)
