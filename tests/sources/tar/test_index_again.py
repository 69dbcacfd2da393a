"""Tars that have an index already: which is taken, what of it stays, and what is not touched."""

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
from headrace.sources.tar.index_files import convert_indexes

JSON = b'{"v": 1}'


def entries(path: Path) -> dict:
    return json.loads(path.read_text())["files"]


def was_there(source: Path, out: Path | None = None, **more: object) -> bool:
    (tar,) = index_tars(source, out, **more).tars
    return tar.was_there


def shift(path: Path, seconds: int) -> None:
    then = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(then, then))


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "d" / "x.tar", [("a.jpg", b"1" * 700), ("b.jpg", b"2" * 700)])


# --- of another tar


@pytest.mark.parametrize("names", [["b.txt", "b.jpg"], ["c.jpg", "c.txt"]])
def test_a_tar_of_the_same_size_with_other_names(tmp_path: Path, names: list[str]) -> None:
    one = write_tar(tmp_path / "1" / "x.tar", [("a.jpg", b"1" * 700), ("a.txt", b"one")])
    two = write_tar(tmp_path / "2" / "x.tar", [(name, b"2" * 9) for name in names])
    assert one.stat().st_size == two.stat().st_size
    index_tars(one, tmp_path / "out")
    assert not was_there(two, tmp_path / "out")
    assert list(entries(tmp_path / "out" / "x.json")) == names
    assert was_there(two, tmp_path / "out")


def test_a_tar_with_the_same_names_and_other_json(tmp_path: Path) -> None:
    for folder, value in (("1", b'{"text": "cat"}'), ("2", b'{"text": "dog"}')):
        write_tar(tmp_path / folder / "x.tar", [("a.jpg", b"1"), ("a.json", value)])
    for folder in ("1", "2"):
        assert not was_there(tmp_path / folder, tmp_path / "out")
    assert entries(tmp_path / "out" / "x.json")["a.jpg"]["captions"] == "dog"
    assert was_there(tmp_path / "2", tmp_path / "out")


@pytest.mark.parametrize("one_file", [False, True])
def test_a_tar_with_the_same_names_and_other_texts(tmp_path: Path, one_file: bool) -> None:
    place = {"one_file": tmp_path / "all.arrow"} if one_file else {"out": tmp_path / "out"}
    for folder, text in (("1", b"a cat"), ("2", b"a dog")):
        write_tar(tmp_path / folder / "x.tar", [("a.jpg", b"1"), ("a.txt", text)])
    index_tars(tmp_path / "1", **place)
    with pytest.raises(OptionError, match=r"the index of another tar.*--force"):
        index_tars(tmp_path / "2", **place)
    index_tars(tmp_path / "2", **place, force=True)
    shards = headrace.TarShards(tmp_path / "2", metadata=next(iter(place.values())))
    assert shards.load_sample(0, 0).captions == "a dog"


# --- what stays


def test_captions_stay_if_the_tar_was_touched(tar: Path) -> None:
    index_tars(tar, geometry=True)
    write_captions(tar.with_suffix(".json"), {"a": "by hand"})
    shift(tar, 5)
    assert not was_there(tar)
    assert entries(tar.with_suffix(".json"))["a.jpg"]["captions"] == "by hand"
    assert json.loads(tar.with_suffix(".json").read_text())["includes_image_geometry"] is True


@pytest.mark.parametrize("more", [{}, {"geometry": True}, {"force": True}])
def test_captions_other_than_all_texts_stay(tmp_path: Path, more: dict) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.txt", b"of the tar")])
    index_tars(tar, tmp_path / "out")
    write_captions(tmp_path / "out" / "x.json", {"a": "by hand"})
    index_tars(tar, tmp_path / "out", **more)
    assert entries(tmp_path / "out" / "x.json")["a.jpg"]["captions"] == "by hand"


@pytest.mark.parametrize("one_file", [False, True])
def test_captions_that_are_written_while_it_is_scanned(tar: Path, one_file: bool) -> None:
    place = tar.with_name("all.idx.arrow") if one_file else tar.with_suffix(".json")
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


def test_hashes_and_words_of_others_stay(tar: Path) -> None:
    path = tar.with_suffix(".json")
    index_tars(tar, hash=True)
    told = json.loads(path.read_text())
    told["license"], told["files"]["b.jpg"]["score"] = "mine", 0.5
    path.write_text(json.dumps(told))
    index_tars(tar, geometry=True)
    assert json.loads(path.read_text()) == told | {"includes_image_geometry": True}


