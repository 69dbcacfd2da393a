"""Aspect buckets: the keys that users of the format know, and no sample lost or twice."""

from __future__ import annotations

import json
import pickle
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.sources.tar.buckets import (
    AspectBuckets,
    BucketRule,
    aspect_buckets,
    list_buckets,
)
from headrace.sources.tar.index import TarIndex

Member = tuple[str, int, int]


def index_of(members: list[Member]) -> TarIndex:
    """Members of 100 bytes each, with width and height; 0 where it is not known."""
    return TarIndex(
        names=pa.array([name for name, *_ in members], pa.string()),
        offsets=np.arange(len(members), dtype=np.int64) * 1024 + 512,
        sizes=np.full(len(members), 100, np.int64),
        widths=np.array([width for _, width, _ in members], np.int32),
        heights=np.array([height for *_, height in members], np.int32),
    )


def shard(shapes: list[tuple[int, int]], prefix: str = "im") -> TarIndex:
    """A sample of an image and its JSON for each shape."""
    return index_of(
        [
            member
            for number, (width, height) in enumerate(shapes)
            for member in (
                (f"{prefix}{number}.jpg", width, height),
                (f"{prefix}{number}.json", 0, 0),
            )
        ]
    )


def keys_of(shapes: list[tuple[int, int]], **options: Any) -> dict[str, list[tuple[int, int]]]:
    indexes = [shard(shapes)]
    (listed,) = list_buckets(
        [0], indexes.__getitem__, ["a.tar"], BucketRule(**options), by_sample=True
    )
    return {
        key: sorted((entry["width"], entry["height"]) for entry in entries)
        for key, entries in listed["buckets"].items()
    }


# --- keys, each seen to be so in webshart 0.4.6


def test_keys_by_aspect() -> None:
    shapes = [(333, 777), (48, 64), (13, 17), (50, 50), (64, 48), (640, 480), (101, 75), (1000, 10)]
    assert keys_of(shapes) == {
        "0.43": [(333, 777)],
        "0.75": [(48, 64)],
        "0.76": [(13, 17)],
        "1.00": [(50, 50)],
        "1.33": [(64, 48), (640, 480)],
        "1.35": [(101, 75)],
        "100.00": [(1000, 10)],
    }
    assert list(keys_of(shapes, round_to=None)) == [
        "0.42857143",
        "0.75",
        "0.7647059",
        "1",
        "1.3333334",
        "1.3466667",
        "100",
    ]
    assert list(keys_of(shapes, round_to=0)) == ["0", "1", "100"]


def test_ties_are_rounded_in_single_precision() -> None:
    shapes = [(1, 8), (3, 8), (5, 8), (7, 8), (9, 8), (57, 200), (67, 200), (1, 200), (3, 200)]
    two = ["0.00", "0.01", "0.12", "0.28", "0.34", "0.38", "0.62", "0.88", "1.12"]
    assert list(keys_of(shapes)) == two
    assert list(keys_of(shapes, round_to=1)) == ["0.0", "0.1", "0.3", "0.4", "0.6", "0.9", "1.1"]


def test_keys_by_shape_scaled_to_an_area() -> None:
    shapes = [(48, 64), (333, 777), (50, 50), (30, 31), (13, 17), (1000, 10), (64, 48), (640, 480)]
    options = {"target_pixel_area": 64 * 64, "target_resolution_multiple": 16}
    assert keys_of(shapes, key="geometry-list", **options) == {
        "[48, 80]": [(48, 64)],
        "[48, 96]": [(333, 777)],
        "[64, 64]": [(30, 31), (50, 50)],
        "[64, 80]": [(13, 17)],
        "[640, 16]": [(1000, 10)],
        "[80, 48]": [(64, 48), (640, 480)],
    }
    of_area = keys_of([(201, 200), (9, 8), (3, 8), (1, 200)], key="geometry-tuple",
                      target_pixel_area=96 * 96)  # fmt: skip
    assert set(of_area) == {"(128, 128)", "(128, 64)", "(64, 128)", "(64, 1344)"}
    scaled = keys_of(shapes, target_pixel_area=1024**2)
    assert set(scaled) == {"0.42", "0.78", "1.00", "1.29", "80.00"}


