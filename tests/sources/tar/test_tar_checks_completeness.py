"""Indices that lack members of their tars: refused, and made anew."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from servers.http_files import HttpServer
from tar_making import END, header, member, pax
from tars_made import Member, members, tar_bytes, write_tar
from tars_served import fetched_bytes, ranges, seen_since

from headrace import TarDataset, TarShards
from headrace.errors import StaleIndexError
from headrace.sources.tar import index_tars, write_captions

Files = dict[str, dict[str, Any]]


def append(path: Path, name: str, payload: bytes) -> None:
    """Add a member as ``tar -r`` does."""
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(payload)
        tar.addfile(info, io.BytesIO(payload))


def entries_of(path: Path) -> Files:
    """The entries of the JSON index that is made of a tar."""
    index_tars(path, force=True, format="json")
    files: Files = json.loads(path.with_suffix(".json").read_text())["files"]
    return files


def write_index(path: Path, files: Files, size: int | None = None) -> Path:
    """A JSON index of a tar, which is not older than the tar."""
    said = {"files": files} if size is None else {"filesize": size, "files": files}
    index = path.with_suffix(".json")
    index.write_text(json.dumps(said))
    os.utime(path, (0, 0))
    return index


def refused(ask: Callable[[], Any], name: str) -> None:
    with pytest.raises(StaleIndexError, match=rf"a\.tar: .*{name}.*does not have.*headrace index"):
        ask()


@pytest.mark.parametrize("index", [{"format": "json"}, {"format": "arrow"}, {"one_file": True}])
@pytest.mark.parametrize("newer", [False, True])
def test_members_that_were_appended(tmp_path: Path, index: dict[str, Any], newer: bool) -> None:
    path = write_tar(tmp_path / "a.tar", members(3))
    metadata = tmp_path / "all.idx.arrow" if "one_file" in index else None
    index_tars(path, **({"one_file": metadata} if metadata else index))
    size = path.stat().st_size
    append(path, "new.jpg", b"new")
    assert path.stat().st_size == size
    seconds = 2**31 if newer else 0
    os.utime(path, (seconds, seconds))
    for ask in (
        lambda: len(TarShards(path, metadata)),
        lambda: TarShards(path, metadata).load_sample(0, 0),
        lambda: TarDataset(path, metadata=metadata).num_rows,
        lambda: TarDataset(path, metadata=metadata).rows[0],
    ):
        refused(ask, "'new.jpg'")


LEFT: dict[str, Callable[[int], bool]] = {
    "the first": lambda place: place < 30,
    "all but the last": lambda place: place != 99,
    "none": lambda place: False,
}


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("case", LEFT)
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_an_index_that_ends_too_early(tmp_path: Path, case: str, format: int, sized: bool) -> None:
    """In tars of the last kind each member has an extended header."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=format) as tar:
        for number in range(100):
            info = tarfile.TarInfo(f"{number:03}.{'jpg' if number % 7 else 'cls'}")
            info.mtime = 1.5
            info.size = 900 if number % 7 else 0
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    files = list(entries_of(path).items())
    left = dict(entry for place, entry in enumerate(files) if LEFT[case](place))
    write_index(path, left, path.stat().st_size if sized else None)
    refused(lambda: len(TarShards(path)), r"'\d\d\d\.(jpg|cls)'")
    refused(lambda: TarDataset(path).num_rows, r"'\d\d\d\.(jpg|cls)'")
    index_tars(path)
    assert len(TarShards(path)) == 100


def test_all_that_may_lie_between_members(tmp_path: Path, http_server: HttpServer) -> None:
    """Extended headers, folders, links, and the end of another tar are no members."""
    long_name = "d" * 60 + "/" + "n" * 90 + ".jpg"
    content = (
        pax({"comment": "c" * 6000}, kind=b"g")
        + header(b"d/", 0, kind=b"5") * 30
        + member(b"a.jpg", b"1" * 700)
        + member(b"././@LongLink", long_name.encode() + b"\0", kind=b"L")
        + member(long_name[:100].encode(), b"2" * 512)
        + header(b"link", 0, kind=b"2")
        + pax({"path": "猫.jpg", "size": "3"})
        + header(b"cat.jpg", 0)
        + b"333".ljust(512, b"\0")
        + END * 20
        + member(b"b.jpg", b"4")
        + header(b"e/", 0, kind=b"5")
        + END
    )
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    index_tars(path)
    shards = TarShards(path)
    expected = [b"1" * 700, b"2" * 512, b"333", b"4"]
    assert [sample.bytes for sample in shards.samples()] == expected
    remote = TarShards(http_server.put("a.tar", content), metadata=tmp_path / "a.idx.arrow")
    assert [sample.bytes for sample in remote.samples()] == expected


def test_an_index_of_a_tar_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(members(9))[:6000])
    count = index_tars(path, keep_going=True).members
    assert TarShards(path).get_shard_file_count(0) == count


def test_a_tar_behind_a_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", members(3))
    files = entries_of(path)
    path.write_bytes(path.read_bytes() + tar_bytes(members(2, 1)))
    write_index(path, files)
    refused(lambda: len(TarShards(path)), "'01_0000.jpg'")
    index_tars(path)
    assert len(TarShards(path)) == 5


