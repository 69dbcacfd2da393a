"""Which tars there are, which index belongs to which, and what is kept of them in memory."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tars_made import Member, members, write_shards, write_tar

from headrace.errors import NothingFoundError, OptionError, ReadError, StaleIndexError
from headrace.model import DataFileInfo
from headrace.sources.tar import index_tars
from headrace.sources.tar._json_index import read_json_index
from headrace.sources.tar._locate import access_of, find_tars
from headrace.sources.tar.collection import TarCollection, _size_in_memory
from headrace.sources.tar.index import TarIndex, write_index
from headrace.sources.tar.payloads import Payloads
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore


def find(source: Any, metadata: Any = None, **options: Any) -> TarCollection:
    return TarCollection.find(source, metadata=metadata, access=access_of(), **options)


def names_in(collection: TarCollection, shard: int) -> list[str]:
    names: list[str] = collection.index(shard).names.to_pylist()
    return names


def payloads_of(collection: TarCollection) -> list[list[bytes]]:
    reader = Payloads(collection)
    return [reader.read(i, range(len(collection.index(i)))) for i in range(len(collection))]


def bytes_of(shards: Sequence[Sequence[Member]]) -> list[list[bytes]]:
    return [[payload for _, payload in shard] for shard in shards]


def index_of(path: Path) -> TarIndex:
    return scan_tar(LocalStore(), DataFileInfo(str(path)), sidecars=False)


# --- which tars


def test_tars_of_directories_globs_and_lists(tmp_path: Path) -> None:
    shards = [members(3, seed) for seed in range(3)]
    for number, where in enumerate(("a/x.tar", "b/deep/y.TAR", "z.tar")):
        write_tar(tmp_path / where, shards[number])
    (tmp_path / "a" / "notes.txt").write_text("no tar")
    (tmp_path / "a" / "_hidden.tar").write_text("not looked at")
    assert list(find(tmp_path).names) == ["a/x.tar", "b/deep/y.TAR", "z.tar"]
    assert payloads_of(find(tmp_path)) == bytes_of(shards)
    assert list(find(f"{tmp_path}/**/*.tar").names) == ["a/x.tar", "z.tar"]
    assert list(find([tmp_path / "z.tar", tmp_path / "a"]).names) == ["x.tar", "z.tar"]
    assert list(find(tmp_path / "z.tar").names) == ["z.tar"]
    assert find(tmp_path).fork_safe


def test_tars_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    shards = [members(2, seed) for seed in range(2)]
    for folder, shard in zip("ab", shards, strict=True):
        write_tar(tmp_path / folder / "in" / "0.tar", shard)
    found = find([tmp_path / "a", tmp_path / "b"])
    assert list(found.names) == ["a/in/0.tar", "b/in/0.tar"]
    assert payloads_of(found) == bytes_of(shards)


def test_a_tar_of_another_name_is_one_where_it_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "weights.ckpt", members(2))
    assert names_in(find(path), 0)[0] == "00_0000.jpg"
    with pytest.raises(NothingFoundError, match="no tar in"):
        find(tmp_path)


def test_what_is_compressed_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b")
    for source in (tmp_path, tmp_path / "a.tar.gz"):
        with pytest.raises(OptionError, match=r"a\.tar\.gz is compressed.*gunzip"):
            find(source)
    write_tar(tmp_path / "b.tar", members(1))
    assert list(find(tmp_path).names) == ["b.tar"]
    assert "1 compressed tars are left out" in caplog.text


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError):
        find(tmp_path / "missing")
    write_tar(tmp_path / "a.tar", members(1))
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "notes.txt").write_text("no index")
    with pytest.raises(NothingFoundError, match="metadata: no index in"):
        find(tmp_path / "a.tar", tmp_path / "meta")


# --- which index


def test_indices_beside_tars_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shards = [members(4, seed) for seed in range(3)]
    paths = write_shards(tmp_path, shards)
    index_tars(paths[:2])
    index_tars(paths[1:2], format="arrow")
    (tmp_path / "shard_0001.json").write_text("this is not looked at, for a columnar one is there")
    for source in (tmp_path, paths, f"{tmp_path}/*.tar"):
        caplog.clear()
        assert payloads_of(find(source)) == bytes_of(shards)
        scanned = [r.getMessage() for r in caplog.records if "has no index" in r.getMessage()]
        assert [text.split(" has")[0] for text in scanned] == [str(paths[2])]


def test_indices_elsewhere_go_by_their_path(tmp_path: Path) -> None:
    """Tars of the same name in different folders each have their own."""
    shards = [members(2 + seed, seed) for seed in range(3)]
    for number, where in enumerate(("a/0.tar", "b/0.tar", "0.tar")):
        write_tar(tmp_path / "data" / where, shards[number])
    index_tars(tmp_path / "data", tmp_path / "meta")
    one = tmp_path / "all.idx.arrow"
    index_tars(tmp_path / "data", one_file=one)
    order = [shards[2], shards[0], shards[1]]
    for metadata in (tmp_path / "meta", one, str(one), [tmp_path / "meta"]):
        found = find(tmp_path / "data", metadata)
        assert payloads_of(found) == bytes_of(order)
        assert all(found._places[shard] is not None for shard in range(3))
    part = find([tmp_path / "data" / "a", tmp_path / "data" / "b"], one)
    assert payloads_of(part) == bytes_of(shards[:2])
    assert all(part._places[shard] is not None for shard in range(2))


def test_a_base_name_that_is_nobody_elses_will_do(tmp_path: Path) -> None:
    shards = [members(2, seed) for seed in range(2)]
    paths = write_shards(tmp_path / "data" / "deep", shards)
    index_tars(paths, tmp_path / "meta")
    found = find(tmp_path / "data", tmp_path / "meta")
    assert all(found._places[shard] is not None for shard in range(2))
    assert payloads_of(found) == bytes_of(shards)
    write_tar(tmp_path / "data" / "other" / "shard_0000.tar", members(5, 7))
    found = find(tmp_path / "data", tmp_path / "meta")
    assert [found._places[shard] is not None for shard in range(3)] == [False, True, False]
    assert payloads_of(found) == bytes_of([*shards, members(5, 7)])


@pytest.mark.parametrize("many", [False, True])
def test_an_index_of_another_folder_is_nobodys(tmp_path: Path, many: bool) -> None:
    """Of the same base name; also if the source is only a part of what was indexed."""
    shards = [members(3, seed) for seed in range(2)]
    train = write_tar(tmp_path / "data" / "train" / "0.tar", shards[0])
    val = write_tar(tmp_path / "data" / "val" / "0.tar", shards[1])
    meta = tmp_path / "meta"
    if many:
        meta.mkdir()
        index_tars(tmp_path / "data", one_file=meta / "all.idx.arrow")
        write_tar(tmp_path / "data" / "test" / "0.tar", shards[1])
        others = [tmp_path / "data" / "test"]
    else:
        index_tars(train, meta / "train")
        others = [val, val.parent]
    for source in others:
        assert find(source, meta)._places[0] is None
    for source in (train, train.parent, tmp_path / "data"):
        found = find(source, meta)
        named = found.names.index("train/0.tar" if len(found) > 1 else "0.tar")
        assert found._places[named] is not None
        assert names_in(found, named) == [name for name, _ in shards[0]]


def test_a_file_that_is_no_index_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = [members(2, seed) for seed in range(2)]
    write_shards(tmp_path, shards)
    other = tmp_path / "data.idx.arrow"
    with pa.ipc.new_file(other, pa.schema([("a", pa.int64())])) as file:
        file.write(pa.record_batch({"a": [1]}))
    for content in (other.read_bytes(), b"something else"):
        other.write_bytes(content)
        caplog.clear()
        assert payloads_of(find(tmp_path)) == bytes_of(shards)
        assert "data.idx.arrow is not an index of tars and is left out" in caplog.text
    other.unlink()
    index_tars(tmp_path, one_file=other)
    os.truncate(other, 1000)
    with pytest.raises(StaleIndexError, match=r"data\.idx\.arrow"):
        find(tmp_path)


def test_one_index_for_all_may_lie_among_the_tars(tmp_path: Path) -> None:
    shards = [members(2, seed) for seed in range(3)]
    write_shards(tmp_path, shards)
    index_tars(tmp_path, one_file=tmp_path / "all.idx.arrow")
    found = find(tmp_path)
    assert all(found._places[shard] is not None for shard in range(3))
    assert payloads_of(found) == bytes_of(shards)


def test_an_index_in_metadata_goes_before_one_beside(tmp_path: Path) -> None:
    shard = members(3)
    path = write_tar(tmp_path / "data" / "a.tar", shard)
    index_tars(path, tmp_path / "meta")
    (tmp_path / "data" / "a.json").write_text("damaged")
    assert payloads_of(find(path, tmp_path / "meta")) == bytes_of([shard])
    with pytest.raises(StaleIndexError, match=r"a\.json"):
        find(path).index(0)


@pytest.mark.parametrize("format", ["json", "arrow"])
def test_the_index_of_another_tar_is_refused(tmp_path: Path, format: Any) -> None:
    paths = write_shards(tmp_path, [members(9, 1), members(5, 2)])
    index_tars(paths[0], format=format)
    ending = {"json": ".json", "arrow": ".idx.arrow"}[format]
    os.rename(tmp_path / f"shard_0000{ending}", tmp_path / f"shard_0001{ending}")
    collection = find(paths[1])
    with pytest.raises(StaleIndexError, match=r"shard_0001\.tar.*headrace index"):
        collection.index(0)
    with pytest.raises(StaleIndexError):
        Payloads(collection).read(0, [0])


def test_an_index_that_was_written_again_after_it_was_found(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(3))
    index_tars(path)
    collection = find(path)
    (tmp_path / "a.idx.arrow").write_text("another")
    with pytest.raises(ReadError, match=r"a\.idx\.arrow changed"):
        collection.index(0)


def test_entries_out_of_the_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(3))
    index_tars(path, format="json")
    good = json.loads((tmp_path / "a.json").read_text())
    for change in ({"offset": -512}, {"offset": 10**15}, {"length": 2**62}, {"length": -1}):
        bad = json.loads(json.dumps(good))
        next(iter(bad["files"].values())).update(change)
        (tmp_path / "a.json").write_text(json.dumps(bad))
        with pytest.raises(StaleIndexError, match=r"a\.(tar|json)"):
            find(path).index(0)


def test_tars_that_cannot_be_indexed_are_left_out_if_they_may(tmp_path: Path) -> None:
    shards = [members(2, seed) for seed in range(3)]
    paths = write_shards(tmp_path, shards)
    paths[1].write_bytes(paths[1].read_bytes()[:700])
    with pytest.raises(ReadError, match="shard_0001"):
        _ = find(tmp_path).sample_counts
    found = find(tmp_path, may_skip=lambda error: True)
    assert list(found.names) == ["shard_0000.tar", "shard_0002.tar"]
    assert len(found.broken) == 1
    assert "shard_0001.tar" in found.broken[0]
    assert payloads_of(found) == bytes_of([shards[0], shards[2]])
    with pytest.raises(ReadError, match="shard_0001"):
        find(tmp_path, may_skip=lambda error: False)
    with pytest.raises(ReadError, match="no tar can be read"):
        find(paths[1], may_skip=lambda error: True)


# --- what is kept


def test_counts_and_fields_of_all(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [members(2), members(5, 1), [("a.Cls", b"1"), ("b.png", b"")]])
    index_tars(paths[0], format="arrow")
    index_tars(paths[1])
    found = find(tmp_path)
    assert found.sample_counts.tolist() == [2, 5, 2]
    assert found.field_names == ("jpg", "json", "cls", "png")


def test_pickles_without_indices_and_with_counts(tmp_path: Path) -> None:
    write_shards(tmp_path, [members(400, seed, size=20) for seed in range(4)])
    index_tars(tmp_path, tmp_path / "meta")
    found = find(tmp_path, tmp_path / "meta")
    assert found.sample_counts.tolist() == [400] * 4
    sent = pickle.dumps(found)
    assert len(sent) < 5000
    for path in (tmp_path / "meta").iterdir():
        path.rename(path.with_suffix(".away"))
    again = pickle.loads(sent)
    assert again.sample_counts.tolist() == [400] * 4  # they came along
    with pytest.raises(ReadError, match="vanished"):
        again.index(0)
    for path in (tmp_path / "meta").iterdir():
        path.rename(path.with_suffix(".arrow"))
    assert names_in(again, 3)[0] == "03_0000.jpg"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(found.index(0))


def test_indexes_loaded_first_are_let_go_unless_they_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, [members(100, seed) for seed in range(3)])
    index_tars(tmp_path)
    found = find(tmp_path)
    size = _size_in_memory(found.index(0))
    monkeypatch.setattr("headrace.sources.tar.collection._LIMIT_BYTES", 2 * size + 1000)
    loaded, load = [], found._loaded
    monkeypatch.setattr(found, "_loaded", lambda shard: loaded.append(shard) or load(shard))
    for shard in (1, 2, 1, 2):  # there is no room for 0 any more
        found.index(shard)
    in_use = found.index(0)
    for shard in (1, 2, 0):
        found.index(shard)
    assert loaded == [1, 2, 0, 1, 2]
    assert found.index(0) is in_use


def test_threads_load_an_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path, [members(1, seed) for seed in range(2)])
    found = find(tmp_path)
    together, loaded, load = threading.Barrier(8), [], found._loaded

    def count(shard: int) -> TarIndex:
        loaded.append(shard)
        time.sleep(0.02)
        return load(shard)

    monkeypatch.setattr(found, "_loaded", count)

    def ask(number: int) -> TarIndex:
        together.wait(60)
        return found.index(number % 2)

    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(ask, range(8)))
    assert len(set(map(id, asked))) == 2
    assert sorted(loaded) == [0, 1]


def test_a_columnar_file_of_many_is_opened_once(tmp_path: Path) -> None:
    paths = write_shards(tmp_path / "data", [members(3, seed) for seed in range(3)])
    one = tmp_path / "all.arrow"
    write_index(one, [(path.name, index_of(path)) for path in paths])
    found = find(tmp_path / "data", one)
    assert found.sample_counts.tolist() == [3, 3, 3]
    assert list(found._opened) == [str(one)]


def test_a_json_index_is_read_as_it_is(tmp_path: Path) -> None:
    """The minimal form, which names neither the size of the tar nor sidecars."""
    shard = members(3)
    path = write_tar(tmp_path / "a.tar", shard)
    index = index_of(path)
    entries = zip(
        index.names.to_pylist(), index.offsets.tolist(), index.sizes.tolist(), strict=True
    )
    files = {name: {"offset": offset, "size": size} for name, offset, size in entries}
    text = json.dumps({"files": files})
    assert len(read_json_index(text.encode(), "a")) == 6
    (tmp_path / "a.json").write_text(text)
    assert payloads_of(find(path)) == bytes_of([shard])


def test_many_tars_are_found_without_looking_into_them(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.tar").write_bytes(b"")
    found = find_tars(tmp_path, access_of())
    assert len(found.tars) == len(set(found.names)) == 300
    assert np.all([status.file_size == 0 for status in found.tars])
