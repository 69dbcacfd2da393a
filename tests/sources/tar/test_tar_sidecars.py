import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import NothingFoundError, OptionError
from headrace.sources.tar import write_captions
from headrace.sources.tar._json_index import json_index, read_json_index
from headrace.sources.tar.index import IndexFile, TarIndex, write_index
from headrace.sources.tar.sidecars import canonical_captions

FILES = {
    "x.jpg": {"offset": 512, "size": 9, "caption": "old", "score": 1},
    "x.json": {"offset": 1536, "size": 9, "note": "a sidecar"},
    "d/y.jpg": {"offset": 2560, "size": 9, "caption": "other", "prompt": "p"},
    "d/y.seg.png": {"offset": 3584, "size": 9},
    "z.jpg": {"offset": 4608, "size": 9, "captions": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("said", "captions"),
    [
        ({"caption": "a"}, "a"),
        ({"captions": ["a"]}, "a"),
        ({"captions": ["a", "b"]}, ["a", "b"]),
        ({"text": "a", "caption": "a", "prompt": "b"}, ["a", "b"]),
        ({"txt": "a"}, "a"),
        ({"description": "a", "descriptions": ["b", "a"]}, ["a", "b"]),
        ({"alt_text": "a", "prompt": ""}, "a"),
        ({"caption": "", "text": [], "txt": None, "prompt": 7, "url": "u"}, None),
        ({}, None),
    ],
)
def test_captions_are_found_under_all_their_names(said, captions):
    assert canonical_captions(said) == captions


def written(tmp_path: Path, files: object = FILES) -> Path:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"made_by": "me", "files": files}))
    return path


def test_names_and_keys_get_captions_and_the_rest_stays(tmp_path):
    path = written(tmp_path)
    assert write_captions(path, {"x": "new", "d/y.jpg": ["one", "two"]}) == 2
    assert json.loads(path.read_text()) == {
        "made_by": "me",
        "files": {
            **FILES,
            "x.jpg": {"offset": 512, "size": 9, "captions": "new", "score": 1},
            "d/y.jpg": {"offset": 2560, "size": 9, "captions": ["one", "two"], "prompt": "p"},
        },
    }


def test_singular_keys_of_others_stay(tmp_path):
    files = {
        "x.jpg": {"offset": 512, "size": 9, "caption": "old"},
        "y.jpg": {"offset": 1536, "size": 9, "caption": "kept"},
        "z.jpg": {"offset": 2560, "size": 9, "caption": 7},
    }
    path = written(tmp_path, files)
    write_captions(path, {"x.jpg": "new", "z": "now"})
    assert json.loads(path.read_text())["files"] == {
        "x.jpg": {"offset": 512, "size": 9, "captions": "new"},
        "y.jpg": {"offset": 1536, "size": 9, "caption": "kept"},
        "z.jpg": {"offset": 2560, "size": 9, "captions": "now"},
    }
    index = read_json_index(path.read_bytes(), "s.json")
    assert [json.loads(text) for text in index.captions.to_pylist()] == ["new", "kept", "now"]


def test_a_list_stays_a_list(tmp_path):
    files = [{"fname": name, **said} for name, said in FILES.items()]
    path = written(tmp_path, files)
    write_captions(path, {"z": ""})
    assert json.loads(path.read_text())["files"][:4] == files[:4]
    assert json.loads(path.read_text())["files"][4] == {**files[4], "captions": ""}


def test_another_member_of_a_sample_has_captions_of_its_own(tmp_path):
    path = written(tmp_path)
    write_captions(path, {"d/y.seg.png": "a mask"})
    files = json.loads(path.read_text())["files"]
    assert files["d/y.seg.png"]["captions"] == "a mask"
    assert files["d/y.jpg"] == FILES["d/y.jpg"]


