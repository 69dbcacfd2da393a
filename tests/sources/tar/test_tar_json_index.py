"""JSON indices of tars as all who write them do: what they say, and that nothing of it is lost."""

import json

import numpy as np
import pyarrow as pa
import pytest
from json_entries import PLACE, entry, read, said_again

from headrace.sources.tar._json_index import json_index
from headrace.sources.tar.index import IndexFile, TarFacts, TarIndex, write_index

WEBSHART = {
    "path": "s.tar",
    "filesize": 10240,
    "files": {
        "q.json": {"path": "q.json", "offset": 7680, "length": 32},
        "a/x.json": {"path": "a/x.json", "offset": 1536, "length": 22},
        "z.json": {"path": "z.json", "offset": 4608, "length": 3},
        "a/x.png": {
            "path": "a/x.png",
            "offset": 512,
            "length": 69,
            "width": 7,
            "height": 3,
            "aspect": 2.3333333,
            "json_path": "a/x.json",
            "json_offset": 1536,
            "json_length": 22,
            "captions": "hi",
            "json_metadata": {"caption": "hi", "k": 1},
        },
        "q.png": {
            "path": "q.png",
            "offset": 6656,
            "length": 69,
            "width": 3,
            "height": 9,
            "aspect": 0.33333334,
            "json_path": "q.json",
            "json_offset": 7680,
            "json_length": 32,
            "captions": ["a", "b"],
            "json_metadata": {"captions": ["a", "b"], "width": 3},
        },
    },
    "includes_image_geometry": True,
}
HFUTILS = {
    "filesize": 3072,
    "hash": "a" * 40,
    "hash_lfs": "b" * 64,
    "files": {
        "1.webp": {"offset": 512, "size": 10, "sha256": "c" * 64},
        "2.webp": {"offset": 1536, "size": 11, "sha256": "d" * 64},
    },
}
LISTED = {
    "filesize": 3072,
    "files": [
        {"fname": "1.webp", "offset": 512, "size": 10},
        {"fname": "2.webp", "offset": 1536, "size": 11},
    ],
}


def test_members_stand_in_the_order_of_their_offsets():
    index = read(WEBSHART)
    assert index.names.to_pylist() == ["a/x.png", "a/x.json", "z.json", "q.png", "q.json"]
    assert index.offsets.tolist() == [512, 1536, 4608, 6656, 7680]
    assert index.sizes.tolist() == [69, 22, 3, 69, 32]
    assert index.widths.tolist() == [7, 0, 0, 3, 0]
    assert index.heights.tolist() == [3, 0, 0, 9, 0]
    assert index.captions.to_pylist() == ['"hi"', None, None, '["a", "b"]', None]
    assert json.loads(index.json[0].as_py()) == {"caption": "hi", "k": 1}
    assert index.facts.size == 10240
    assert index.facts.has_geometry
    assert index.num_samples == 3


def test_what_webshart_writes_comes_back():
    index = read(WEBSHART)
    assert index.extras is None
    files = {
        name: {key: value for key, value in entry.items() if key != "path"}
        for name, entry in WEBSHART["files"].items()
    }
    for said in files.values():
        if "aspect" in said:
            said["aspect"] = said["width"] / said["height"]
    assert json.loads(json_index(index)) == WEBSHART | {"files": files}


def test_hashes_of_hfutils_are_facts():
    index = read(HFUTILS)
    assert index.facts.hash_lfs == "b" * 64
    assert json.loads(index.facts.extras) == {"hash": "a" * 40}
    assert index.sha256.to_pylist() == ["c" * 64, "d" * 64]
    assert index.extras is None
    assert said_again(json.loads(json_index(index))) == json.loads(json_index(index))


@pytest.mark.parametrize("key", ["path", "fname", "filename"])
def test_a_list_says_names_under_any_key(key):
    files = [{key: "1.webp", "offset": 512, "size": 1}, {key: "2.webp", "offset": 2048, "size": 2}]
    index = read({"files": files})
    assert index.names.to_pylist() == ["1.webp", "2.webp"]
    assert index.sizes.tolist() == [1, 2]
    assert index.facts == TarFacts(lists_all=False)


JSON_ENTRY = {"offset": 1536, "length": 7}

