import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import StaleIndexError
from headrace.model import DataFileInfo
from headrace.sources.tar._json_index import read_json_index
from headrace.sources.tar.checks import check_index, verify_index
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore

SIZE = 10_240
PAYLOADS = {"a.jpg": b"a" * 700, "a.json": b"{}", "b.jpg": b"b" * 1024, "b.txt": b""}


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, payload in PAYLOADS.items():
            member = tarfile.TarInfo(name)
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return path


def info(path: Path) -> DataFileInfo:
    return DataFileInfo(path=str(path), file_size=path.stat().st_size)


def scanned(path: Path, **how: bool) -> TarIndex:
    return scan_tar(LocalStore(), info(path), **how)


def made_of(*members: tuple[int, int], size: int | None = None) -> TarIndex:
    offsets, sizes = np.array(members, np.int64).T
    names = pa.array([f"{n}.jpg" for n in range(len(members))])
    return TarIndex(names, offsets, sizes, facts=TarFacts(size=size))


def test_the_index_of_a_tar_is_right(tar):
    check_index(scanned(tar), tar.stat().st_size, "s.tar")


def test_members_may_touch_and_be_empty():
    check_index(made_of((512, 0), (1024, 512), (2048, 1), (3072, 0)), 3072, "s.tar")


def test_an_empty_index_is_right():
    nothing = TarIndex(pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0, np.int64))
    check_index(nothing, SIZE, "s.tar")


WRONG = {
    "another size": (made_of((512, 1), size=SIZE - 512), "10,240.*9,728"),
    "past the end": (made_of((512, 1), (SIZE - 512, 513)), "'1.jpg'.*past the end"),
    "far past the end": (made_of((2**62, 512)), "past the end"),
    "huge": (made_of((512, 2**63 - 1)), "past the end"),
    "negative offset": (made_of((-512, 10)), "'0.jpg'.*cannot be negative"),
    "negative size": (made_of((512, -10)), "cannot be negative"),
    "overlapping": (made_of((512, 1025), (1536, 1)), "'0.jpg'.*overlap '1.jpg'"),
    "over a header": (made_of((512, 513), (1536, 1)), "overlap"),
    "twice the same": (made_of((512, 1), (512, 1)), "overlap"),
    "out of order": (made_of((2048, 1), (512, 1)), "overlap"),
    "in a header": (made_of((0, 1)), "a payload cannot begin"),
    "inside of a block": (made_of((513, 1)), "a payload cannot begin"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_index_that_cannot_be_right_is_refused(case):
    index, told = WRONG[case]
    with pytest.raises(StaleIndexError, match=rf"s\.tar: .*{told}.*headrace index"):
        check_index(index, SIZE, "s.tar")


def test_without_the_size_of_the_tar_that_of_the_index_counts():
    check_index(made_of((512, 2**62)), None, "s.tar")
    with pytest.raises(StaleIndexError, match="past the end"):
        check_index(made_of((512, 513), size=1024), None, "s.tar")
    with pytest.raises(StaleIndexError, match="past the end"):
        check_index(made_of((2**62, 2**63 - 1)), None, "s.tar")


# --- in depth


def problems(tar: Path, index: TarIndex, **how: bool) -> list[str]:
    return verify_index(LocalStore(), info(tar), index, **how)


def test_nothing_is_wrong_with_a_right_index(tar):
    for index in (scanned(tar), scanned(tar, hash=True)):
        assert problems(tar, index) == []
        assert problems(tar, index, hash=False) == []


def test_the_hash_of_the_tar_as_the_hub_makes_it(tar):
    sha256 = hashlib.sha256(tar.read_bytes()).hexdigest()
    index = scanned(tar)
    for text in (sha256, sha256.upper()):
        assert problems(tar, replace(index, facts=TarFacts(hash_lfs=text))) == []
    wrong = problems(tar, replace(index, facts=TarFacts(hash_lfs="0" * 64)))
    assert len(wrong) == 1
    assert sha256 in wrong[0]


def test_payloads_that_changed_are_found_by_their_hashes(tar):
    index = scanned(tar, hash=True)
    data = bytearray(tar.read_bytes())
    data[int(index.offsets[2]) + 5] ^= 1
    tar.write_bytes(data)
    found = problems(tar, index)
    assert len(found) == 2
    assert "'b.jpg'" in found[0]
    assert "SHA-256" in found[1]
    assert problems(tar, index, hash=False) == []


def test_every_member_that_differs_is_told(tar):
    right = scanned(tar)
    offsets, sizes = right.offsets.copy(), right.sizes.copy()
    sizes[0] -= 1
    offsets[2] += 512
    sizes[2] = 1
    index = TarIndex(pa.array(["a.jpg", "other.json", "b.jpg"]), offsets[:3], sizes[:3])
    found = problems(tar, index)
    told = [
        "another size for 'a.jpg'",
        "the index has 'other.json' (at 2,048), but the member there is 'a.json'",
        "but no member begins there",
        "the index does not have 'b.jpg'",
        "the index does not have 'b.txt'",
    ]
    assert len(found) == len(told)
    for text, words in zip(found, told, strict=True):
        assert words in text
        assert text.startswith(f"{tar}: ")


def test_many_are_counted(tmp_path):
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(30):
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))
    index = scanned(path)
    others = replace(index, names=pa.array([f"x{number}.txt" for number in range(30)]))
    found = problems(path, others)
    assert len(found) == 11
    assert "20 more" in found[-1]


def test_a_tar_that_breaks_off_is_wrong_unless_the_index_says_so(tar):
    index = replace(scanned(tar), facts=TarFacts())
    tar.write_bytes(tar.read_bytes()[: int(index.offsets[2]) + 600])
    assert len(problems(tar, index)) == 1
    partly = scanned(tar, keep_going=True)
    assert partly.facts.last_good == "a.json"
    assert problems(tar, partly) == []


def test_an_index_of_another_tar_of_the_same_size_is_wrong(tar, tmp_path):
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("c.jpg")
        member.size = 3000
        archive.addfile(member, io.BytesIO(b"c" * 3000))
    assert other.stat().st_size == tar.stat().st_size
    assert len(problems(other, scanned(tar))) == 5


def test_an_index_of_hfutils_verifies(tar):
    data = tar.read_bytes()
    with tarfile.open(tar) as archive:
        files = {
            member.name: {
                "offset": member.offset_data,
                "size": member.size,
                "sha256": hashlib.sha256(PAYLOADS[member.name]).hexdigest(),
            }
            for member in archive
        }
    document = {
        "filesize": len(data),
        "hash": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        "hash_lfs": hashlib.sha256(data).hexdigest(),
        "files": files,
    }
    index = read_json_index(json.dumps(document).encode(), "s.json")
    assert problems(tar, index) == []
    files["a.jpg"]["sha256"] = "0" * 64
    index = read_json_index(json.dumps(document).encode(), "s.json")
    assert len(problems(tar, index)) == 1