@given(width=st.integers(1, 20_000), height=st.integers(1, 20_000), area=st.integers(1, 4096**2))
def test_shapes_scaled_one_by_one(width: int, height: int, area: int) -> None:
    rule = BucketRule(target_pixel_area=area)
    (wide,), (high,) = rule.shapes(np.array([width]), np.array([height]))
    scale = (area / (width * height)) ** 0.5
    for side, found in ((width, wide), (height, high)):
        assert found % 64 == 0
        assert found >= 64
        assert found == 64 or abs(found - side * scale) <= 32.5


# --- lists of shards


def test_lists_by_sample_and_by_file() -> None:
    index = index_of(
        [
            ("d/a.jpg", 30, 40),
            ("d/a.seg.png", 40, 30),
            ("d/a.json", 0, 0),
            ("b.jpg", 80, 60),
            ("b.txt", 0, 0),
            ("c.jpg", 0, 0),
            ("c.json", 0, 0),
            (".hidden", 8, 6),
        ]
    )
    names = ["x/s0.tar", "x/s1.tar"]
    rule = BucketRule(key="geometry-tuple", target_pixel_area=48 * 64, target_resolution_multiple=8)
    (listed,) = list_buckets([1], {1: index}.__getitem__, names, rule, by_sample=True)
    assert (listed["shard_idx"], listed["shard_name"]) == (1, "x/s1.tar")
    assert listed["unknown"] == ["c.jpg"]
    assert dict(listed["buckets"]) == {
        "(48, 64)": [
            {
                "filename": "d/a.jpg",
                "offset": 512,
                "size": 100,
                "sample_idx": 0,
                "width": 30,
                "height": 40,
                "aspect": 0.75,
                "original_size": [30, 40],
            }
        ],
        "(64, 48)": [
            {
                "filename": "b.jpg",
                "offset": 3 * 1024 + 512,
                "size": 100,
                "sample_idx": 1,
                "width": 80,
                "height": 60,
                "aspect": 80 / 60,
                "original_size": [80, 60],
            }
        ],
    }
    (by_file,) = list_buckets([1], {1: index}.__getitem__, names, rule, by_sample=False)
    assert {
        key: [(entry["filename"], entry["sample_idx"]) for entry in entries]
        for key, entries in by_file["buckets"].items()
    } == {
        "(48, 64)": [("d/a.jpg", 0)],
        "(64, 48)": [("d/a.seg.png", 0), ("b.jpg", 1), (".hidden", -1)],
    }
    (unscaled,) = list_buckets([1], {1: index}.__getitem__, names, BucketRule(), by_sample=True)
    entries = list(chain(*unscaled["buckets"].values()))
    assert [entry["original_size"] for entry in entries] == [None, None]


def test_buckets_of_a_shard_are_a_mapping_of_plain_lists() -> None:
    indexes = [shard([(4, 3), (3, 4), (8, 6)])]
    (listed,) = list_buckets([0], indexes.__getitem__, ["a"], BucketRule(), by_sample=True)
    buckets = listed["buckets"]
    assert list(buckets) == ["0.75", "1.33"]
    assert (len(buckets), "1.33" in buckets, "1.34" in buckets) == (2, True, False)
    assert type(buckets["1.33"]) is list
    assert type(buckets["1.33"][0]) is dict
    assert buckets["1.33"] is buckets["1.33"]
    plain = pickle.loads(pickle.dumps(buckets))
    assert type(plain) is dict
    assert plain == buckets == json.loads(json.dumps(dict(buckets)))
    assert repr(buckets) == repr(plain)
    with pytest.raises(KeyError):
        buckets["1.34"]


def test_shards_without_geometry_or_samples() -> None:
    bare = TarIndex(pa.array(["a.jpg", "a.json"]), np.array([512, 2048]), np.array([9, 9]))
    empty = TarIndex(pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0, np.int64))
    indexes = [bare, empty]
    listed = list_buckets([0, 1], indexes.__getitem__, ["a", "b"], BucketRule(), by_sample=True)
    assert [dict(one["buckets"]) for one in listed] == [{}, {}]
    assert [one["unknown"] for one in listed] == [["a.jpg"], []]
    files = list_buckets([0, 1], indexes.__getitem__, ["a", "b"], BucketRule(), by_sample=False)
    assert [dict(one["buckets"]) for one in files] == [{}, {}]
    arrays = aspect_buckets(indexes.__getitem__, [1, 0])
    assert (len(arrays), arrays.unknown.tolist(), arrays.starts.tolist()) == (0, [0], [0])