ODD = {
    "minimal": {"files": {"x.jpg": entry()}},
    "nothing": {"files": {}},
    "empty list": {"files": []},
    "unknown words": {"made_by": ["me"], "files": {"x.jpg": entry(score=0.5, tags=None)}},
    "nulls": {"filesize": None, "hash": None, "files": {"x.jpg": entry(sha256=None, width=None)}},
    "no geometry": {"includes_image_geometry": False, "files": {"x.jpg": entry()}},
    "both sizes": {"files": {"x.jpg": entry(size=9), "y.jpg": {"offset": 2048, "size": 1}}},
    "another path": {"files": {"x.jpg": entry(path="elsewhere/x.jpg")}},
    "two names": {"files": [{"fname": "x.jpg", "path": "y.jpg", "offset": 512, "size": 1}]},
    "zero pixels": {"files": {"x.jpg": entry(width=0, height=0, aspect=0.0)}},
    "width alone": {"files": {"x.jpg": entry(width=5)}},
    "aspect alone": {"files": {"x.jpg": entry(aspect=1.5)}},
    "another aspect": {"files": {"x.jpg": entry(width=3, height=2, aspect=1.4)}},
    "no aspect": {"files": {"x.jpg": entry(width=3, height=2)}},
    "aspect as text": {"files": {"x.jpg": entry(width=3, height=2, aspect="3:2")}},
    "some aspects": {
        "files": {
            "x.jpg": entry(width=3, height=2, aspect=1.5),
            "y.jpg": {"offset": 2048, "length": 1, "width": 3, "height": 2},
        }
    },
    "singular": {"files": {"x.jpg": entry(caption="hi")}},
    "singular list": {"files": {"x.jpg": entry(caption=["hi", "there"])}},
    "both captions": {"files": {"x.jpg": entry(caption="hi", captions=["hi", "there"])}},
    "either": {
        "files": {
            "x.jpg": entry(caption="hi"),
            "y.jpg": {"offset": 2048, "length": 1, "captions": ""},
        }
    },
    "other words for captions": {"files": {"x.jpg": entry(prompt="hi", text=["there"])}},
    "structured captions": {"files": {"x.jpg": entry(captions={"short": "hi"})}},
    "captions that are none": {"files": {"x.jpg": entry(captions=None, caption=7)}},
    "half of a character": {"files": {"x.jpg": entry(captions="\ud800", note="\ud800")}},
    "json that is null": {"files": {"x.jpg": entry(json_metadata=None)}},
    "json that is a list": {"files": {"x.jpg": entry(json_metadata=[1, {"a": "\u00e9"}])}},
    "json of half a character": {"files": {"x.jpg": entry(json_metadata={"a": "\udc00"})}},
    "sidecar listed": {"files": {"x.jpg": entry(**PLACE), "x.json": JSON_ENTRY}},
    "sidecar not named": {"files": {"x.jpg": entry(), "x.json": JSON_ENTRY}},
    "sidecar not listed": {"files": {"x.jpg": entry(**PLACE)}},
    "sidecar named by one of two": {
        "files": {
            "x.jpg": entry(**PLACE),
            "x.json": JSON_ENTRY,
            "y.jpg": {"offset": 3072, "length": 1},
            "y.json": {"offset": 4096, "length": 1},
        }
    },
    "sidecar elsewhere": {
        "files": {"x.jpg": entry(**{**PLACE, "json_offset": 4096}), "x.json": JSON_ENTRY}
    },
    "sidecar of another name": {"files": {"x.jpg": entry(**{**PLACE, "json_path": "y.json"})}},
    "half a place": {"files": {"x.jpg": entry(json_offset=1536, json_length=7)}},
    "path of a place only": {"files": {"x.jpg": entry(json_path="x.json"), "x.json": JSON_ENTRY}},
    "null place": {"files": {"x.jpg": entry(json_path=None, json_offset=None, json_length=None)}},
    "named by two": {
        "files": {"x.jpg": entry(**PLACE), "x.png": {"offset": 3072, "length": 1, **PLACE}}
    },
    "broken off": {"last_good": "x.jpg", "files": {"x.jpg": entry()}},
    "last good that is none": {"last_good": 7, "files": {"x.jpg": entry()}},
    "unusual names": {"files": {'../é\n"x.jpg': entry(), "": {"offset": 2048, "length": 0}}},
}


COLUMNS = {"offset", "length", "size", "width", "height", "aspect", "sha256"}
COLUMNS |= {"caption", "captions", "json_metadata", "path", "fname", "filename"}


@pytest.mark.parametrize("case", ODD)
def test_nothing_that_is_said_gets_lost(case, tmp_path):
    """Keys that have no column come back, through the columnar file too, and so do columns."""
    index = read(ODD[case])
    write_index(tmp_path / "s.idx.arrow", [("s.tar", index)])
    columnar = IndexFile.open(tmp_path / "s.idx.arrow").index(0)
    again = json.loads(json_index(columnar))
    assert again == json.loads(json_index(index))
    given = ODD[case]["files"]
    entries = given.items() if isinstance(given, dict) else [(one["path"], one) for one in given]
    for name, said in entries:
        found = again["files"][name]
        assert found["offset"] == said["offset"]
        assert found["length"] == said.get("length", said.get("size"))
        for key, value in said.items():
            if key not in COLUMNS and not key.startswith("json_"):
                assert found[key] == value
    for key in ODD[case].keys() - {"files", "filesize", "hash", "last_good"}:
        assert key == "includes_image_geometry" or again[key] == ODD[case][key]
    second = read(again)
    for column in ("names", "captions", "json", "extras"):
        one, other = getattr(index, column), getattr(second, column)
        assert one == other if one is None or other is None else one.equals(other)