# --- what other tools leave out


def by_hand(files: Files) -> Files:
    """Entries as other tools write them."""
    return {
        name: {"path": name, "offset": entry["offset"], "size": entry["length"]}
        for name, entry in files.items()
    }


def test_files_of_no_sample_may_be_left_out(tmp_path: Path) -> None:
    shard = [(".DS_Store", b"1"), *members(2), ("._00_0001.jpg", b"2"), ("d/._x", b"3")]
    path = write_tar(tmp_path / "a.tar", shard)
    files = entries_of(path)
    write_index(path, {name: files[name] for name, _ in members(2)}, path.stat().st_size)
    assert len(TarShards(path)) == 2


def test_a_name_stands_once_in_an_object(tmp_path: Path) -> None:
    """Other tools list the last member of a name, which is the one that counts."""
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"old"), ("b.jpg", b"b"), ("a.jpg", b"new")])
    listed = json.loads(json.dumps(entries_of(path)))
    files = by_hand({entry["path"]: entry for entry in listed})
    write_index(path, files)
    assert sorted(sample.bytes for sample in TarShards(path).samples()) == [b"b", b"new"]
    append(path, "a.jpg", b"newer")
    os.utime(path, (0, 0))
    refused(lambda: len(TarShards(path)), "'a.jpg'")


def test_sidecars_may_be_left_out_by_other_tools(tmp_path: Path) -> None:
    shard: list[Member] = [*members(20), ("00_0019.txt", b"a text")]
    path = write_tar(tmp_path / "a.tar", shard)
    files = entries_of(path)
    images = {name: entry for name, entry in files.items() if name.endswith(".jpg")}
    for listed in (by_hand(images), {name: images[name] for name in images}):
        write_index(path, listed)
        assert len(TarShards(path)) == 20
        assert TarShards(path).load_sample(0, 7).bytes == shard[14][1]
    write_index(path, images, path.stat().st_size)  # as this library writes it, but not whole
    refused(lambda: len(TarShards(path)), r"'00_00\d\d\.(json|txt)'")
    some = by_hand({name: entry for name, entry in files.items() if name != "00_0019.json"})
    write_index(path, {name: some[name] for name in some if not name.endswith(".txt")})
    refused(lambda: len(TarShards(path)), r"'00_0019\.json'")


# --- the cure


def test_an_index_that_is_not_whole_is_made_anew_with_its_captions(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{n}.jpg", b"%d" % n) for n in range(9)])
    files = entries_of(path)
    index = write_index(path, dict(list(files.items())[:4]), path.stat().st_size)
    write_captions(index, {"2": "two"})
    refused(lambda: len(TarShards(path)), r"'4\.jpg'")
    (done,) = index_tars(path).tars
    assert (done.was_there, done.members) == (False, 9)
    shards = TarShards(path)
    assert (len(shards), shards.load_sample(0, 2).captions) == (9, "two")


# --- elsewhere


def read_all(url: str, index: Path) -> None:
    shards = TarShards(url, metadata=index)
    assert len(shards)
    for _ in shards.samples():
        pass


def test_remote_tars(tmp_path: Path, http_server: HttpServer) -> None:
    """A whole index costs no request; if there is more behind its last member, one."""
    shard = [(f"{n:03}.jpg", b"%03d" % n * 300) for n in range(60)]
    path = write_tar(tmp_path / "a.tar", shard)
    url = http_server.put("d/a.tar", path.read_bytes())
    files = entries_of(path)
    size = path.stat().st_size
    seen_since(http_server)
    shards = TarShards(url, metadata=path.with_suffix(".json"))
    assert len(shards) == 60
    assert ranges(seen_since(http_server)) == []
    assert [sample.bytes for sample in shards.samples()] == [payload for _, payload in shard]
    asked = ranges(seen_since(http_server))
    assert len(asked) == 1
    assert fetched_bytes(asked) <= size
    for left in (list(files)[:30], []):
        index = write_index(path, {name: files[name] for name in left}, size)
        seen_since(http_server)
        refused(partial(read_all, url, index), r"'\d\d\d\.jpg'")
        asked = ranges(seen_since(http_server))
        assert len(asked) == 1
        assert fetched_bytes(asked) <= 1 << 16


def test_names_in_extended_headers_of_remote_tars_are_compared(
    tmp_path: Path, http_server: HttpServer
) -> None:
    """They are fetched with the member, by the same request."""
    names = [f"{'d' * 120}/{n:03}.jpg" for n in range(3)]
    path = write_tar(tmp_path / "a.tar", [(name, name.encode() * 9) for name in names])
    url = http_server.put("d/a.tar", path.read_bytes())
    files = entries_of(path)
    shards = TarShards(url, metadata=path.with_suffix(".json"))
    seen_since(http_server)
    assert shards.load_sample(0, 1).bytes == names[1].encode() * 9
    assert len(ranges(seen_since(http_server))) == 1
    swapped = {names[0]: files[names[1]], names[1]: files[names[0]], names[2]: files[names[2]]}
    index = write_index(path, swapped)
    with pytest.raises(StaleIndexError, match=r"there is no header of 'd+/00[01]\.jpg'"):
        TarShards(url, metadata=index).load_sample(0, 1)