# --- arrays of the whole data set


def whole(shards: list[list[tuple[int, int]]], **options: Any) -> AspectBuckets:
    indexes = [shard(shapes) for shapes in shards]
    return aspect_buckets(indexes.__getitem__, [len(shapes) for shapes in shards], **options)


KEYS = ["aspect", "geometry-tuple", "geometry-list"]


@given(
    shards=st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30), max_size=4
    ),
    key=st.sampled_from(KEYS),
    area=st.sampled_from([None, 64, 400]),
)
def test_every_sample_of_known_shape_is_in_one_bucket_of_one_shape(
    shards: list[list[tuple[int, int]]], key: str, area: int | None
) -> None:
    rule = BucketRule(key, area, 8)
    found = whole(shards, key=key, target_pixel_area=area, target_resolution_multiple=8)
    shapes = list(chain(*shards))
    known = [number for number, (w, h) in enumerate(shapes) if w and h]
    assert sorted(found.samples.tolist()) == known
    assert found.unknown.tolist() == sorted(set(range(len(shapes))) - set(known))
    assert len(set(found.keys)) == len(found.keys)
    for number, name in enumerate(found.keys):
        for sample in found.bucket(number).tolist():
            w, h = rule.shapes(*(np.array([side]) for side in shapes[sample]))
            assert rule.keys(w, h) == [name]
    for number, name in enumerate(found.shape_keys()):
        run = found.samples[found.shape_starts[number] : found.shape_starts[number + 1]].tolist()
        assert run == sorted(run)
        for sample in run:
            w, h = rule.shapes(*(np.array([side]) for side in shapes[sample]))
            assert (w[0], h[0]) == (found.widths[number], found.heights[number])
            assert rule.keys(w, h) == [name]


def test_arrays_and_lists_say_the_same() -> None:
    rng = np.random.default_rng(5)
    shards = [[tuple(rng.integers(1, 40, 2).tolist()) for _ in range(200)] for _ in range(3)]
    indexes = [shard(shapes) for shapes in shards]
    found = whole(shards)
    listed = list_buckets([0, 1, 2], indexes.__getitem__, list("abc"), BucketRule(), by_sample=True)
    for number, key in enumerate(found.keys):
        samples = found.bucket(number)
        by_shard = zip(found.shards(samples).tolist(), samples.tolist(), strict=True)
        entries = {
            (one["shard_idx"], 200 * one["shard_idx"] + entry["sample_idx"])
            for one in listed
            for entry in one["buckets"].get(key, [])
        }
        assert set(by_shard) == entries
    assert "600 samples" in repr(found)


def test_some_shards_only() -> None:
    shards = [[(4, 3), (0, 0)], [(4, 3), (3, 4), (0, 0)], [(3, 4)]]
    indexes = [shard(shapes) for shapes in shards]
    found = aspect_buckets(indexes.__getitem__, [2, 3, 1], shards=[2, 1])
    assert found.keys == ("0.75", "1.33")
    assert [found.bucket(0).tolist(), found.bucket(1).tolist()] == [[3, 5], [2]]
    assert found.unknown.tolist() == [4]
    assert found.shards().tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "shape"}, "key must be one of aspect, geometry-tuple, geometry-list"),
        ({"target_pixel_area": 0}, "target_pixel_area must be an int of at least 1"),
        ({"target_pixel_area": 1.5}, "target_pixel_area must be an int"),
        (
            {"target_resolution_multiple": 0},
            "target_resolution_multiple must be an int of at least 1",
        ),
        ({"round_to": -1}, "round_to must be an int of at least 0"),
        ({"round_to": True}, "round_to must be an int"),
    ],
    ids=["key", "no area", "half", "multiple", "decimals", "bool"],
)
def test_wrong_bucket_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        BucketRule(**options)