@pytest.mark.parametrize(
    ("captions", "told"),
    [
        ({"x": "new", "nobody": "a", "none.jpg": "b"}, "'nobody', 'none.jpg'.*2 of 3.*'x.jpg'"),
        ({"x": "new", "x.json": "a"}, "'x.json'.*1 of 2.*sidecars have no captions"),
        ({"x": "new", "z": 7}, "'z'.*string"),
        ({"x": ["new", None]}, "'x'.*string"),
        ({"x": None}, "'x'.*string"),
    ],
)
@pytest.mark.parametrize("columnar", [False, True])
def test_what_cannot_be_meant_changes_nothing(tmp_path, captions, told, columnar):
    path = written(tmp_path)
    if columnar:
        path = in_columns(path)
    before = path.read_bytes()
    with pytest.raises(OptionError, match=told):
        write_captions(path, captions)
    assert path.read_bytes() == before


def test_a_file_that_does_not_exist_is_told(tmp_path):
    for path in (tmp_path / "none.json", tmp_path / "nowhere/none.json", "s3://bucket/none.json"):
        with pytest.raises(NothingFoundError, match=r"none\.json"):
            write_captions(path, {"x": "a"})


def test_mode_and_link_of_the_file_stay_and_nothing_is_left(tmp_path):
    path = written(tmp_path)
    path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_captions(link, {"x": "new"})
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert json.loads(path.read_text())["files"]["x.jpg"]["captions"] == "new"
    assert sorted(os.listdir(tmp_path)) == ["link.json", "s.json"]


def in_columns(path: Path, *, tars: tuple[str, ...] = ("s.tar",)) -> Path:
    target = path.with_name("s.idx.arrow")
    index = read_json_index(path.read_bytes(), "s.json")
    write_index(target, [(tar, index) for tar in tars])
    return target


def test_a_columnar_index_gets_captions_too(tmp_path):
    path = written(tmp_path)
    new = {"x": "new", "d/y.jpg": ["one", "two"]}
    columnar = in_columns(path)
    with pytest.raises(OptionError, match=r"s\.idx\.arrow is read instead of"):
        write_captions(path, new)
    assert write_captions(columnar, new) == 2
    columnar = columnar.rename(tmp_path / "other.idx.arrow")
    assert write_captions(path, new) == 2
    index = IndexFile.open(columnar).index(0)
    assert index.facts.captions_written
    assert index.captions.equals(read_json_index(path.read_bytes(), "s").captions)
    assert index.extras.equals(read_json_index(path.read_bytes(), "s").extras)


def test_of_many_tars_that_have_a_name_one_has_to_be_said(tmp_path):
    columnar = in_columns(written(tmp_path), tars=("a/s.tar", "b/s.tar"))
    with pytest.raises(OptionError, match="more than one tar"):
        write_captions(columnar, {"x": "new"})
    with pytest.raises(OptionError, match=r"c\.tar.*a/s\.tar"):
        write_captions(columnar, {"x": "new"}, tar="c.tar")
    assert write_captions(columnar, {"x": "new"}, tar="b/s.tar") == 1
    opened = IndexFile.open(columnar)
    assert [json.loads(opened.index(tar).captions[0].as_py()) for tar in (0, 1)] == ["old", "new"]


def test_samples_that_share_a_key_get_the_same_captions(tmp_path):
    names, offsets = pa.array(["x.jpg", "x.jpg"]), np.array([512, 2048])
    path = tmp_path / "s.json"
    path.write_bytes(json_index(TarIndex(names, offsets, np.array([1, 2]))))
    assert write_captions(path, {"x": "both"}) == 2
    assert [entry["captions"] for entry in json.loads(path.read_text())["files"]] == ["both"] * 2


def _write_some(path: str, numbers: range) -> None:
    for number in numbers:
        write_captions(path, {f"{number}.jpg": f"caption {number}"})


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    files = {f"{n}.jpg": {"offset": 512 + 1024 * n, "size": 1} for n in range(60)}
    path = written(tmp_path, files)
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_write_some, args=(str(path), range(first, 60, 3)))
        for first in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    files = json.loads(path.read_text())["files"]
    assert {name: entry["captions"] for name, entry in files.items()} == {
        f"{n}.jpg": f"caption {n}" for n in range(60)
    }
