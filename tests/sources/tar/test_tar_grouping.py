"""Members of a tar become samples by their names."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.tar.grouping import WHOLE, grouped, sample_keys
from headrace.sources.tar.index import TarIndex

NAMES = st.lists(st.text("ab./é", min_size=1, max_size=6), max_size=12)


def index_of(names: list[str], **columns: object) -> TarIndex:
    places = np.arange(len(names), dtype=np.int64)
    return TarIndex(pa.array(names, pa.string()), places * 1024 + 512, places * 0 + 7, **columns)  # type: ignore[arg-type]


def by_hand(names: list[str]) -> list[tuple[str, dict[str, int]]]:
    """The same, one name after the other."""
    found: list[tuple[str, dict[str, int]]] = []
    for member, name in enumerate(names):
        folder, slash, base = name.rpartition("/")
        stem, dot, field = base.partition(".")
        if not stem:
            continue
        key, field = folder + slash + stem, field.lower() if dot else WHOLE
        open_ones = (fields for at, fields in found if at == key and field not in fields)
        fields = next(open_ones, None)
        if fields is None:
            found.append((key, fields := {}))
        fields[field] = member
    return found


def samples_of(index: TarIndex) -> list[tuple[str, dict[str, int]]]:
    keys = sample_keys(index.names).to_pylist()
    starts, members = index.sample_members
    found = []
    for sample in range(index.num_samples):
        held = members[starts[sample] : starts[sample + 1]].tolist()
        fields = {index.grouping.field_names[index.grouping.fields[m]]: m for m in held}
        assert len({keys[member] for member in held}) == 1
        found.append((keys[held[0]], fields))
    return found


def test_a_sample_is_what_shares_the_path_up_to_the_first_dot() -> None:
    names = ["x.jpg", "x.cls", "x.json", "x.seg.png", "d.0/x.jpg", "y.JPG"]
    assert samples_of(index_of(names)) == [
        ("x", {"jpg": 0, "cls": 1, "json": 2, "seg.png": 3}),
        ("d.0/x", {"jpg": 4}),
        ("y", {"jpg": 5}),
    ]


def test_members_of_a_sample_need_not_lie_together() -> None:
    assert samples_of(index_of(["x.jpg", "y.jpg", "x.txt"])) == [
        ("x", {"jpg": 0, "txt": 2}),
        ("y", {"jpg": 1}),
    ]


def test_a_name_that_comes_again_is_a_sample_of_its_own() -> None:
    assert samples_of(index_of(["x.jpg", "y.jpg", "x.jpg", "x.txt", "x.txt"])) == [
        ("x", {"jpg": 0, "txt": 3}),
        ("y", {"jpg": 1}),
        ("x", {"jpg": 2, "txt": 4}),
    ]


def test_hidden_files_are_no_samples_and_files_without_extension_are() -> None:
    index = index_of([".DS_Store", "d/._x.jpg", "plain", "x.jpg"])
    assert samples_of(index) == [("plain", {WHOLE: 2}), ("x", {"jpg": 3})]
    assert index.grouping.samples.tolist() == [-1, -1, 0, 1]


@given(NAMES)
def test_all_names_at_once_as_one_by_one(names: list[str]) -> None:
    assert samples_of(index_of(names)) == by_hand(names)


@given(NAMES)
def test_names_in_order_as_one_by_one(names: list[str]) -> None:
    in_order = sorted(names, key=lambda name: name.encode())
    assert samples_of(index_of(in_order)) == by_hand(in_order)


@given(NAMES, st.integers(0, 5))
def test_a_slice_of_names_is_grouped_by_itself(names: list[str], start: int) -> None:
    array = pa.array(names, pa.string()).slice(start)
    assert (
        grouped(array).samples.tolist()
        == grouped(pa.array(names[start:], pa.string())).samples.tolist()
    )


def test_what_a_sample_is_about_is_no_sidecar() -> None:
    index = index_of(["x.json", "x.jpg", "x.txt", "y.txt", "y.json", "z.mask.json", "z.seg.png"])
    assert [index.name(member) for member in index.primary_members] == [
        "x.jpg",
        "y.txt",
        "z.seg.png",
    ]
    assert index.members_as("json").tolist() == [0, 4, -1]
    assert index.members_as("mp4").tolist() == [-1, -1, -1]


def test_a_sample_is_about_its_image_wherever_that_lies() -> None:
    names = ["a.clip.npy", "a.depth.png", "a.jpg", "a.txt", "b.json", "b.seg.png", "b.pt"]
    index = index_of([*names, "c.JPG", "c.png", "d.txt", "d.mp4"])
    about = [index.name(member) for member in index.primary_members]
    assert about == ["a.jpg", "b.seg.png", "c.JPG", "d.mp4"]


def test_the_shape_of_a_sample_is_that_of_another_member_if_need_be() -> None:
    names = ["a.npy", "a.depth.png", "a.seg.png", "b.depth.png", "b.jpg", "c.npy", "d.mp4"]
    widths = np.array([0, 20, 9, 16, 64, 0, 0], np.int32)
    heights = np.array([0, 10, 9, 16, 48, 0, 0], np.int32)
    index = index_of(names, widths=widths, heights=heights)
    assert index.shape_order.tolist() == [1, 0]
    assert [index.name(member) for member in index.shape_members] == [
        "a.depth.png",
        "b.jpg",
        "c.npy",
        "d.mp4",
    ]


def test_shapes_stand_by_aspect_width_and_height() -> None:
    names = ["a.jpg", "a.json", "b.jpg", "c.jpg", "d.jpg", "e.jpg"]
    widths = np.array([20, 0, 10, 40, 0, 10], np.int32)
    heights = np.array([10, 0, 10, 20, 7, 20], np.int32)
    index = index_of(names, widths=widths, heights=heights)
    assert index.shape_order.tolist() == [4, 1, 0, 2]  # d has no width
    assert index_of(names).shape_order.tolist() == []


def test_no_members_no_samples() -> None:
    index = index_of([])
    assert index.num_samples == 0
    assert samples_of(index) == []
    assert index.primary_members.tolist() == []


def test_an_index_does_not_travel() -> None:
    with pytest.raises(TypeError, match="does not travel"):
        pickle.dumps(index_of(["x.jpg"]))
