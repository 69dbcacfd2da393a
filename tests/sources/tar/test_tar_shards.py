"""``TarShards``: files and samples by number, and more than one user of them."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

import json
import os
import pickle
import tarfile
import threading
from io import BytesIO
from pathlib import Path

import pytest
from shards_opened import SHARDS, folder, one_tar, shards  # noqa: F401  # fixtures
from tars_made import members, write_tar

from headrace import TarShards, write_captions
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.sources.tar import index_tars

# --- files and samples


def test_what_there_is(shards: TarShards) -> None:
    assert shards.num_shards == 2
    assert list(shards.shard_names) == ["shard_0000.tar", "shard_0001.tar"]
    assert len(shards) == 27
    assert shards.get_shard_file_count(0) == 40
    assert shards.get_shard_sample_count(-1) == 7
    assert shards.list_files_in_shard(1) == [name for name, _ in SHARDS[1]]
    assert shards.list_samples_in_shard(0) == [name for name, _ in SHARDS[0][::2]]
    assert repr(shards) == "<TarShards: 2 shards>"


def test_a_shard_that_is_open(shards: TarShards) -> None:
    shard = shards.open_shard(1)
    assert (shard.name, len(shard)) == ("shard_0001.tar", 7)
    assert shard.keys[3] == "deep/er/01_0003"
    assert [shard.read_file(i) for i in range(14)] == [payload for _, payload in SHARDS[1]]
    assert shard.read_file(-1) == SHARDS[1][-1][1]
    assert shard.read_sample(2) == SHARDS[1][4][1]
    assert shard.read_sample_json(2) == SHARDS[1][5][1]
    assert shard.load_sample(2).bytes == SHARDS[1][4][1]
    assert "7 samples in 14 files" in repr(shard)


def test_a_sample(shards: TarShards) -> None:
    sample = shards.load_sample(1, 3)
    name, payload = SHARDS[1][6]
    assert (sample.path, sample.key) == (name, "deep/er/01_0003")
    assert (sample.bytes, sample.data, sample.size) == (payload, payload, len(payload))
    assert sample.json == {"caption": "what is in deep/er/01_0003", "id": 3}
    assert sample.captions == "what is in deep/er/01_0003"
    assert dict(sample.fields) == {"jpg": payload, "json": SHARDS[1][7][1]}
    assert (sample.shard, sample.number) == (1, 3)
    assert (sample.width, sample.height, sample.aspect) == (None, None, None)
    with open(shards.collection.files.paths[1], "rb") as tar:
        tar.seek(sample.offset)
        assert tar.read(sample.size) == payload
    assert "jpg, json" in repr(sample)


def test_samples_in_the_order_asked_for(shards: TarShards) -> None:
    wanted = [(1, 3), (0, 19), (1, 0), (0, 0), (1, 3), (-1, -1)]
    found = shards.load_samples(wanted)
    assert [sample.bytes for sample in found] == [SHARDS[s][2 * n][1] for s, n in wanted[:-1]] + [
        SHARDS[1][-2][1]
    ]
    assert [sample.json["id"] for sample in found] == [3, 19, 0, 0, 3, 6]
    assert shards.load_samples([]) == []


def test_all_samples_one_after_the_other(shards: TarShards) -> None:
    everything = [payload for shard in SHARDS for _, payload in shard[::2]]
    assert [sample.bytes for sample in shards.samples()] == everything
    assert [sample.bytes for sample in shards] == everything
    assert [(s.shard, s.number) for s in shards.samples(1)] == [(1, n) for n in range(7)]
    assert [s.json["id"] for s in shards.samples([1, 0])] == [
        *range(7),
        *range(20),
    ]


def test_blocks_of_any_size_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = [("x.jpg", b""), *members(30), ("y.jpg", b"")]
    shards = one_tar(tmp_path, shard)
    expected = [sample.fields for sample in shards.samples()]
    for size in (1, 700, 5000, 1 << 30):
        monkeypatch.setattr("headrace.sources.tar.shards._LOCAL_BLOCK_BYTES", size)
        assert [sample.fields for sample in shards.samples()] == expected
    assert len(expected) == 32


def test_numbers_that_are_not_there(shards: TarShards) -> None:
    for ask, what in (
        (lambda: shards.load_sample(2, 0), "no shard 2: there are 2"),
        (lambda: shards.load_sample(-3, 0), "no shard -3"),
        (lambda: shards.load_sample(1, 7), r"shard_0001\.tar has no sample 7: it has 7"),
        (lambda: shards.load_sample(1, -8), "no sample -8"),
        (lambda: shards.load_samples([(0, 0), (0, 20)]), "no sample 20"),
        (lambda: shards.open_shard(0).read_file(40), r"shard_0000\.tar has no file 40: it has 40"),
        (lambda: shards.open_shard(0).read_file(-41), "no file -41"),
        (lambda: shards.open_shard(5), "no shard 5"),
        (lambda: shards.open_shard(1).read_sample_json(7), "no sample 7"),
        (lambda: shards.samples(9), "no shard 9"),
        (lambda: shards.get_shard_file_count(9), "no shard 9"),
    ):
        with pytest.raises(IndexError, match=what):
            ask()
    with pytest.raises(TypeError):
        shards.load_sample(0.5, 0)  # type: ignore[arg-type]


def test_fields_with_dots_and_samples_without_sidecars(tmp_path: Path) -> None:
    shard = [
        ("a.seg.png", b"seg"),
        ("a.jpg", b"jpg"),
        ("a.cls", b"7"),
        ("b.json", b"[1, 2]"),
        ("c.JPG", b"large"),
        ("plain", b"no dot"),
    ]
    shards = one_tar(tmp_path, shard)
    samples = list(shards.samples())
    assert [sample.path for sample in samples] == ["a.jpg", "b.json", "c.JPG"]
    assert dict(samples[0].fields) == {"seg.png": b"seg", "jpg": b"jpg", "cls": b"7"}
    assert (samples[0].json, samples[0].captions) == (None, None)
    assert (samples[1].json, samples[1].captions) == ([1, 2], None)
    assert shards.open_shard(0).read_sample_json(0) is None
    assert list(samples[2].fields) == ["jpg"]
    assert shards.open_shard(0).keys == ["a", "b", "c"]


def test_samples_without_extensions(tmp_path: Path) -> None:
    shards = one_tar(tmp_path, [("one", b"1"), ("d/two", b"2")])
    assert [dict(sample.fields) for sample in shards] == [{"__data__": b"1"}, {"__data__": b"2"}]
    assert shards.open_shard(0).keys == ["one", "d/two"]


def test_a_tar_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tar"))
    write_tar(path, [("a.jpg", b"1")])
    assert TarShards(tmp_path).load_sample(0, 0).bytes == b"1"
    index_tars(tmp_path, format="arrow")
    assert TarShards(tmp_path).load_sample(0, 0).bytes == b"1"


def test_names_that_lead_elsewhere_are_only_names(tmp_path: Path) -> None:
    shard = [("../../evil.jpg", b"up"), ("/etc/evil.jpg", b"root"), ("./x/../y.jpg", b"dots")]
    inside = tmp_path / "in" / "side"
    shards = TarShards(write_tar(inside / "a.tar", shard))
    assert [sample.bytes for sample in shards.samples()] == [b"up", b"root", b"dots"]
    assert shards.list_files_in_shard(0) == [name for name, _ in shard]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a.tar"]
    assert not os.path.exists("/etc/evil.jpg")


def test_a_tar_without_members(tmp_path: Path) -> None:
    shards = one_tar(tmp_path, [])
    assert (len(shards), shards.list_files_in_shard(0), list(shards.samples())) == (0, [], [])
    with pytest.raises(IndexError, match="no sample 0"):
        shards.load_sample(0, 0)


# --- aspect buckets, and more than one user


def test_a_copy_is_small_and_reads_the_same(shards: TarShards) -> None:
    assert len(shards) == 27
    shards.load_sample(0, 0)
    sent = pickle.dumps(shards)
    assert len(sent) < 3000
    again = pickle.loads(sent)
    assert [s.fields for s in again.samples()] == [s.fields for s in shards.samples()]


def test_threads_read_at_once(shards: TarShards) -> None:
    found: dict[int, list[bytes]] = {}
    together = threading.Barrier(6)

    def work(number: int) -> None:
        together.wait(60)
        samples = shards.load_samples([(0, n) for n in range(20)])
        found[number] = [sample.bytes for sample in samples]
        found[number] += [shards.load_sample(1, n).bytes for n in range(7)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [payload for shard in SHARDS for _, payload in shard[::2]]
    assert found == dict.fromkeys(range(6), everything)


def test_a_sample_outlives_its_shards(folder: Path) -> None:
    sample = TarShards(folder).load_sample(0, 4)
    assert BytesIO(sample.bytes).read() == SHARDS[0][8][1]
    assert sample.json["id"] == 4


# --- by name, file by file, and by size


def test_shards_files_and_samples_by_name(shards: TarShards) -> None:
    name, payload = SHARDS[1][6]
    for shard in ("shard_0001.tar", "shard_0001", 1):
        assert shards.open_shard(shard).read_file(name) == payload
        for sample in ("deep/er/01_0003", name, name.replace(".jpg", ".json"), 3):
            found = shards.load_sample(shard, sample)
            assert (found.shard, found.number, found.bytes) == (1, 3, payload)
    wanted = [("shard_0001", name), (0, 5), (1, -1), (0, "00_0000.json")]
    assert shards.read_files_batch(wanted) == [
        payload,
        SHARDS[0][5][1],
        SHARDS[1][-1][1],
        SHARDS[0][1][1],
    ]
    assert shards.read_files_batch([]) == []
    for ask, what in (
        (lambda: shards.open_shard("shard_2"), "no shard 'shard_2'"),
        (lambda: shards.open_shard(0).read_file("x.jpg"), r"shard_0000\.tar has no file 'x\.jpg'"),
        (lambda: shards.load_sample(0, "x"), r"shard_0000\.tar has no sample 'x'"),
    ):
        with pytest.raises(KeyError, match=what):
            ask()


def test_files_one_after_the_other_and_ranges_of_them(shards: TarShards) -> None:
    everything = [(number, *file) for number, shard in enumerate(SHARDS) for file in shard]
    found = [(file.shard, file.path, file.bytes) for file in shards.files()]
    assert found == everything
    for start, stop in ((0, 7), (35, 45), (39, 41), (50, None), (54, 60), (5, 5), (7, 3)):
        part = [(file.shard, file.path, file.bytes) for file in shards.files(None, start, stop)]
        assert part == (everything[start:stop] if stop is None or stop > start else [])
    one = shards.open_shard("shard_0001")
    assert [file.bytes for file in one.files(2, 5)] == [data for _, data in SHARDS[1][2:5]]
    (file,) = one.files(3, 4)
    assert (file.number, file.size) == (3, len(SHARDS[1][3][1]))
    assert one.read_file(file.number) == file.bytes


def test_files_and_samples_that_are_too_large(tmp_path: Path) -> None:
    shard = [("a.jpg", b"x" * 10), ("a.txt", b"y" * 200), ("b.jpg", b"z" * 100), ("c.jpg", b"")]
    shards = one_tar(tmp_path, shard)
    assert [one.key for one in shards.samples(max_file_size=100, oversized="skip")] == ["b", "c"]
    left = [one.path for one in shards.files(max_file_size="100B", oversized="skip")]
    assert left == ["a.jpg", "b.jpg", "c.jpg"]
    for ask in (
        lambda: list(shards.samples(max_file_size=100)),
        lambda: list(shards.files(max_file_size=100)),
        lambda: shards.load_sample(0, "a", max_file_size=100),
    ):
        with pytest.raises(ReadError, match=r"'a\.txt' has 200 bytes, more than max_file_size=100"):
            ask()
    assert shards.load_sample(0, "b", max_file_size=100).size == 100


# --- keys


DOTTED = [
    (f"IMG_2023.001.{n:05}.{end}", b"%d" % n if end == "jpg" else b'{"caption": "c%d"}' % n)
    for n in range(5)
    for end in ("jpg", "json")
]


def test_keys_up_to_the_last_dot(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", DOTTED)
    assert len(TarShards(path)) == 1
    shards = TarShards(path, sample_key="last-dot")
    assert shards.open_shard(0).keys == [f"IMG_2023.001.{n:05}" for n in range(5)]
    assert [sample.captions for sample in shards] == [f"c{n}" for n in range(5)]
    assert shards.load_sample(0, "IMG_2023.001.00003").data == b"3"
    again = pickle.loads(pickle.dumps(shards))
    assert len(again) == 5


def test_an_index_that_pairs_by_the_last_dot(tmp_path: Path) -> None:
    """webshart attaches the sidecar to each image, which first dots do not tell apart."""
    path = write_tar(tmp_path / "a.tar", DOTTED)
    files = {}
    with tarfile.open(path) as tar:
        for info in tar:
            files[info.name] = {"offset": info.offset_data, "length": info.size}
            if info.name.endswith("json"):
                image = files[info.name.replace(".json", ".jpg")]
                number = int(info.name.split(".")[2])
                image |= {"json_path": info.name, "json_offset": info.offset_data}
                image |= {"json_length": info.size, "captions": f"c{number}"}
                image["json_metadata"] = {"caption": f"c{number}"}
    about = {"filesize": path.stat().st_size, "files": files}
    (tmp_path / "a.json").write_text(json.dumps(about))
    shards = TarShards(path)
    assert [sample.captions for sample in shards] == [f"c{n}" for n in range(5)]
    assert [dict(sample.fields).keys() for sample in shards] == [{"jpg", "json"}] * 5
    assert len(TarShards(path, sample_key="first-dot")) == 1


def test_an_index_that_is_made_by_the_last_dot(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", DOTTED)
    for rule in (None, "last-dot", None):  # an index that is there keeps its rule
        index_tars(tmp_path, sample_key=rule)
    shards = TarShards(tmp_path)
    assert [sample.captions for sample in shards] == [f"c{n}" for n in range(5)]
    assert [sample.key for sample in shards] == [f"IMG_2023.001.{n:05}" for n in range(5)]
    index = tmp_path / "a.idx.arrow"
    assert write_captions(index, {"IMG_2023.001.00003": "other"}) == 1
    assert TarShards(tmp_path).load_sample(0, "IMG_2023.001.00003").captions == "other"
    index_tars(tmp_path, geometry=True)
    assert TarShards(tmp_path).load_sample(0, "IMG_2023.001.00003").captions == "other"
    index_tars(tmp_path, sample_key="first-dot")
    assert len(TarShards(tmp_path)) == 1


def test_several_files_that_one_sidecar_describes_are_one_sample(tmp_path: Path) -> None:
    """webshart attaches the sidecar to each file of its name, as to an image and its class."""
    members = [("0.jpg", b"j"), ("0.cls", b"1"), ("0.seg.png", b"p"), ("0.json", b'{"text": "c"}')]
    path = write_tar(tmp_path / "a.tar", members)
    files = {}
    with tarfile.open(path) as tar:
        for info in tar:
            files[info.name] = {"offset": info.offset_data, "length": info.size}
    for name in ("0.jpg", "0.cls"):
        files[name] |= {"json_metadata": {"text": "c"}, "captions": "c"}
    about = {"filesize": path.stat().st_size, "files": files}
    (tmp_path / "a.json").write_text(json.dumps(about))
    (sample,) = TarShards(path)
    assert dict(sample.fields).keys() == {"jpg", "cls", "seg.png", "json"}


def test_a_function_of_names(tmp_path: Path) -> None:
    names = [("images/1.jpg", b"i1"), ("labels/1.txt", b"one"), ("images/2.jpg", b"i2")]
    path = write_tar(tmp_path / "a.tar", names)
    shards = TarShards(path, sample_key=lambda name: name.partition("/")[2].partition(".")[0])
    assert [(sample.key, sample.captions) for sample in shards] == [("1", "one"), ("2", None)]
    with pytest.raises(OptionError, match="sample_key='middle'"):
        TarShards(path, sample_key="middle")  # type: ignore[arg-type]


def test_where_captions_are(tmp_path: Path) -> None:
    text = one_tar(tmp_path / "text", [("a.jpg", b""), ("a.txt", b"x"), ("b.jpg", b"")])
    assert text.probe_caption_layout() == {
        "layout": "txt_sidecar",
        "samples": 2,
        "embedded": 0,
        "json_sidecar": 0,
        "txt_sidecar": 1,
        "none": 1,
    }
    beside = one_tar(tmp_path / "json", members(3))
    assert beside.probe_caption_layout()["layout"] == "json_sidecar"
    embedded = one_tar(tmp_path / "embedded", members(3), format="arrow")
    assert embedded.probe_caption_layout()["layout"] == "embedded"
    some = [("a.jpg", b""), ("a.txt", b"x"), ("b.jpg", b""), ("b.json", b"{}")]
    assert one_tar(tmp_path / "mixed", some).probe_caption_layout()["layout"] == "mixed"
    assert one_tar(tmp_path / "none", [("a.jpg", b"")]).probe_caption_layout()["layout"] == "none"


def test_pairs_of_two_data_sets_by_key(tmp_path: Path) -> None:
    write_tar(tmp_path / "l0.tar", [("b.mp3", b"lb"), ("a.mp3", b"la")])
    write_tar(tmp_path / "l1.tar", [("d/c.mp3", b"lc"), ("alone.mp3", b"l")])
    write_tar(tmp_path / "r.tar", [("a.wav", b"ra"), ("d/c.wav", b"rc"), ("b.wav", b"rb")])
    left, right = TarShards(tmp_path / "l*.tar"), TarShards(tmp_path / "r.tar")
    with pytest.raises(SchemaError, match="1 keys are in one data set only, such as 'alone'"):
        left.pairs(right)
    pairs = left.pairs(right, strict=False)
    assert [pair.key for pair in pairs] == ["b", "a", "d/c"]
    assert [one.data for one in left.load_samples([pair.left for pair in pairs])] == [
        b"lb",
        b"la",
        b"lc",
    ]
    assert [one.data for one in right.load_samples([pair.right for pair in pairs])] == [
        b"rb",
        b"ra",
        b"rc",
    ]
    twice = TarShards(
        write_tar(tmp_path / "t.tar", [("a.wav", b""), ("b.wav", b""), ("a.wav", b"")])
    )
    with pytest.raises(SchemaError, match=r"'a' comes a second time, in t\.tar"):
        right.pairs(twice)
