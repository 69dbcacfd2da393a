"""Headers of tars of all kinds, against what the standard library finds."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tar_making import END, by_tarfile, header, listed, member, pax, scanned, write_tar

from headrace.errors import ReadError
from headrace.sources.tar._headers import (
    HeaderError,
    first_broken,
    header_name,
    header_rows,
    header_size,
    is_plain_header,
    pax_records,
)

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path: Path, *parts: bytes, end: bytes = END) -> Path:
    path.write_bytes(b"".join(parts) + end)
    return path


@pytest.mark.parametrize("format", FORMATS)
def test_names_of_all_lengths(tmp_path: Path, format: str) -> None:
    longest = 200 if format == "ustar" else 700
    names = [f"{'d' * 40}/" * (n // 41) + "n" * (n % 41 + 1) + ".bin" for n in range(0, longest, 9)]
    members = [(name, name.encode() * 3) for name in names]
    path = write_tar(tmp_path / "a.tar", members, FORMATS[format])
    index = scanned(path)
    assert index.names.to_pylist() == names
    assert listed(index) == by_tarfile(path)
    data = path.read_bytes()
    for (_, payload), offset in zip(members, index.offsets.tolist(), strict=True):
        assert data[offset : offset + len(payload)] == payload


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_names_in_unicode(tmp_path: Path, format: str) -> None:
    names = ["日本/画像.jpg", "ümläut.jpg", "é" * 90 + ".txt", "plain.jpg"]
    path = write_tar(tmp_path / "a.tar", [(name, b"x") for name in names], FORMATS[format])
    assert scanned(path).names.to_pylist() == names


def test_a_name_that_is_no_utf_8_is_read_as_latin_1(tmp_path: Path) -> None:
    parts = [member(b"caf\xe9.jpg", b"1"), member("café.txt".encode(), b"2")]
    assert scanned(write(tmp_path / "a.tar", *parts)).names.to_pylist() == ["café.jpg", "café.txt"]


def test_members_are_regular_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"kind{kind.decode()}")
            info.type, info.linkname = kind, "somewhere/" * 20
            tar.addfile(info)
        info = tarfile.TarInfo("x.jpg")
        info.size = 7
        tar.addfile(info, io.BytesIO(b"payload"))
    assert listed(scanned(path)) == by_tarfile(path)
    assert scanned(path).names.to_pylist() == ["x.jpg"]


def test_kinds_that_nobody_knows_are_passed_over(tmp_path: Path) -> None:
    label, odd = header(b"label", 0, kind=b"V"), member(b"odd", b"x" * 600, kind=b"Z")
    path = write(tmp_path / "a.tar", label, odd, member(b"a.jpg", b"1", kind=b"7"))
    assert scanned(path).names.to_pylist() == ["a.jpg"]


def test_a_tar_from_before_ustar(tmp_path: Path) -> None:
    old = {"magic": b"", "kind": b"\0"}
    parts = [header(b"dir/", 0, **old), member(b"dir/a.txt", b"one", **old)]
    path = write(tmp_path / "a.tar", *parts)
    assert listed(scanned(path)) == by_tarfile(path) == [("dir/a.txt", 1024, 3)]


def test_what_gnu_puts_where_others_have_a_prefix_is_none(tmp_path: Path) -> None:
    gnu = member(b"a.txt", b"one", magic=b"ustar  \0", prefix=b"00000000000\0")
    ustar = member(b"b.txt", b"two", prefix=b"folder")
    names = scanned(write(tmp_path / "a.tar", gnu, ustar)).names.to_pylist()
    assert names == ["a.txt", "folder/b.txt"]


def test_what_stands_behind_the_end_of_a_name_is_no_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", member(b"a.txt\0left over", b"1"))
    assert scanned(path).names.to_pylist() == ["a.txt"]


@pytest.mark.parametrize(
    "field",
    [b"00000000005\0", b"          5 ", b"5\0", b"000000000005", b"\x80" + bytes(10) + b"\5"],
    ids=["usual", "spaces", "short", "twelve", "base-256"],
)
def test_ways_to_write_a_size(tmp_path: Path, field: bytes) -> None:
    first = header(b"a.bin", field) + b"12345".ljust(512, b"\0")
    path = write(tmp_path / "a.tar", first, member(b"b.bin", b"x"))
    assert listed(scanned(path)) == [("a.bin", 512, 5), ("b.bin", 1536, 1)]


def test_a_member_of_ten_gigabytes_is_seeked_over(tmp_path: Path) -> None:
    size = 10 * 1000**3
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header(b"huge.bin", b"\x80" + size.to_bytes(11, "big")))
        file.seek(512 + (size + 511) // 512 * 512)
        file.write(member(b"b.bin", b"x") + END)
    assert listed(scanned(path))[0] == ("huge.bin", 512, size)
    assert scanned(path).names.to_pylist() == ["huge.bin", "b.bin"]


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (b"\xff" * 12, "negative"),
        (b"-0000000001\0", "not a number"),
        (b"0000000008x\0", "not a number"),
        (b"00000000009\0", "not a number"),
    ],
    ids=["base-256", "minus", "letter", "nine"],
)
def test_sizes_that_are_none(tmp_path: Path, field: bytes, says: str) -> None:
    path = write(tmp_path / "a.tar", member(b"a.bin", b"1"), header(b"b.bin", field))
    with pytest.raises(ReadError, match=rf"{says}.*last good member is 'a\.bin'"):
        scanned(path)


@pytest.mark.parametrize(
    "huge",
    [
        header(b"b.bin", b"\x80" + b"\xff" * 11),
        header(b"b.bin", b"\x80" + (2**63).to_bytes(11, "big")),
        header(b"b.bin", b"\x80" + (2**62 - 1).to_bytes(11, "big")),
        header(b"b.bin", b"\x80" + (2**70).to_bytes(11, "big"), kind=b"V"),
        pax({"size": "9" * 30}) + header(b"b.bin", 0),
        pax({"size": "9" * 5000}) + header(b"b.bin", 0),
    ],
    ids=["all", "2**63", "2**62", "other kind", "pax", "pax of many digits"],
)
def test_sizes_that_no_file_has(tmp_path: Path, huge: bytes) -> None:
    path = write(tmp_path / "a.tar", member(b"a.bin", b"1"), huge, bytes(600))
    for how in ({}, {"hash": True}):
        with pytest.raises(ReadError, match=r"last good member is 'a\.bin'"):
            scanned(path, **how)
    assert scanned(path, keep_going=True).names.to_pylist() == ["a.bin"]


def test_hard_links_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = [member(b"a.jpg", b"1"), header(b"b.jpg", 0, kind=b"1"), member(b"c.jpg", b"3")]
    path = write(tmp_path / "a.tar", *parts, header(b"d.jpg", 0, kind=b"1"), END)
    assert scanned(path).names.to_pylist() == ["a.jpg", "c.jpg"]
    assert "a.tar: 2 hard links are left out" in caplog.text
    assert "'b.jpg'" in caplog.text


def test_extended_headers(tmp_path: Path) -> None:
    long = "p/" * 300 + "x.jpg"
    parts = [
        pax({"mtime": "1700000000.5", "uname": "path"}) + member(b"a.jpg", b"1"),
        pax({"path": long, "mtime": "1.5"}) + member(b"cut", b"2"),
        pax({"size": "700"}) + header(b"b.jpg", 0) + b"3".ljust(1024, b"\0"),
        member(b"c.jpg", b"4"),
    ]
    path = write(tmp_path / "a.tar", *parts)
    assert listed(scanned(path)) == by_tarfile(path)
    assert scanned(path).names.to_pylist() == ["a.jpg", long, "b.jpg", "c.jpg"]
    assert scanned(path).sizes.tolist() == [1, 1, 700, 1]


def test_global_headers(tmp_path: Path) -> None:
    """Their comments mean nothing; a name for all members would make every read doubtful."""
    parts = [pax({"comment": "abc"}, kind=b"g") + member(b"a.jpg", b"1"), member(b"b.jpg", b"2")]
    path = write(tmp_path / "a.tar", *parts)
    assert listed(scanned(path)) == by_tarfile(path)
    for named in ({"path": "all.jpg"}, {"size": "3"}):
        path = write(tmp_path / "b.tar", *parts, pax(named, kind=b"g") + member(b"c.jpg", b"3"))
        with pytest.raises(ReadError, match="a global header names a path or a size"):
            scanned(path, keep_going=True)


def test_a_long_link_and_a_long_name(tmp_path: Path) -> None:
    name = b"n" * 300 + b".jpg"
    parts = [
        member(b"././@LongLink", b"l" * 200 + b"\0", kind=b"K"),
        member(b"././@LongLink", name + b"\0", kind=b"L"),
        member(b"n" * 99, b"1"),
        member(b"b.jpg", b"2"),
    ]
    path = write(tmp_path / "a.tar", *parts)
    assert scanned(path).names.to_pylist() == [name.decode(), "b.jpg"]


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_sparse_files_are_refused(tmp_path: Path, kind: str) -> None:
    records = {"GNU.sparse.major": "1", "GNU.sparse.name": "s.bin", "path": "GNUSparseFile.1/s.bin"}
    sparse = (
        member(b"s.bin", b"1", kind=b"S")
        if kind == "gnu"
        else pax(records) + member(b"GNUSparseFile.1/s.bin", b"1")
    )
    path = write(tmp_path / "a.tar", member(b"a.jpg", b"1"), sparse)
    for keep_going in (False, True):
        with pytest.raises(ReadError, match=r"'s\.bin' is a sparse file.*--sparse"):
            scanned(path, keep_going=keep_going)


@pytest.mark.parametrize("signed", [False, True])
def test_checksums_of_signed_and_unsigned_bytes(tmp_path: Path, signed: bool) -> None:
    names = [f"ä{number}.jpg".encode() for number in range(3)]
    path = write(tmp_path / "a.tar", *(member(name, b"1", signed=signed) for name in names))
    assert scanned(path).names.to_pylist() == [name.decode() for name in names]


def test_every_byte_of_a_header_is_checked() -> None:
    good = header(b"a.jpg", 5)
    assert first_broken(header_rows([good] * 3)) == []
    for place in [*range(0, 148), *range(156, 512)]:
        bad = bytearray(good)
        bad[place] ^= 1
        assert first_broken(header_rows([good, bytes(bad), good])) == [1], place


@pytest.mark.parametrize(
    "data", [b"13 path=abc\n", b"x path=a\n", b"0 a=b\n", b"99 a=b\n", b"6 abc\n", b"5 a=bc\n"]
)
def test_damaged_extended_headers(data: bytes) -> None:
    with pytest.raises(HeaderError, match="damaged"):
        pax_records(data)


@given(
    st.lists(
        st.tuples(
            st.text(
                st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=130
            ),
            st.integers(0, 1500),
        ),
        max_size=12,
    ),
    st.sampled_from(sorted(FORMATS)),
)
def test_any_tar(tmp_path_factory: pytest.TempPathFactory, found: list, format: str) -> None:
    """Names of ustar headers that are longer than those may be are left out."""
    fitting = [(name, size) for name, size in found if format != "ustar" or len(name.encode()) < 99]
    path = tmp_path_factory.mktemp("any") / "a.tar"
    write_tar(path, [(name, b"x" * size) for name, size in fitting], FORMATS[format])
    index = scanned(path)
    assert [(name, size) for name, _, size in listed(index)] == fitting
    assert [place[1:] for place in listed(index)] == [place[1:] for place in by_tarfile(path)]


@pytest.mark.parametrize(
    ("block", "is_plain"),
    [
        (header(b"a.jpg", 12), True),
        (header(b"a.jpg", 12) + b"payload", True),
        (header(b"a.jpg", 12, kind=b"\0", magic=b""), True),
        (header(b"a.jpg", 12)[:511], False),
        (header(b"a.jpg.json", 12), False),
        (header(b"b.jpg", 12), False),
        (header(b"a.jpg", 120), False),
        (header(b"a.jpg", b"000000000147"), False),
        (header(b"a.jpg", b"      14 "), False),
        (header(b"a.jpg", 12, kind=b"5"), False),
        (header(b"a.jpg", 12, prefix=b"folder"), False),
    ],
)
def test_a_header_that_says_name_and_size_plainly(block: bytes, is_plain: bool) -> None:
    assert is_plain_header(block, b"a.jpg", 12) is is_plain
    if is_plain:
        assert (header_name(block[:512]), header_size(block[:512])) == (b"a.jpg", 12)


@given(st.binary(min_size=1, max_size=110), st.integers(0, 1 << 36))
def test_plain_headers_are_those_that_can_be_parsed(name: bytes, size: int) -> None:
    block = header(name[:100], b"%011o\0" % size if size < 8**11 else b"7" * 12)
    if is_plain_header(block, name, size):
        assert (header_name(block), header_size(block)) == (name, size)
