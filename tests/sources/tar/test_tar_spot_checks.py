"""Indices of other tars: what the headers in front of payloads tell of them."""

from __future__ import annotations

import json
import logging
import os
import pickle
import tarfile
from pathlib import Path

import pytest
from servers.http_files import HttpServer
from tar_making import END, header, member, pax, scanned, write_tar

from headrace import TarShards
from headrace.errors import StaleIndexError
from headrace.sources.tar import index_tars
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.index import TarFacts
from headrace.sources.tar.json_index import json_index, read_json_index
from headrace.sources.tar.opening import access_of

PAYLOAD = b"hello"
LEGAL = {
    "size": pax({"size": "5"}) + header(b"a.jpg", 0) + PAYLOAD.ljust(512, b"\0"),
    "path": pax({"path": "a.jpg"}) + member(b"PaxHeader/cut", PAYLOAD),
    "long name": member(b"././@LongLink", b"a.jpg\0", kind=b"L") + member(b"cut", PAYLOAD),
    "both": pax({"mtime": "1.5"}, kind=b"g")
    + member(b"././@LongLink", b"no.jpg\0", kind=b"L")
    + pax({"path": "a.jpg", "comment": "c" * 3000})
    + member(b"cut", PAYLOAD),
    "said at the beginning": pax({"path": "a.jpg"}, kind=b"g")
    + member(b"a.jpg", b"x" * 70_000)
    + member(b"cut", PAYLOAD),
    "behind a folder": header(b"d/", 0, kind=b"5") + member(b"d/a.jpg", PAYLOAD),
}


@pytest.mark.parametrize("case", LEGAL)
@pytest.mark.parametrize("remote", [False, True])
def test_what_extends_a_header_is_followed(
    tmp_path: Path, case: str, remote: bool, http_server: HttpServer
) -> None:
    if remote and case == "said at the beginning":
        return  # what lies far in front is not fetched
    path = tmp_path / "a.tar"
    path.write_bytes(LEGAL[case] + END)
    index_tars(path)
    place = http_server.put("a.tar", path.read_bytes()) if remote else str(path)
    shards = TarShards(place, metadata=tmp_path / "a.json")
    assert shards.open_shard(0).read_file(len(shards.list_files_in_shard(0)) - 1) == PAYLOAD


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize(
    ("one", "other"), [("猫.jpg", "犬.jpg"), ("d" * 90 + "/" + "x" * 30, "d" * 90 + "/" + "y" * 30)]
)
def test_names_of_any_kind_are_compared(tmp_path: Path, one: str, other: str, format: int) -> None:
    write_tar(tmp_path / "one" / "a.tar", [(one, b"CAT" * 300)], format)
    path = write_tar(tmp_path / "other" / "a.tar", [(other, b"DOG" * 300)], format)
    index_tars(tmp_path / "one", tmp_path / "out")
    index_tars(path, tmp_path / "right")
    assert TarShards(path, metadata=tmp_path / "right").list_files_in_shard(0) == [other]
    shards = TarShards(path, metadata=tmp_path / "out")
    with pytest.raises(StaleIndexError, match=r"a\.tar: there is no header of"):
        shards.open_shard(0)


def swapped(folder: Path) -> Path:
    """A tar of a thousand members, of which two that are not looked at changed places."""
    members = [(f"{number:04}.jpg", b"%04d" % number) for number in range(1000)]
    path = write_tar(folder / "a.tar", members)
    index_tars(path)
    members[10], members[20] = members[20], members[10]
    return write_tar(path, members)


def test_of_a_tar_that_is_newer_than_its_index_all_headers_are_looked_at(tmp_path: Path) -> None:
    path = swapped(tmp_path)
    later = (tmp_path / "a.json").stat().st_mtime + 1
    os.utime(path, (later, later))
    with pytest.raises(StaleIndexError, match=r"no header of '0010\.jpg'"):
        TarShards(path).open_shard(0)


def test_headers_are_all_looked_at_only_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "a.tar", [("d/a.jpg", b"1"), ("d/b.jpg", b"2")])
    index_tars(path)
    said = (tmp_path / "a.json").read_text()
    assert json.loads(said)["files"].keys() == {"d/a.jpg", "d/b.jpg"}
    (tmp_path / "a.json").write_text(said.replace("d/", ""))  # as some tools have it
    collection = TarCollection.find(path, access=access_of())
    caplog.set_level(logging.INFO)
    collection.index(0)
    assert "newer" not in caplog.text
    later = (tmp_path / "a.json").stat().st_mtime + 1
    os.utime(path, (later, later))
    collection = TarCollection.find(path, access=access_of())
    collection.index(0)
    pickle.loads(pickle.dumps(collection)).index(0)
    assert caplog.text.count("newer than its index") == 1


def test_a_tar_without_an_end_is_told_in_its_index(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
    whole.write_bytes(member(b"a.jpg", b"1") + END)
    cut.write_bytes(member(b"a.jpg", b"1"))
    assert scanned(whole).facts == TarFacts(size=2048)
    assert scanned(cut).facts == TarFacts(size=1024, has_end=False)
    text = json_index(scanned(cut))
    assert json.loads(text)["no_end_mark"] is True
    assert not read_json_index(text, "cut").facts.has_end
    assert b"no_end_mark" not in json_index(scanned(whole))
