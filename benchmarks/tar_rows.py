"""Rows of the table about indexed tars."""

from __future__ import annotations

from comparison import Comparison

__all__ = ["TAR", "TAR_MODULES", "TAR_STOPS_EARLY"]

TAR_MODULES = ("tars",)
"""modules of arms that read the data of ``tar_data.py``"""
TAR_STOPS_EARLY = ("tars.http-20ms", "tars.obstore-20ms")

_DATA = "4 tars of 2,500 JPEG of 65 KB, each with a JSON file"
_EXTRACT = "`webshart extract-metadata`, its best setting"


def _webshart_index(geometry: bool) -> tuple[str, ...]:
    kind = "index-geometry" if geometry else "index"
    return tuple(f"webshart_tar.{kind}-{workers}" for workers in (1, 2, 4))


TAR = (
    Comparison(
        "tar-index-headers",
        f"index of {_DATA}: headers only",
        "tars.index-headers",
        _webshart_index(False),
        f"{_EXTRACT}, which embeds sidecars",
        5,
    ),
    Comparison(
        "tar-index-sidecars",
        "the same with sidecars embedded",
        "tars.index-sidecars",
        _webshart_index(False),
        _EXTRACT,
        1.3,
    ),
    Comparison(
        "tar-index-geometry",
        "the same with sidecars and the sizes of images",
        "tars.index-geometry",
        _webshart_index(True),
        f"{_EXTRACT}, with geometry",
        1.2,
    ),
    Comparison(
        "tar-random",
        "samples of tars at random, image and JSON",
        "tars.random",
        ("webshart_tar.random",),
        "webshart's `TarDataLoader.load_sample`",
        1.5,
    ),
    Comparison(
        "tar-payloads",
        "images of tars at random, 64 by a call",
        "tars.payloads",
        ("tars.pread-batches",),
        "bare `os.pread` of the same bytes, in lists of 64",
        0.7,
    ),
    Comparison(
        "tar-payload",
        "images of tars at random, one by a call",
        "tars.payload",
        ("tars.pread",),
        "bare `os.pread` of the same bytes",
        0.7,
    ),
    Comparison(
        "tar-order-webshart",
        "samples of tars in order",
        "tars.sequential",
        ("webshart_tar.sequential",),
        "webshart's `TarDataLoader`",
        1.5,
    ),
    Comparison(
        "tar-order-webdataset",
        "samples of tars in order",
        "tars.sequential",
        ("webdataset_tar.sequential",),
        "webdataset",
        5,
    ),
    Comparison(
        "tar-loader",
        "samples of tars in batches of 64, 2 workers, bytes",
        "tars.loader",
        ("webdataset_tar.loader", "webdataset_tar.loader-batched"),
        "webdataset in a `DataLoader` with 2 workers, its best setting",
        2,
    ),
    Comparison(
        "tar-buckets",
        "10,000 samples into buckets by shape, as lists whose dicts are made when looked at",
        "tars.buckets",
        ("webshart_tar.buckets",),
        "webshart's `list_shard_sample_aspect_buckets`",
        10,
    ),
    Comparison(
        "tar-buckets-looked-at",
        "the same, and all dicts looked at",
        "tars.buckets-looked-at",
        ("webshart_tar.buckets",),
        "webshart's `list_shard_sample_aspect_buckets`",
    ),
    Comparison(
        "tar-buckets-arrays",
        "the same as arrays, of the whole data set",
        "tars.buckets-arrays",
        ("webshart_tar.buckets",),
        "webshart's `list_shard_sample_aspect_buckets`",
        10,
    ),
    Comparison(
        "tar-load-columnar",
        "an index of 400,000 entries is loaded, columnar",
        "tars.load-columnar",
        ("webshart_tar.load",),
        "webshart, from JSON",
        20,
    ),
    Comparison(
        "tar-load-json",
        "an index of 400,000 entries is loaded, JSON",
        "tars.load-json",
        ("webshart_tar.load",),
        "webshart, from JSON",
        1,
    ),
    Comparison(
        "tar-http",
        "batches of 64 samples of tars at random over HTTP, 20 ms a request",
        "tars.http-20ms",
        ("tars.obstore-20ms",),
        "the same images by obstore, one request after the other",
        20,
    ),
)
