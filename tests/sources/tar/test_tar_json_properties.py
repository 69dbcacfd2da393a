"""Any JSON index there can be comes back equal, and aspects are as exact as they are said."""

import json
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from json_entries import entry, read, said_again

from headrace.sources.tar.arrow_index import ArrowIndexes, write_arrow_indexes
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.json_index import json_index


def by_offset(document: dict) -> dict:
    """Lists are written in the order of offsets."""
    if isinstance(document["files"], list):
        return {**document, "files": sorted(document["files"], key=lambda entry: entry["offset"])}
    return document


_texts = st.text(max_size=6)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=4,
)
_pixels = st.integers(0, 2**31 - 1)
_numbers = st.integers(0, 2**62)
_optional = {
    "sha256": _texts | _values.filter(lambda v: not isinstance(v, str)),
    "width": _pixels | st.none(),
    "height": _pixels | st.none(),
    "aspect": st.floats(allow_nan=False) | st.integers(0, 3) | _texts,
    "json_path": st.sampled_from(["x.json", "y.json", "d/x.json"]) | st.none(),
    "json_offset": _numbers | st.none(),
    "json_length": _numbers | st.none(),
    "captions": _texts | st.lists(_texts, max_size=2) | _values,
    "caption": _texts | st.lists(_texts, max_size=2) | _values,
    "json_metadata": _values,
    "path": _texts,
    "fname": _texts,
    "prompt": _texts,
    "other": _values,
}
_names = st.sampled_from(["x.jpg", "x.json", "x.seg.png", "y.jpg", "d/x.jpg", ".x", "y"]) | _texts


@st.composite
def entries(draw):
    size = draw(_numbers)
    chosen = draw(st.sets(st.sampled_from(sorted(_optional)), max_size=8))
    said = {key: draw(_optional[key]) for key in sorted(chosen)}
    if {"width", "height"} <= said.keys() and draw(st.booleans()):
        width, height = said["width"], said["height"]
        if width and height:
            exact = width / height
            said["aspect"] = draw(st.sampled_from([exact, float(str(np.float32(exact)))]))
    keys = draw(st.sampled_from([["length"], ["size"], ["length", "size"]]))
    return {"offset": draw(_numbers), **dict.fromkeys(keys, size), **said}


_facts = st.fixed_dictionaries(
    {},
    optional={
        "filesize": _numbers | st.none(),
        "hash": _texts | st.none(),
        "hash_lfs": _texts | _values,
        "includes_image_geometry": st.booleans(),
        "last_good": _texts,
        "path": _values,
    },
)


@st.composite
def documents(draw):
    facts = draw(_facts)
    if draw(st.booleans()):
        return {**facts, "files": draw(st.dictionaries(_names, entries(), max_size=5))}
    files = draw(st.lists(entries(), max_size=5, unique_by=lambda said: said["offset"]))
    return {**facts, "files": [{**said, "path": draw(_names)} for said in files]}


def columns(index: TarIndex) -> dict:
    names = ("names", "sha256", "offsets", "sizes", "widths", "heights", "unlisted")
    found = {name: getattr(index, name) for name in names}
    said = {name: getattr(index, name) for name in ("captions", "json", "extras")}
    return {
        **{name: None if column is None else column.tolist() for name, column in found.items()},
        **{
            name: None
            if column is None
            else [text and json.loads(text) for text in column.tolist()]
            for name, column in said.items()
        },
    }


@settings(deadline=None, max_examples=200)
@given(documents())
def test_any_index_comes_back_equal_through_columns(tmp_path_factory, document):
    index = read(document)
    assert json.loads(json_index(index)) == by_offset(document)
    path = tmp_path_factory.getbasetemp() / "any.idx.arrow"
    write_arrow_indexes(path, [("s.tar", index)])
    columnar = ArrowIndexes.open(str(path), "any.idx.arrow").index(0)
    again = read(json.loads(json_index(columnar)))
    assert columns(index) == columns(columnar) == columns(again)
    assert index.facts == columnar.facts
    assert index.shape_order.tolist() == columnar.shape_order.tolist()


def test_aspects_are_told_apart_by_their_precision():
    single = float(str(np.float32(16) / np.float32(9)))
    assert not math.isclose(single, 16 / 9, rel_tol=1e-12)
    for aspect in (single, 16 / 9):
        document = {"files": {"x.jpg": entry(width=16, height=9, aspect=aspect)}}
        index = read(document)
        assert index.extras is None
        assert json.loads(json_index(index)) == document


def test_aspects_of_many_members_are_each_their_own():
    shapes = [(16, 9), (4, 3), (16, 9), (1, 3), (4, 3)]
    files = {
        f"{n}.jpg": {
            **entry(offset=512 + 1024 * n),
            "width": width,
            "height": height,
            "aspect": float(str(np.float32(width) / np.float32(height))),
        }
        for n, (width, height) in enumerate(shapes)
    }
    index = read({"files": files})
    assert index.extras is None
    assert json.loads(json_index(index)) == {"files": files}


def test_entries_that_all_have_other_keys_take_no_time_squared():
    files = {f"{n}.jpg": {**entry(), "offset": 512 + 1024 * n, f"k{n}": n} for n in range(20_000)}
    assert said_again({"files": files}) == {"files": files}