@pytest.mark.parametrize(
    ("sidecar", "payload"), [("a.txt", b"text"), ("a.json", JSON), ("a.json", b"{broken")]
)
def test_sidecars_that_were_left_out_are_embedded(
    tmp_path: Path, sidecar: str, payload: bytes
) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), (sidecar, payload)])
    index_tars(tar, sidecars=False)
    assert was_there(tar) == (payload == b"{broken")
    assert was_there(tar)


def test_a_tar_of_json_is_indexed_once(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.json", JSON)])
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


# --- two forms


def first_caption(tar: Path) -> object:
    return headrace.TarShards(tar).load_sample(0, 0).captions


@pytest.mark.parametrize("source", ["tar", "folder"])
def test_of_two_forms_the_newer_one_that_fits_is_read(tar: Path, source: str) -> None:
    given = tar if source == "tar" else tar.parent
    for form in ("json", "arrow"):
        index_tars(tar, format=form)
    write_captions(tar.with_suffix(".json"), {"a": "in JSON"})
    assert first_caption(given) == "in JSON"
    write_captions(tar.with_suffix(".idx.arrow"), {"a": "in columns"})
    assert first_caption(given) == "in columns"
    tar.with_suffix(".json").write_text('{"not": "an index"}')
    shift(tar.with_suffix(".json"), 60)
    assert first_caption(given) == "in columns"


def test_an_index_in_the_other_form_does_not_go_stale(tar: Path) -> None:
    index_tars(tar, format="arrow")
    shift(tar.with_suffix(".idx.arrow"), 60)
    write_tar(tar, [("c.jpg", b"3" * 20_000)])
    index_tars(tar)
    for left in (".json", ".idx.arrow"):
        shards = headrace.TarShards(tar)
        assert shards.list_files_in_shard(0) == ["c.jpg"]
        tar.with_suffix(left).unlink()


def test_captions_go_from_one_form_into_the_other(tar: Path) -> None:
    for form in ("json", "arrow"):
        index_tars(tar, format=form)
    write_captions(tar.with_suffix(".json"), {"a": "in JSON"})
    index_tars(tar, format="arrow", geometry=True)
    tar.with_suffix(".json").unlink()
    assert first_caption(tar) == "in JSON"


def test_converting_leaves_captions_that_are_newer(tar: Path) -> None:
    index_tars(tar)
    convert_indexes(tar.parent, "arrow")
    write_captions(tar.with_suffix(".json"), {"a": "by hand"})
    shift(tar.with_suffix(".json"), 5)
    convert_indexes(tar.parent, "json")
    assert entries(tar.with_suffix(".json"))["a.jpg"]["captions"] == "by hand"


# --- what is somebody's


@pytest.mark.parametrize(
    "content", ['{"files": ["x.tar"], "note": 1}', '{"files": {"a": {"size": 1}}}', "[]", "{"]
)
def test_a_file_that_is_no_index_stays(tar: Path, content: str) -> None:
    path = tar.with_suffix(".json")
    path.write_text(content)
    with pytest.raises(OptionError, match=r"x\.json.*holds something else; move it"):
        index_tars(tar)
    index_tars(tar, format="arrow")
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
    with pytest.raises(OptionError, match=r"called \*\.arrow"):
        index_tars(tar, one_file=tar)
    assert place.read_text() == "a thesis"
    place.unlink()
    index_tars(tar, one_file=place)
    os.truncate(place, place.stat().st_size - 100)
    index_tars(tar, one_file=place)
    assert list(IndexFile.open(place).tars) == ["x.tar"]


def test_two_tars_for_one_index(tar: Path) -> None:
    write_tar(tar.with_suffix(".TAR"), [("b.jpg", b"2")])
    with pytest.raises(OptionError, match=r"x\.TAR and .*x\.tar would have the same index"):
        index_tars(tar.parent)
    assert sorted(os.listdir(tar.parent)) == ["x.TAR", "x.tar"]


def test_places_that_cannot_be_written_to(tar: Path, tmp_path: Path) -> None:
    for options in (
        {"out": tar},
        {"out": tar / "below"},
        {"checkpoint": tar, "out": tmp_path / "out"},
        {"out": "/proc/nope"},
        {"one_file": "/proc/nope.arrow"},
    ):
        with pytest.raises(WriteError, match=r"x\.tar|nope"):
            index_tars(tar, **options)
    tar.with_suffix(".json").mkdir()
    with pytest.raises(OptionError, match=r"x\.json.*is a folder"):
        index_tars(tar)


@pytest.mark.parametrize("captions", [{5: "x"}, {None: "x"}])
def test_captions_of_what_is_no_name(tar: Path, captions: dict) -> None:
    index_tars(tar)
    with pytest.raises(OptionError, match="names of members or keys"):
        write_captions(tar.with_suffix(".json"), captions)
    with pytest.raises(HeadraceError, match="is a folder"):
        write_captions(tar.parent, {"a": "x"})
