"""Members of a tar become samples by their names."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.sources.tar.grouping import (
    WHOLE,
    LeftOut,
    check_sample_key,
    grouped,
    sample_keys,
)
from headrace.sources.tar.index import TarIndex

NAMES = st.lists(
    st.text("ab./é", min_size=1, max_size=6) | st.sampled_from(["__a__", "d/__a__.b"]), max_size=12
)


def index_of(names: list[str], **columns: object) -> TarIndex:
    places = np.arange(len(names), dtype=np.int64)
    return TarIndex(pa.array(names, pa.string()), places * 1024 + 512, places * 0 + 7, **columns)  # type: ignore[arg-type]


def by_hand(names: list[str], last: bool = False) -> list[tuple[str, dict[str, int]]]:
    """The same, one name after the other."""
    split = [name.rpartition("/") for name in names]
    plain = not any("." in base and not base.startswith((".", "__a__")) for _, _, base in split)
    found: list[tuple[str, dict[str, int]]] = []
    for member, (folder, slash, base) in enumerate(split):
        stem, dot, field = base.rpartition(".") if last else base.partition(".")
        if not dot:
            stem, field = base, ""
        if not base or base.startswith(".") or stem == "__a__" or not (dot or plain):
            continue
        key, field = folder + slash + stem, field.lower() if dot else WHOLE
        open_ones = (fields for at, fields in found if at == key and field not in fields)
        fields = next(open_ones, None)
        if fields is None:
            found.append((key, fields := {}))
        fields[field] = member
    return found


def samples_of(index: TarIndex) -> list[tuple[str, dict[str, int]]]:
    keys = sample_keys(index.names, index.grouping.sample_key).to_pylist()
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


def test_files_that_belong_to_no_sample_are_left_out_and_counted() -> None:
    names = [".DS_Store", "d/._x.jpg", "LICENSE", "x.jpg", "__info__", "d/__meta__.json", "__x.jpg"]
    index = index_of(names)
    assert samples_of(index) == [("x", {"jpg": 3}), ("__x", {"jpg": 6})]
    assert index.grouping.samples.tolist() == [-1, -1, -1, 0, -1, -1, 1]
    assert index.grouping.left_out.files == 5


def test_files_without_extension_are_samples_where_no_file_has_one() -> None:
    index = index_of([".DS_Store", "d/one", "two", "__info__"])
    assert samples_of(index) == [("d/one", {WHOLE: 1}), ("two", {WHOLE: 2})]


def test_names_with_dots_are_split_at_the_last_dot_if_asked_for() -> None:
    names = [f"d.x/IMG_2023.001.{n:05}.{end}" for n in range(3) for end in ("jpg", "json")]
    found = grouped(pa.array([*names, ".hidden.jpg"]), "last-dot")
    assert (found.count, found.field_names) == (3, ("jpg", "json"))
    assert found.samples.tolist() == [0, 0, 1, 1, 2, 2, -1]
    keys = sample_keys(pa.array(names), "last-dot").to_pylist()
    assert keys[-1] == "d.x/IMG_2023.001.00002"


def test_a_function_gives_the_keys_of_samples() -> None:
    names = ["images/1.jpg", "labels/1.txt", "images/2.jpg", "notes", "labels/2.seg.txt"]

    def key(name: str) -> str | None:
        return None if name == "notes" else name.partition("/")[2].partition(".")[0]

    found = grouped(pa.array(names), key)
    assert found.samples.tolist() == [0, 0, 1, -1, 1]
    assert [found.field_names[field] for field in found.fields if field >= 0] == [
        "jpg",
        "txt",
        "jpg",
        "txt",
    ]
    assert grouped(pa.array(["x.seg.png"]), lambda name: "x").field_names == ("seg.png",)
    assert sample_keys(pa.array(names), key).to_pylist() == ["1", "1", "2", "", "2"]


def test_only_some_samples_are_numbered_anew() -> None:
    found = grouped(pa.array(["a.jpg", ".x", "b.jpg", "b.txt", "c.jpg"]))
    left = LeftOut(files=1, incomplete=2)
    some = found.only(np.array([False, True, False]), left)
    assert (some.count, some.samples.tolist()) == (1, [-1, -1, 0, 0, -1])
    assert some.fields.tolist() == [-1, -1, 0, 1, -1]
    assert some.left_out == left


@pytest.mark.parametrize("wrong", ["second-dot", 3])
def test_no_rule_for_keys_is_refused(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"first-dot.*last-dot.*function"):
        check_sample_key(wrong)


@given(NAMES)
def test_all_names_at_once_as_one_by_one(names: list[str]) -> None:
    assert samples_of(index_of(names)) == by_hand(names)


@given(NAMES)
def test_all_names_at_once_by_their_last_dots(names: list[str]) -> None:
    found = index_of(names, stored_grouping=grouped(pa.array(names, pa.string()), "last-dot"))
    assert samples_of(found) == by_hand(names, last=True)


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
    assert [index.name(member) for member in index.shape_members] == [
        "a.depth.png",
        "b.jpg",
        "c.npy",
        "d.mp4",
    ]


def test_no_members_no_samples() -> None:
    index = index_of([])
    assert index.num_samples == 0
    assert samples_of(index) == []
    assert index.primary_members.tolist() == []


def test_an_index_does_not_travel() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(index_of(["x.jpg"]))
