"""Tars scanned: whole ones, broken ones, and what stands beside the members."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from servers.http_files import HttpServer
from tar_making import END, by_tarfile, header, listed, member, pax, scanned, write_tar

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.sources.tar.scan import scan_tar
from headrace.storage import Access, LocalStore, Meter


def samples(count: int, size: int = 3000, first: int = 0) -> list[tuple[str, bytes]]:
    rng = random.Random(first)
    return [
        one
        for number in range(first, first + count)
        for one in (
            (f"d/{number:05d}.jpg", rng.randbytes(rng.randrange(size))),
            (f"d/{number:05d}.json", json.dumps({"caption": f"thing {number}"}).encode()),
        )
    ]


# --- where a tar ends


def test_more_members_than_are_checked_at_once(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(1500, 700))
    assert listed(scanned(path)) == by_tarfile(path)
    assert scanned(path).facts.size == path.stat().st_size


def test_duplicates_are_kept_apart(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.jpg", b"22"), ("a.jpg", b"333")])
    assert listed(scanned(path)) == [("a.jpg", 512, 1), ("a.jpg", 1536, 2), ("a.jpg", 2560, 3)]


@pytest.mark.parametrize("zeros", [0, 512, 1024, 10240, 200 << 10])
def test_ends(tmp_path: Path, zeros: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(member(b"a.jpg", b"1") + member(b"b.jpg", b"2") + bytes(zeros))
    assert scanned(path).names.to_pylist() == ["a.jpg", "b.jpg"]
    assert ("no end mark" in caplog.text) == (zeros == 0)


def test_the_last_payload_may_lack_what_pads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(header(b"a.jpg", 3) + b"abc")
    assert listed(scanned(path)) == [("a.jpg", 512, 3)]


def test_tars_behind_each_other(tmp_path: Path) -> None:
    parts = [write_tar(tmp_path / f"{n}.tar", samples(3, first=10 * n)) for n in range(3)]
    path = tmp_path / "all.tar"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    index = scanned(path)
    assert index.names.to_pylist() == [
        name for n in range(3) for name, _ in samples(3, first=10 * n)
    ]
    data = path.read_bytes()
    for (_, payload), offset in zip(samples(3, first=20), index.offsets[-6:].tolist(), strict=True):
        assert data[offset : offset + len(payload)] == payload


def test_what_is_behind_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(member(b"a.jpg", b"1") + END + b"no header" * 100)
    assert scanned(path).names.to_pylist() == ["a.jpg"]
    path.write_bytes(member(b"a.jpg", b"1") + bytes(512) + b"no header" * 100)
    with pytest.raises(ReadError, match=r"zeros is followed.*last good member is 'a\.jpg'"):
        scanned(path)


def test_a_tar_of_nothing(tmp_path: Path) -> None:
    assert len(scanned(write_tar(tmp_path / "a.tar", []), geometry=True, hash=True)) == 0
    (tmp_path / "b.tar").write_bytes(b"")
    with pytest.raises(ReadError, match=r"b\.tar.*has no bytes"):
        scanned(tmp_path / "b.tar")


# --- where it breaks off


def test_a_tar_cut_anywhere(tmp_path: Path) -> None:
    members = [("a.jpg", b"1" * 700), ("b.jpg", b"2" * 10), ("c.jpg", b"3" * 513)]
    whole = write_tar(tmp_path / "a.tar", members)
    data, full = whole.read_bytes(), listed(scanned(whole))
    cut = tmp_path / "cut.tar"
    silent = {1536, 2560, 4096} | {offset + size for _, offset, size in full}
    for length in range(1, 4096, 73):
        cut.write_bytes(data[:length])
        good = [one for one in full if one[1] + one[2] <= length]
        in_a_payload_that_is_whole = good and length - good[-1][1] < -(-good[-1][2] // 512) * 512
        if length in silent or in_a_payload_that_is_whole:
            assert listed(scanned(cut)) == good
            continue
        with pytest.raises(ReadError, match="ends inside") as error:
            scanned(cut)
        assert not good or f"last good member is '{good[-1][0]}'" in str(error.value)
        if good:
            index = scanned(cut, keep_going=True)
            assert listed(index) == good
            assert index.facts.last_good == good[-1][0]
            assert index.facts.size == length


def test_a_tar_that_ends_before_the_member_of_an_extended_header(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for extension in (pax({"path": "long.jpg"}), member(b"L", b"long\0", kind=b"L")):
        for end in (END, b""):
            path.write_bytes(member(b"a.jpg", b"1") + extension + end)
            with pytest.raises(ReadError, match=r"extended header.*last good member is 'a\.jpg'"):
                scanned(path)


@pytest.mark.parametrize("place", [0, 124, 148, 156, 300, 511])
def test_a_damaged_header(tmp_path: Path, place: int) -> None:
    path = write_tar(tmp_path / "a.tar", samples(2000, 600))
    full = listed(scanned(path))
    bad = 3001
    data = bytearray(path.read_bytes())
    data[full[bad][1] - 512 + place] ^= 0x15
    path.write_bytes(data)
    with pytest.raises(ReadError, match=r"checksum|number") as error:
        scanned(path)
    assert f"byte {full[bad][1] - 512:,}" in str(error.value)
    assert f"last good member is '{full[bad - 1][0]}'" in str(error.value)
    assert "--keep-going" in str(error.value)
    index = scanned(path, keep_going=True, geometry=True)
    assert listed(index) == full[:bad]
    assert index.facts.last_good == full[bad - 1][0]


def test_damage_of_any_kind_never_gives_what_is_not_there(tmp_path: Path) -> None:
    members = [*samples(20, 900), ("n" * 150 + ".jpg", b"x" * 30)]
    path = write_tar(tmp_path / "a.tar", members, tarfile.PAX_FORMAT)
    data, full = path.read_bytes(), set(listed(scanned(path)))
    rng = random.Random(0)
    for _ in range(150):
        bad = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad[: rng.choice([len(bad), rng.randrange(1, len(bad))])])
        try:
            index = scanned(path, geometry=True, keep_going=True)
        except ReadError:
            continue
        # Names in extended headers have no checksum.
        assert {one[1:] for one in listed(index)} <= {one[1:] for one in full}


# --- what is no tar


@pytest.mark.parametrize(
    ("beginning", "says"),
    [
        (gzip.compress(b"abc" * 1000), r"is compressed.*gzip -d"),
        (b"BZh91AY" + bytes(2000), "is compressed.*bzip2 -d"),
        (b"\xfd7zXZ\0" + bytes(2000), "is compressed.*xz -d"),
        (b"\x28\xb5\x2f\xfd" + bytes(2000), "is compressed.*zstd -d"),
        (b"PK\3\4" + bytes(2000), "not a tar"),
        (b"text", "not a tar"),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "zip", "text"],
)
def test_what_is_no_tar(tmp_path: Path, beginning: bytes, says: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(beginning)
    for keep_going in (False, True):
        with pytest.raises(ReadError, match=says):
            scanned(path, keep_going=keep_going)


def test_a_tar_that_is_another_by_now(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(3))
    with pytest.raises(FileChangedError, match="changed after it was discovered"):
        scan_tar(LocalStore(), DataFileInfo(str(path), 17))


# --- sidecars


def test_sidecars_are_embedded_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = '{ "caption" : "ein Bär", "n": 1.50, "url": "\\u00fc", "deep": [{}] }'
    members = [
        ("a.json", text.encode() + b"\r\n"),
        ("a.jpg", b"1"),
        ("b.jpg", b"2"),
        ("b.JSON", b'["no", "object"]'),
        ("c.jpg", b"3"),
        ("c.json", b"{broken"),
        ("d.jpg", b"4"),
        ("d.txt", "a dög \n".encode()),
        ("e.json", b'{"text": "alone"}'),
        ("f.jpg", b"5"),
        ("f.json", b'{"score": NaN, "text": "not JSON"}'),
        ("g.jpg", b"6"),
        ("g.json", json.dumps({"captions": ["x", "y"], "more": "z" * 20_000}).encode()),
        ("h.jpg", b"7"),
        ("h.json", b"\xef\xbb\xbf{}"),
        ("i.jpg", b"8"),
        ("i.json", b"[" * 200_000),
        ("j.jpg", b"9"),
        ("j.json", b'{"caption": "\\ud800"}'),
        ("k.jpg", b"9"),
        ("k.meta.json", b'{"caption": "of another kind"}'),
    ]
    with caplog.at_level(logging.WARNING):
        index = scanned(write_tar(tmp_path / "a.tar", members))
    names = index.names.to_pylist()
    texts = {name: json for name, json in zip(names, index.json.to_pylist(), strict=True) if json}
    assert texts.pop("g.jpg") == members[12][1].decode()
    assert texts == {
        "a.jpg": text,
        "b.jpg": '["no", "object"]',
        "h.jpg": "{}",
        "j.jpg": '{"caption": "\\ud800"}',
    }
    captions = zip(names, index.captions.to_pylist(), strict=True)
    assert {name: json.loads(said) for name, said in captions if said} == {
        "a.jpg": "ein Bär",
        "d.jpg": "a dög",
        "f.jpg": "not JSON",
        "g.jpg": ["x", "y"],
        "j.jpg": "\ud800",
    }
    assert "2 JSON files are damaged and not embedded, the first is c.json" in caplog.text


def test_headers_only(tmp_path: Path) -> None:
    index = scanned(write_tar(tmp_path / "a.tar", samples(5)), sidecars=False)
    assert (index.json, index.captions, index.widths, index.sha256) == (None, None, None, None)


def test_hashes(tmp_path: Path) -> None:
    members = [
        ("a.bin", b""),
        ("b.bin", b"b" * (9 << 20)),
        ("b.json", b"{}"),
        ("c.bin", b"c" * 513),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    path.write_bytes(path.read_bytes() + b"behind the end")
    index = scanned(path, hash=True)
    assert index.facts.hash_lfs == hashlib.sha256(path.read_bytes()).hexdigest()
    assert index.sha256.to_pylist() == [hashlib.sha256(p).hexdigest() for _, p in members]
    assert listed(index) == by_tarfile(path)
    assert index.json.to_pylist() == [None, "{}", None, None]


# --- elsewhere


def served(server: HttpServer, data: bytes) -> tuple[object, DataFileInfo, Meter]:
    url = server.put("/t/a.tar", data)
    meter = Meter()
    store, _ = Access(meter=meter).store_for([url])
    return store, store.status(url), meter


@pytest.mark.parametrize("options", [{}, {"geometry": True}, {"hash": True}], ids=str)
def test_small_members_elsewhere_are_streamed(
    tmp_path: Path, http_server: HttpServer, options: dict
) -> None:
    path = write_tar(tmp_path / "a.tar", samples(400, 60_000))
    store, file, _ = served(http_server, path.read_bytes())
    before = len(http_server.log)
    index = scan_tar(store, file, **options)
    here = scanned(path, **options)
    assert listed(index) == listed(here)
    assert index.json.equals(here.json)
    assert replace(index.facts, etag=None) == replace(here.facts, etag=None)
    assert len(http_server.log) - before < 40


def test_large_members_elsewhere_are_skipped(tmp_path: Path, http_server: HttpServer) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{n}.bin", bytes(1 << 20)) for n in range(12)])
    store, file, meter = served(http_server, path.read_bytes())
    assert listed(scan_tar(store, file)) == by_tarfile(path)
    assert meter.drain()["fetched_bytes"] < 1 << 20


def test_a_tar_elsewhere_that_breaks_off(tmp_path: Path, http_server: HttpServer) -> None:
    data = write_tar(tmp_path / "a.tar", samples(50, 50_000)).read_bytes()
    store, file, _ = served(http_server, data[: len(data) // 2])
    with pytest.raises(ReadError, match="last good member is 'd/000"):
        scan_tar(store, file)
    assert scan_tar(store, file, keep_going=True).facts.last_good is not None
