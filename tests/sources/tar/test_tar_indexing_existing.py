"""Tars that have an index already: when it is kept, which captions stay, what is not touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tar_making import write_tar

import headrace
from headrace.errors import HeadraceError, OptionError, WriteError
from headrace.sources.tar import index_tars, write_captions
from headrace.sources.tar.index import IndexFile
from headrace.sources.tar.index_files import read_index
from headrace.sources.tar.indexing import convert_indexes


def was_there(source: Path, out: Path | None = None, **more: object) -> bool:
    (tar,) = index_tars(source, out, **more).tars
    return tar.was_there


def first_caption(tar: Path) -> object:
    return headrace.TarShards(tar).load_sample(0, 0).captions


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "d" / "x.tar", [("a.jpg", b"1" * 700), ("b.jpg", b"2" * 700)])


@pytest.mark.parametrize("names", [["b.txt", "b.jpg"], ["a.jpg", "a.txt"]])
def test_another_tar_of_the_same_name_and_size(tmp_path: Path, names: list[str]) -> None:
    one = write_tar(tmp_path / "1" / "x.tar", [("a.jpg", b"1" * 9), ("a.txt", b"the first")])
    two = write_tar(tmp_path / "2" / "x.tar", [(name, b"2" * 9) for name in names])
    os.utime(two, ns=(0, one.stat().st_mtime_ns + 1))
    index_tars(one, tmp_path / "out")
    assert not was_there(two, tmp_path / "out")
    index = read_index(tmp_path / "out" / "x.idx.arrow")
    assert index.names.to_pylist() == names
    assert index.captions.to_pylist()[names.index(names[0][0] + ".jpg")] == '"222222222"'
    assert was_there(two, tmp_path / "out")


# --- captions


@pytest.mark.parametrize("more", [{}, {"geometry": True}, {"force": True}])
@pytest.mark.parametrize("format", ["arrow", "json"])
def test_captions_that_were_written_stay(tmp_path: Path, format: str, more: dict) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.txt", b"of the tar")])
    index_tars(tar, format=format)
    assert first_caption(tar) == "of the tar"
    place = tar.with_suffix(".idx.arrow" if format == "arrow" else ".json")
    write_captions(place, {"a": "by hand"})
    os.utime(tar, (0, 0))
    assert not was_there(tar, format=format, **more)
    assert first_caption(tar) == "by hand"


def test_captions_of_the_tar_do_not(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.txt", b"a cat")])
    index_tars(tar)
    write_tar(tar, [("a.jpg", b"1"), ("a.txt", b"a dog")])
    os.utime(tar, (0, 0))
    index_tars(tar)
    assert first_caption(tar) == "a dog"


@pytest.mark.parametrize("one_file", [False, True])
def test_captions_that_are_written_while_it_is_scanned(tar: Path, one_file: bool) -> None:
    place = tar.with_name("all.idx.arrow" if one_file else "x.idx.arrow")
    how = {"one_file": place} if one_file else {}
    index_tars(tar, **how)
    written: list[int] = []

    def progress(stage: str, share: float) -> None:
        if share > 0 and not written:
            written.append(write_captions(place, {"a": "by hand"}))

    index_tars(tar, **how, hash=True, progress=progress)
    assert written == [1]
    source = {"metadata": place} if one_file else {}
    assert headrace.TarShards(tar, **source).load_sample(0, 0).captions == "by hand"


# --- two forms


def test_the_columnar_form_is_read_and_json_is_imported(tar: Path) -> None:
    index_tars(tar, format="json")
    write_captions(tar.with_suffix(".json"), {"a": "in JSON"})
    assert first_caption(tar) == first_caption(tar.parent) == "in JSON"
    index_tars(tar)
    assert first_caption(tar) == first_caption(tar.parent) == "in JSON"
    write_captions(tar.with_suffix(".idx.arrow"), {"a": "in columns"})
    assert first_caption(tar) == first_caption(tar.parent) == "in columns"
    convert_indexes(tar.parent, "json")
    tar.with_suffix(".idx.arrow").unlink()
    assert first_caption(tar) == "in columns"


def test_a_foreign_index_with_all_that_is_asked_for_is_imported(tar: Path) -> None:
    index_tars(tar, format="json")
    path = tar.with_suffix(".json")
    told = json.loads(path.read_text())
    told["license"], told["files"]["b.jpg"]["score"] = "mine", 0.5
    path.write_text(json.dumps(told))
    assert not was_there(tar)
    index = read_index(tar.with_suffix(".idx.arrow"))
    assert json.loads(index.facts.extras or "") == {"license": "mine"}
    assert index.extras.to_pylist() == [None, '{"score": 0.5}']


# --- what is there already


def test_sidecars_that_were_left_out_are_embedded(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.json", b'{"v": 1}')])
    index_tars(tar, sidecars=False)
    assert not was_there(tar)
    assert was_there(tar)


def test_a_tar_of_json_is_indexed_once(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.json", b'{"v": 1}')])
    assert [was_there(tar), was_there(tar)] == [False, True]


def test_force_makes_it_anew(tar: Path) -> None:
    index_tars(tar)
    assert was_there(tar)
    assert not was_there(tar, force=True)


def test_a_range_leaves_the_other_tars_of_one_file(tmp_path: Path) -> None:
    for number in range(4):
        write_tar(tmp_path / "d" / f"{number}.tar", [(f"{number}.jpg", b"1")])
    place = tmp_path / "all.arrow"
    for part in ((0, 2), (3, 4), (2, 3)):
        index_tars(tmp_path / "d", one_file=place, range=part)
    found = IndexFile.open(place)
    assert list(found.tars) == ["0.tar", "1.tar", "2.tar", "3.tar"]
    assert [found.index(n).name(0) for n in range(4)] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    (tmp_path / "d" / "1.tar").unlink()
    index_tars(tmp_path / "d", one_file=place)
    assert list(IndexFile.open(place).tars) == ["0.tar", "2.tar", "3.tar"]


# --- files of others


@pytest.mark.parametrize(
    "content", ['{"files": ["x.tar"], "note": 1}', '{"files": {"a": {"size": 1}}}', "[]", "{"]
)
def test_a_file_that_is_no_index_stays(tar: Path, content: str) -> None:
    path = tar.with_suffix(".json")
    path.write_text(content)
    with pytest.raises(OptionError, match=r"x\.json.*holds something else; move it"):
        index_tars(tar, format="json")
    index_tars(tar)
    with pytest.raises(OptionError, match=r"x\.json.*holds something else; move it"):
        convert_indexes(tar.parent, "json")
    assert path.read_text() == content


def test_one_file_that_is_none_stays_and_a_damaged_one_is_made_anew(
    tar: Path, tmp_path: Path
) -> None:
    place = tmp_path / "all.arrow"
    place.write_text("a thesis")
    with pytest.raises(OptionError, match="holds something else"):
        index_tars(tar, one_file=place)
    with pytest.raises(OptionError, match=r"name of a columnar index"):
        index_tars(tar, one_file=tar)
    assert place.read_text() == "a thesis"
    place.unlink()
    index_tars(tar, one_file=place)
    damaged = bytearray(place.read_bytes())
    damaged[-100:] = bytes(100)
    place.write_bytes(damaged)
    index_tars(tar, one_file=place)
    assert list(IndexFile.open(place).tars) == ["x.tar"]


def test_two_tars_for_one_index(tar: Path) -> None:
    write_tar(tar.with_suffix(".TAR"), [("b.jpg", b"2")])
    with pytest.raises(OptionError, match="would have the same index"):
        index_tars(tar.parent)


def test_places_that_cannot_be_written_to(tar: Path, tmp_path: Path) -> None:
    for options in (
        {"out": tar / "below"},
        {"out": "/proc/nope"},
        {"one_file": "/proc/nope.arrow"},
    ):
        with pytest.raises(WriteError, match=r"x\.tar|nope"):
            index_tars(tar, **options)
    tar.with_suffix(".idx.arrow").mkdir()
    with pytest.raises(OptionError, match=r"x\.idx\.arrow.*is a folder"):
        index_tars(tar)


@pytest.mark.parametrize("captions", [{5: "x"}, {None: "x"}])
def test_captions_of_what_is_no_name(tar: Path, captions: dict) -> None:
    index_tars(tar)
    with pytest.raises(OptionError, match="no member or sample"):
        write_captions(tar.with_suffix(".idx.arrow"), captions)
    with pytest.raises(HeadraceError, match="is a folder"):
        write_captions(tar.parent, {"a": "x"})
