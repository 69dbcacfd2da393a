"""``TarWriter``: other tools read what was written, and a tar is either complete or absent."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tars_written import members, numbered, write

from headrace import ConversionError, OptionError, TarWriter
from headrace.model import DataFileInfo
from headrace.sources.tar._json_index import json_index, read_json_index
from headrace.sources.tar.index import IndexFile, TarIndex
from headrace.sources.tar.index_files import read_index
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore
from headrace.write._tar_format import header


def scanned(path: Path, **options: Any) -> TarIndex:
    return scan_tar(LocalStore(), DataFileInfo(str(path), path.stat().st_size), **options)


def by_key(path: Path) -> list[dict[str, bytes]]:
    """Group members as webdataset does: consecutive members with the same prefix are a sample."""
    samples: list[dict[str, bytes]] = []
    for name, data in members(path).items():
        folder, slash, base = name.rpartition("/")
        key, _, field = base.partition(".")
        key = folder + slash + key
        if not samples or samples[-1]["__key__"] != key:
            samples.append({"__key__": key})
        samples[-1][field] = data
    return samples


PARTS = st.text(st.characters(exclude_characters="/.\0", exclude_categories=["Cs"]), min_size=1)
KEYS = (
    st.lists(PARTS, min_size=1, max_size=4)
    .map("/".join)
    .filter(
        lambda key: not re.search("(^|/)__[^/]*$", key)
    )  # readers leave out names such as __info__
)
FIELDS = st.from_regex(r"[a-z][a-z0-9]{0,5}(\.[a-z]{1,4})?", fullmatch=True)
SAMPLES = st.lists(
    st.tuples(KEYS, st.dictionaries(FIELDS, st.binary(max_size=1500), min_size=1, max_size=3)),
    max_size=6,
    unique_by=lambda sample: sample[0],
)


@settings(max_examples=60)
@given(samples=SAMPLES, long=st.booleans())
def test_what_is_written_is_read_by_all(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Any], long: bool
) -> None:
    folder = tmp_path_factory.mktemp("tars")
    prefix = "long/" * 25 if long else ""
    given = [{"__key__": prefix + key, **fields} for key, fields in samples]
    writer = write(folder, given)
    assert writer.samples_written == len(given)
    found = [sample for shard in writer.shards for sample in by_key(folder / shard["name"])]
    assert found == given
    for shard in writer.shards:
        path = folder / shard["name"]
        index = scanned(path, hash=True)
        assert index.num_samples == shard["samples"]
        assert json_index(index) == json_index(read_index(path.with_suffix(".idx.arrow")))
        assert path.stat().st_size == shard["size_bytes"]
        assert path.stat().st_size % 10240 == 0


@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    repeat=st.integers(1, 60),
    size=st.one_of(st.integers(0, 8**11 + 5), st.sampled_from([8**11 - 1, 8**11])),
)
def test_headers_are_those_of_python(name: str, repeat: int, size: int) -> None:
    info = tarfile.TarInfo(name * repeat)
    info.size = size
    assert header(name * repeat, size) == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def test_the_index_is_that_of_the_tar(tmp_path: Path) -> None:
    shades = [np.full((4 + n, 6, 3), n, np.uint8) for n in range(3)]
    samples = [
        {"__key__": f"a/{n}", "png": shade, "json": {"caption": f"é {n}"}, "txt": "other"}
        for n, shade in enumerate(shades)
    ]
    write(tmp_path / "json", samples, geometry=True, index="json")
    write(tmp_path / "arrow", samples, geometry=True, index="arrow")
    tar = tmp_path / "json" / "shard_00000.tar"
    written = tar.with_suffix(".json").read_bytes()
    assert json_index(scanned(tar, geometry=True, hash=True)) == written
    index_json = json.loads(written)
    assert index_json["filesize"] == tar.stat().st_size
    assert index_json["hash_lfs"] == hashlib.sha256(tar.read_bytes()).hexdigest()
    first = index_json["files"]["a/0.png"]
    assert (first["width"], first["height"], first["captions"]) == (6, 4, "é 0")
    assert first["json_metadata"] == {"caption": "é 0"}
    assert first["sha256"] == hashlib.sha256(members(tar)["a/0.png"]).hexdigest()
    other = tmp_path / "arrow" / "shard_00000.idx.arrow"
    with_columns = IndexFile.open(other)
    assert list(with_columns.tars) == ["shard_00000.tar"]
    assert json_index(with_columns.index(0)) == written


def test_what_is_not_noted_is_not_there(tmp_path: Path) -> None:
    sample = {"__key__": "x", "jpg": b"no picture", "json": {"a": 1}}
    write(tmp_path / "a", [sample], hash=False, sidecars=False)
    index = read_index(tmp_path / "a" / "shard_00000.idx.arrow")
    assert index.facts.hash_lfs is None
    assert (index.sha256, index.json, index.widths) == (None, None, None)
    write(tmp_path / "b", [sample], index=None)
    assert os.listdir(tmp_path / "b") == ["shard_00000.tar"]


def test_values_are_encoded_by_their_extension(tmp_path: Path) -> None:
    grid = np.arange(12, dtype=np.int16).reshape(3, 4)
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    sample = {
        "__key__": "x",
        "__url__": "not a field",
        "txt": "grün",
        "cls": np.int64(7),
        "json": {"a": [1, None]},
        "npy": grid,
        "npz": {"one": grid, "two": grid * 2},
        "seg.png": picture,
        "bin": bytearray(b"abc"),
        "raw": memoryview(grid),
        "nothing": None,
        "__data__": b"no extension",
    }
    write(tmp_path, [sample])
    found = members(tmp_path / "shard_00000.tar")
    assert found.keys() == {
        *("x.txt", "x.cls", "x.json", "x.npy", "x.npz", "x.seg.png", "x.bin", "x.raw", "x")
    }
    assert found["x.txt"] == "grün".encode()
    assert found["x.cls"] == b"7"
    assert found["x.json"] == b'{"a":[1,null]}'
    assert (np.load(io.BytesIO(found["x.npy"])) == grid).all()
    assert (np.load(io.BytesIO(found["x.npz"]))["two"] == grid * 2).all()
    assert (np.asarray(Image.open(io.BytesIO(found["x.seg.png"]))) == picture).all()
    assert found["x.raw"] == grid.tobytes()
    assert (found["x.bin"], found["x"]) == (b"abc", b"no extension")


def test_the_same_samples_make_the_same_bytes(tmp_path: Path) -> None:
    samples = [{**one, "npz": {"a": np.arange(3)}, "json": {"b": 1}} for one in numbered(20)]
    for name in ("a", "b"):
        write(tmp_path / name, samples, shard_samples=7)
    names = sorted(os.listdir(tmp_path / "a"))
    assert len(names) == 6
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_tar_is_no_larger_than_it_may_be(tmp_path: Path) -> None:
    samples = numbered(60, size=700)
    samples[30]["bin"] = b"z" * 50_000
    writer = write(tmp_path, samples, shard_bytes="20KiB")
    sizes = [shard["size_bytes"] for shard in writer.shards]
    (large,) = [n for n, size in enumerate(sizes) if size > 20 << 10]
    assert writer.shards[large]["samples"] == 1
    assert max(sizes[:large]) == 20 << 10
    found = [sample for shard in writer.shards for sample in by_key(tmp_path / shard["name"])]
    assert found == samples


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "and not empty"),
        (None, "and not empty"),
        (7, "and not empty"),
        ("a.b", "has a dot in its last part"),
        (".a", "has a dot in its last part"),
        ("/a", "leads out of the archive"),
        ("../a", "leads out of the archive"),
        ("a/../../b", "leads out of the archive"),
        ("a//b", "has an empty part"),
        ("a/", "has an empty part"),
        ("./a", "has an empty part"),
        ("a\0b", "NUL"),
        ("a\udc80", "UTF-8"),
    ],
)
def test_keys_that_would_not_come_back(tmp_path: Path, key: Any, message: str) -> None:
    with TarWriter(tmp_path) as writer:
        writer.write({"__key__": "v1.0/good", "bin": b""})
        with pytest.raises(OptionError, match=message):
            writer.write({"__key__": key, "bin": b""})
    assert list(members(tmp_path / "shard_00000.tar")) == ["v1.0/good.bin"]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, OptionError, "has no field"),
        ({"jpg": None}, OptionError, "has no field"),
        ({"a/b": b""}, OptionError, "must have the name of an extension"),
        ({".jpg": b""}, OptionError, "must have the name of an extension"),
        ({"": b""}, OptionError, "must have the name of an extension"),
        ({"jpg": b"", "JPG": b""}, OptionError, "would be one field"),
        ({3: b""}, OptionError, "must be strings"),
        ({"jpg": "text"}, ConversionError, r"x\.jpg: .*Pillow"),
        ({"mp4": 3}, ConversionError, "no encoder is known for 'mp4'"),
        ({"cls": 0.5}, ConversionError, r"x\.cls: a whole number"),
        ({"cls": True}, ConversionError, r"x\.cls: a whole number"),
        ({"json": {"a": float("nan")}}, ConversionError, r"x\.json"),
        ({"json": "{"}, ConversionError, r"x\.json"),
        ({"json": {"a": object()}}, ConversionError, r"x\.json"),
        ({"npy": np.array([object()])}, ConversionError, r"x\.npy"),
    ],
)
def test_fields_that_cannot_be_written(
    tmp_path: Path, fields: Any, error: type[Exception], message: str
) -> None:
    with TarWriter(tmp_path) as writer, pytest.raises(error, match=message):
        writer.write({"__key__": "x", **fields})
    assert os.listdir(tmp_path) == []


def test_a_key_comes_once_in_a_tar(tmp_path: Path) -> None:
    with TarWriter(tmp_path, shard_samples=2) as writer:
        writer.write({"__key__": "a", "txt": "one"})
        with pytest.raises(OptionError, match=r"'a' comes twice in shard_00000\.tar"):
            writer.write({"__key__": "a", "cls": 1})
        writer.write({"__key__": "b", "txt": "two"})
        writer.write({"__key__": "a", "txt": "in another tar"})
    assert [shard["samples"] for shard in writer.shards] == [2, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_bytes": 0}, "shard_bytes"),
        ({"shard_samples": 0}, "shard_samples must be an int"),
        ({"shard_samples": True}, "shard_samples must be an int"),
        ({"index": "csv"}, 'index must be "arrow" or "json"'),
        ({"pattern": "shard.tar"}, "pattern must be a name"),
        ({"pattern": "{:05d}"}, "pattern must be a name"),
        ({"pattern": "a/{:05d}.tar"}, "pattern must be a name"),
        ({"pattern": "{}{}.tar"}, "pattern must be a name"),
        ({"pattern": ".{:05d}.tar"}, "pattern must be a name"),
        ({"pattern": "{:x}.tar"}, "pattern must be a name"),
        ({"pattern": "{:5d}.tar"}, "pattern must be a name"),
        ({"resume": True, "overwrite": True}, "overwrite removes them"),
    ],
    ids=str,
)
def test_options_that_are_wrong(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TarWriter(tmp_path, **options)


def test_only_on_this_machine() -> None:
    with pytest.raises(OptionError, match="is remote"):
        TarWriter("s3://bucket/tars")


def test_an_index_of_the_writer_is_read_back(tmp_path: Path) -> None:
    write(tmp_path, numbered(5), pattern="train-{:03d}.tar", index="json")
    data = (tmp_path / "train-000.json").read_bytes()
    index = read_json_index(data, "train-000.json")
    assert index.names.to_pylist() == [f"{n:04d}.bin" for n in range(5)]
    assert json_index(index) == data