def test_values_that_no_column_can_hold_are_kept():
    index = read({"files": {"x.jpg": entry(captions={"short": "hi"}, note="?")}})
    assert index.captions is None
    kept = {"captions": {"short": "hi"}, "note": "?"}
    assert json.loads(index.extras[0].as_py()) == kept
    assert json.loads(json_index(index))["files"]["x.jpg"] == entry(**kept)


def test_names_with_dots_pair_as_the_index_pairs_them():
    dotted = {"json_path": "a.001.json", "json_offset": 1536, "json_length": 7}
    index = read({"files": {"a.001.jpg": entry(**dotted)}})
    assert index.facts.sample_key == "last-dot"
    assert index.names.to_pylist() == ["a.001.jpg", "a.001.json"]
    masked = {"json_path": "a.json", "json_offset": 1536, "json_length": 7}
    assert read({"files": {"a.seg.png": entry(**masked)}}).facts.sample_key == "first-dot"
    assert read({"files": {"a.001.jpg": entry()}}).facts.sample_key == "first-dot"


@pytest.mark.parametrize("named", [True, False])
def test_the_rule_for_names_with_dots_is_exported(named: bool) -> None:
    """Whether sidecars are named, embedded, or neither after another tool has left them out."""
    files = {}
    for number in range(3):
        about = {"json_path": f"a.{number}.json", "json_offset": 0, "json_length": 7}
        if not named:
            about = {"json_metadata": {"text": f"c{number}"}}
        files[f"a.{number}.jpg"] = {**entry(**about), "offset": 512 + 2048 * number}
    index = read({"files": files})
    again = json.loads(json_index(index))
    assert read(again).facts.sample_key == index.facts.sample_key == "last-dot"
    assert read(again).num_samples == index.num_samples == 3
    for one in again["files"].values():
        one.pop("json_path", None)
        one.pop("json_metadata", None)
    assert read(again).num_samples == 3


def test_a_sidecar_that_only_others_name_is_a_member():
    index = read(ODD["sidecar not listed"])
    assert index.names.to_pylist() == ["x.jpg", "x.json"]
    assert index.num_samples == 1
    assert index.members_as("json").tolist() == [1]
    assert (index.offsets[1], index.sizes[1]) == (1536, 7)


def test_a_sidecar_that_two_name_is_one_member():
    assert read(ODD["named by two"]).names.to_pylist() == ["x.jpg", "x.json", "x.png"]


def test_a_sidecar_of_another_name_makes_no_sample():
    assert read(ODD["sidecar of another name"]).names.to_pylist() == ["x.jpg"]


def test_captions_are_found_under_other_words():
    index = read(ODD["other words for captions"])
    assert json.loads(index.captions[0].as_py()) == ["there", "hi"]


def test_names_that_come_twice_are_a_list():
    files = [entry(path="x.jpg"), {"path": "x.jpg", "offset": 2048, "length": 2}]
    index = read({"files": files})
    assert index.names.to_pylist() == ["x.jpg", "x.jpg"]
    assert index.num_samples == 2
    assert json.loads(json_index(index))["files"] == files


def test_a_name_that_tarfile_escaped_is_read_as_a_scan_reads_it():
    index = read({"files": {"caf\udce9.jpg": entry()}})
    assert index.names.to_pylist() == ["café.jpg"]


def test_an_index_of_a_scan_is_written_as_others_read_it():
    index = TarIndex(
        pa.array(["x.jpg", "x.json"]),
        np.array([512, 2048]),
        np.array([9, 7]),
        widths=np.array([4, 0], np.int32),
        heights=np.array([3, 0], np.int32),
        captions=pa.array(['"hi"', None]),
        json=pa.array(['{"a": 1}', None]),
        facts=TarFacts(size=4096, has_geometry=True),
    )
    assert json.loads(json_index(index)) == {
        "filesize": 4096,
        "includes_image_geometry": True,
        "files": {
            "x.jpg": {
                "offset": 512,
                "length": 9,
                "width": 4,
                "height": 3,
                "aspect": 4 / 3,
                "json_path": "x.json",
                "json_offset": 2048,
                "json_length": 7,
                "captions": "hi",
                "json_metadata": {"a": 1},
            },
            "x.json": {"offset": 2048, "length": 7},
        },
    }


def test_other_keys_stay_in_their_order():
    more = {f"key{number}": number for number in range(20)}
    index = read({"files": {"x.jpg": entry(**more)}})
    assert list(json.loads(index.extras[0].as_py())) == list(more)
