"""``TarShards``: what is said of samples, and their aspect buckets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shards_opened import one_tar, png
from tars_made import members, write_tar

from headrace import TarShards
from headrace.errors import ReadError
from headrace.sources.tar import index_tars

# --- what is said of samples


@pytest.mark.parametrize("how", ["scanned", "json", "arrow", "bare"])
def test_captions_of_all_kinds(tmp_path: Path, how: str) -> None:
    shard = [
        ("a.png", png(4, 3)),
        ("a.json", b'{"caption": "one"}'),
        ("b.png", png(5, 5)),
        ("b.json", b'{"captions": ["one", "two"]}'),
        ("c.png", png(6, 1)),
        ("c.txt", "ein größerer Satz\n".encode()),
        ("d.png", png(1, 1)),
        ("d.json", b'{"prompt": "asked for"}'),
        ("d.txt", b"not this"),
        ("e.png", png(2, 1)),
        ("e.json", b'["no", "object"]'),
    ]
    forms: dict[str, dict[str, Any]] = {
        "scanned": {},
        "json": {"format": "json", "geometry": True},
        "arrow": {"format": "arrow", "geometry": True},
        "bare": {"format": "json", "sidecars": False},
    }
    samples = list(one_tar(tmp_path, shard, **forms[how]).samples())
    captions = [sample.captions for sample in samples]
    assert captions[:3] == ["one", ["one", "two"], "ein größerer Satz"]
    assert captions[3] in ("asked for", ["asked for", "not this"])
    assert captions[4] is None
    assert samples[4].json == ["no", "object"]
    assert samples[2].json is None
    assert [(s.width, s.height) for s in samples] == [(4, 3), (5, 5), (6, 1), (1, 1), (2, 1)]
    assert samples[0].aspect == pytest.approx(4 / 3)


def test_where_the_indices_are_may_come_second(tmp_path: Path) -> None:
    write_tar(tmp_path / "data" / "a.tar", members(2))
    index_tars(tmp_path / "data", tmp_path / "meta")
    shards = TarShards(tmp_path / "data", tmp_path / "meta")
    assert shards.collection._places[0] is not None
    assert len(shards) == 2


def test_captions_of_the_index_go_first(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(2))
    index_tars(path, format="json")
    said = json.loads((tmp_path / "a.json").read_text())
    said["files"]["00_0000.jpg"]["captions"] = ["written", "by hand"]
    (tmp_path / "a.json").write_text(json.dumps(said))
    first, second = TarShards(path).samples()
    assert first.captions == ["written", "by hand"]
    assert first.json["caption"] == "what is in 00_0000"
    assert second.captions == "what is in 00_0001"


def test_json_that_cannot_be_read_names_shard_and_member(tmp_path: Path) -> None:
    shards = one_tar(tmp_path, [("x.jpg", b"1"), ("x.json", b"{not json"), ("y.json", b"\xff")])
    sample = shards.load_sample(0, 0)
    assert sample.bytes == b"1"
    for ask in (lambda: sample.json, lambda: sample.captions):
        with pytest.raises(ReadError, match=r"a\.tar: the JSON of 'x\.jpg' cannot be read"):
            ask()
    with pytest.raises(ReadError, match=r"'y\.json'"):
        _ = shards.load_sample(0, 1).json
    (deep := tmp_path / "deep").mkdir()
    deeply = one_tar(deep, [("z.jpg", b"1"), ("z.json", b"[" * 200_000)]).load_sample(0, 0)
    for ask in (lambda: deeply.json, lambda: deeply.captions):
        with pytest.raises(ReadError, match=r"the JSON of 'z\.jpg' cannot be read"):
            ask()


# --- aspect buckets, and more than one user


def test_aspect_buckets_of_files_and_samples(tmp_path: Path) -> None:
    for number in range(2):
        shapes = [(64, 64), (128, 64), (64, 64)]
        shard = [(f"{i}.png", png(*shape)) for i, shape in enumerate(shapes)]
        index_tars(write_tar(tmp_path / f"{number}.tar", shard), geometry=True)
    shards = TarShards(tmp_path)
    for listed in (shards.list_shard_sample_aspect_buckets(), shards.list_shard_aspect_buckets()):
        assert [one["shard_name"] for one in listed] == ["0.tar", "1.tar"]
        found = {key: [e["filename"] for e in some] for key, some in listed[1]["buckets"].items()}
        assert found == {"1.00": ["0.png", "2.png"], "2.00": ["1.png"]}
    [last] = shards.list_shard_sample_aspect_buckets([-1], key="geometry-tuple")
    assert last["shard_idx"] == 1
    assert set(last["buckets"]) == {"(64, 64)", "(128, 64)"}
    buckets = shards.aspect_buckets(key="geometry-list")
    assert {key: buckets.bucket(i).tolist() for i, key in enumerate(buckets.keys)} == {
        "[64, 64]": [0, 2, 3, 5],
        "[128, 64]": [1, 4],
    }
    with pytest.raises(IndexError, match="no shard 2"):
        shards.list_shard_aspect_buckets([2])
