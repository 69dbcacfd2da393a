"""Entries of an index that are wrong: no member is read by them from a tar of this machine."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.http_files import HttpServer
from tar_making import END, header, member, pax, scanned, write_tar

from headrace import TarDataset, TarShards
from headrace.errors import StaleIndexError
from headrace.sources.tar import index_tars
from headrace.sources.tar._json_index import json_index, read_json_index
from headrace.sources.tar.index import TarFacts
from headrace.write import write_tar as copy_tars

COUNT, WRONG = 100, 41
"""samples, and one that is not among those that are looked at when an index is loaded"""
Entry = dict[str, Any]


def folder_of(number: int) -> str:
    return f"{'ab'[number % 2]}/{number // 2:03}"


def shard() -> list[tuple[str, bytes]]:
    """Samples of two folders with the same names, of an image and a label of the same size."""
    return [
        made
        for number in range(COUNT)
        for made in (
            (f"{folder_of(number)}.cls", b"%d" % (number % 10)),
            (f"{folder_of(number)}.jpg", b"%03d" % number * 400),
        )
    ]


def edited(folder: Path, edit: Callable[[Entry, Entry], None], kind: str = "jpg") -> Path:
    """A tar whose index has other entries for a member and the one of that kind before it."""
    path = write_tar(folder / "a.tar", shard())
    index_tars(path, sidecars=False, format="json")
    index = path.with_suffix(".json")
    said = json.loads(index.read_text())
    one, before = (said["files"][f"{folder_of(WRONG - n)}.{kind}"] for n in (0, 1))
    edit(one, before)
    index.write_text(json.dumps(said))
    os.utime(path, (0, 0))
    return path


def shift(one: Entry, _: Entry) -> None:
    one["offset"] += 512
    one["length"] -= 512


def shorten(one: Entry, _: Entry) -> None:
    one["length"] -= 1


def lengthen(one: Entry, _: Entry) -> None:
    one["length"] += 1


def swap(one: Entry, other: Entry) -> None:
    one["offset"], other["offset"] = other["offset"], one["offset"]


def streamed(path: Path, **options: Any) -> list[Any]:
    loader, _ = TarDataset.create_dataloader(path, batch_size=16, **options)
    return list(loader)


READ: dict[str, Callable[[Path], Any]] = {
    "a sample": lambda path: TarShards(path).load_sample(0, WRONG),
    "samples": lambda path: TarShards(path).load_samples([(0, n) for n in range(COUNT)]),
    "all samples": lambda path: list(TarShards(path).samples()),
    "a file": lambda path: TarShards(path).open_shard(0).read_sample(WRONG),
    "a row": lambda path: TarDataset(path).rows[WRONG],
    "rows": lambda path: TarDataset(path).rows[list(range(COUNT))],
    "a stream": streamed,
    "a stream of tables": lambda path: streamed(path, output_format="arrow"),
    "a decoded stream": lambda path: streamed(path, decode={"jpg": len, "cls": "int"}),
    "workers": lambda path: streamed(path, num_workers=1, columns=["jpg"]),
    "a copy": lambda path: copy_tars(path, path.parent / "copy", keys="number"),
}


@pytest.mark.parametrize("way", READ)
def test_every_way_to_read_a_member(tmp_path: Path, way: str) -> None:
    path = edited(tmp_path, swap)
    shards = TarShards(path)
    assert len(shards) == COUNT
    assert shards.load_sample(0, WRONG - 2).bytes == shard()[2 * WRONG - 3][1]
    with pytest.raises(StaleIndexError, match=r"a\.tar: there is no header of '[ab]/020\.jpg'"):
        READ[way](path)


@pytest.mark.parametrize("edit", [shift, shorten, lengthen])
def test_every_way_to_be_wrong(tmp_path: Path, edit: Callable[[Entry, Entry], None]) -> None:
    path = edited(tmp_path, edit)
    for way in ("a sample", "all samples", "rows", "a stream"):
        with pytest.raises(StaleIndexError, match=r"no header of 'b/020\.jpg'.*--force"):
            READ[way](path)
    index_tars(path, sidecars=False, force=True, format="json")
    assert [sample.bytes for sample in TarShards(path).samples()] == [
        payload for _, payload in shard()[1::2]
    ]


def test_labels_of_the_same_name_and_size_in_other_folders(tmp_path: Path) -> None:
    """Only their folders tell them apart."""
    path = edited(tmp_path, swap, "cls")
    for read in (
        lambda: TarShards(path).load_sample(0, WRONG),
        lambda: streamed(path, columns=["cls"], decode=["cls"]),
    ):
        with pytest.raises(StaleIndexError, match=r"no header of '[ab]/020\.cls'"):
            read()


def test_only_the_samples_that_are_wrong_can_be_skipped(tmp_path: Path) -> None:
    path = edited(tmp_path, swap)
    with pytest.warns(UserWarning, match=r"no header of '[ab]/020\.jpg'.*1 more"):
        batches = streamed(path, columns=["__key__", "jpg"], on_error="skip")
    keys = [key for batch in batches for key in batch["__key__"]]
    assert keys == [folder_of(number) for number in range(COUNT) if number not in (40, 41)]


LONG = "d" * 60 + "/" + "e" * 60 + "/"
NAMES: dict[str, list[str]] = {
    "plain": [f"{n:03}.jpg" for n in range(40)],
    "dotted": [f"./{n:03}.jpg" for n in range(40)],
    "with a prefix": [f"{LONG}{n:03}.jpg" for n in range(40)],
    "long": ["n" * 120 + f"{n:03}.jpg" for n in range(40)],
    "of a hundred": ["n" * 93 + f"{n:03}.jpg" for n in range(40)],
    "of other letters": [f"猫{n:03}.jpg" for n in range(40)],
    "of all kinds": [
        name
        for n in range(15)
        for name in (f"{n:03}.jpg", f"{LONG}{n:03}.jpg", "n" * 120 + f"{n:03}.jpg", f"猫{n}.jpg")
    ],
}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("case", NAMES)
def test_names_as_they_stand_in_headers(tmp_path: Path, case: str, format: int) -> None:
    if format == tarfile.USTAR_FORMAT and case in ("long", "of all kinds"):
        return  # there is no place for them
    members = [(name, name.encode() * 7) for name in NAMES[case]]
    path = write_tar(tmp_path / "a.tar", members, format)
    index_tars(path)
    os.utime(path, (0, 0))
    assert [s.bytes for s in TarShards(path).samples()] == [payload for _, payload in members]
    shards = TarShards(path)
    for number, (_, payload) in enumerate(members):
        assert shards.load_sample(0, number).bytes == payload


# --- names and sizes as headers say them

PAYLOAD = b"hello"
LEGAL = {
    "size": pax({"size": "5"}) + header(b"a.jpg", 0) + PAYLOAD.ljust(512, b"\0"),
    "path": pax({"path": "a.jpg"}) + member(b"PaxHeader/cut", PAYLOAD),
    "long name": member(b"././@LongLink", b"a.jpg\0", kind=b"L") + member(b"cut", PAYLOAD),
    "both": pax({"mtime": "1.5"}, kind=b"g")
    + member(b"././@LongLink", b"no.jpg\0", kind=b"L")
    + pax({"path": "a.jpg", "comment": "c" * 3000})
    + member(b"cut", PAYLOAD),
    "behind a folder": header(b"d/", 0, kind=b"5") + member(b"d/a.jpg", PAYLOAD),
}


@pytest.mark.parametrize("case", LEGAL)
@pytest.mark.parametrize("remote", [False, True])
def test_what_extends_a_header_is_followed(
    tmp_path: Path, case: str, remote: bool, http_server: HttpServer
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(LEGAL[case] + END)
    index_tars(path)
    place = http_server.put("a.tar", path.read_bytes()) if remote else str(path)
    shards = TarShards(place, metadata=tmp_path / "a.idx.arrow")
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


def test_names_without_the_folders_of_the_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("d/a.jpg", b"1"), ("d/b.jpg", b"2")])
    index_tars(path, format="json")
    said = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(said.replace("d/", ""))  # as some tools have it
    assert [sample.bytes for sample in TarShards(path).samples()] == [b"1", b"2"]


def test_a_tar_with_members_in_another_order(tmp_path: Path) -> None:
    members = [(f"{number:04}.jpg", b"%04d" % number) for number in range(100)]
    path = write_tar(tmp_path / "a.tar", members)
    index_tars(path)
    members[10], members[20] = members[20], members[10]
    write_tar(path, members)
    shards = TarShards(path)
    assert shards.load_sample(0, 11).bytes == b"0011"
    with pytest.raises(StaleIndexError, match=r"no header of '0010\.jpg'"):
        shards.load_sample(0, 10)


def test_a_tar_without_an_end_is_told_in_its_index(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
    whole.write_bytes(member(b"a.jpg", b"1") + END)
    cut.write_bytes(member(b"a.jpg", b"1"))
    assert scanned(whole).facts == TarFacts(size=2048, has_sidecars=True)
    assert scanned(cut).facts == TarFacts(size=1024, has_sidecars=True, has_end=False)
    text = json_index(scanned(cut))
    assert json.loads(text)["no_end_mark"] is True
    assert not read_json_index(text, "cut").facts.has_end
    assert b"no_end_mark" not in json_index(scanned(whole))
