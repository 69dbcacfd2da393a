"""Deletion vectors of 32 and 64 bits, whole and damaged."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from headrace.errors import ReadError
from headrace.model import Int64Array
from headrace.sources.tables._vectors import (
    DeletionVector,
    VectorBitmap,
    decode_vector,
    deleted_positions,
)

MAGIC_32 = bytes.fromhex("5e43f2d0")
MAGIC_64 = bytes.fromhex("d1d33964")


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def stored(numbers: Iterable[int], bits: int = 64, runs: bool = False) -> bytes:
    bitmap: VectorBitmap = BitMap(numbers) if bits == 32 else BitMap64(numbers)
    if runs:
        bitmap.run_optimize()
    return framed((MAGIC_32 if bits == 32 else MAGIC_64) + bitmap.serialize())


def positions(
    blob: bytes, *, rows: int | None = None, cardinality: int | None = None
) -> Int64Array:
    vector = DeletionVector("v.puffin", 0, len(blob), cardinality)
    return deleted_positions(decode_vector(blob, "v.puffin"), vector, "data", rows)


def numbers_below(limit: int) -> st.SearchStrategy[list[int]]:
    return st.one_of(
        st.lists(st.integers(0, 1 << 18)),
        st.lists(st.integers(0, limit - 1)),
        st.builds(
            lambda start, length, step: list(range(start, start + length, step)),
            st.integers(0, limit // 2),
            st.integers(0, 200_000),
            st.integers(1, 5),
        ),
    )


@given(st.data(), st.sampled_from([32, 64]), st.booleans())
def test_positions_come_back_in_order(data: st.DataObject, bits: int, runs: bool) -> None:
    parts = data.draw(st.lists(numbers_below(1 << (bits - 1)), max_size=3))
    numbers = sorted({n for part in parts for n in part})
    found = positions(stored(numbers, bits, runs), cardinality=len(numbers))
    assert found.dtype == np.int64
    assert found.tolist() == numbers


@pytest.mark.parametrize("count", [4095, 4096, 4097, 65535, 65536, 65537])
@pytest.mark.parametrize("bits", [32, 64])
def test_borders_of_containers(count: int, bits: int) -> None:
    for numbers in (list(range(0, 2 * count, 2)), list(range(count))):
        for runs in (False, True):
            assert positions(stored(numbers, bits, runs), rows=2 * count).tolist() == numbers


def test_empty_parts_of_a_64_bit_bitmap() -> None:
    """Iceberg's own writer stores a 32-bit bitmap for every key up to the largest one."""
    parts = [BitMap(), BitMap([1, 5]), BitMap(), BitMap([7])]
    body = struct.pack("<Q", 4) + b"".join(
        struct.pack("<I", key) + part.serialize() for key, part in enumerate(parts)
    )
    found = positions(framed(MAGIC_64 + body)).tolist()
    assert found == [(1 << 32) + 1, (1 << 32) + 5, (3 << 32) + 7]


def flipped(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: flipped(b, 0), "its length field says"),
        (lambda b: flipped(b, 4), "begins with d0 d3 39 64"),
        (lambda b: flipped(b, 20), "checksum"),
        (lambda b: flipped(b, len(b) - 1), "checksum"),
        (lambda b: b[:-1], "its length field says"),
        (lambda b: b[:3], "its length field says"),
        (lambda b: b"", "its length field says"),
        (lambda b: framed(MAGIC_64), "its length field says"),
        (lambda b: framed(b[4:-5]), "no readable deletion vector"),
        (lambda b: framed(b[4:20] + b"\0\0\0\0" + b[24:-4]), "no readable deletion vector"),
        (lambda b: framed(b[4:-10] + b[-6:-4] * 3), "no readable deletion vector"),
    ],
)
def test_a_damaged_vector(change: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(ReadError, match=f"v.puffin.*{message}"):
        positions(change(stored([1, 2, 3])))


def test_a_vector_that_does_not_fit_its_data_file() -> None:
    with pytest.raises(ReadError, match=r"v\.puffin has 3 rows, but the manifest says 2"):
        positions(stored([1, 2, 3]), cardinality=2)
    with pytest.raises(ReadError, match=r"v\.puffin names row 3 of data, which has no more than 3"):
        positions(stored([1, 2, 3]), rows=3)
    with pytest.raises(ReadError, match="names row 18446744073709551615"):
        positions(stored([2**64 - 1]))


def test_a_small_vector_of_very_many_rows_is_refused_before_it_is_unpacked() -> None:
    bitmap = BitMap()
    bitmap.add_range(0, 1 << 32)
    bitmap.run_optimize()
    blob = framed(MAGIC_32 + bitmap.serialize())
    assert len(blob) < 1 << 20
    with pytest.raises(ReadError, match="names row 4294967295"):
        positions(blob, rows=100, cardinality=1 << 32)


HOSTILE = """
import random, zlib
from pyroaring import BitMap, BitMap64
from headrace.errors import ReadError
from headrace.sources.tables._vectors import DeletionVector, decode_vector, deleted_positions

choose = random.Random({seed})
scattered = choose.sample(range(200_000), 30_000)
numbers = [[1, 5, 9], range(70_000), scattered, range(0, 1 << 22, 65_537)]
wholes = []
for magic, kind in (("5e43f2d0", BitMap), ("d1d33964", BitMap64)):
    for given in [*numbers, []]:
        bitmap = kind(given)
        wholes.append(bytes.fromhex(magic) + bitmap.serialize())
        bitmap.run_optimize()
        wholes.append(bytes.fromhex(magic) + bitmap.serialize())
refused = 0
for _ in range(400):
    body = bytearray(choose.choice(wholes))
    if choose.random() < 0.2:
        del body[choose.randrange(5, len(body) + 1):]
    for _ in range(choose.choice([1, 2, 8])):
        at = choose.randrange(4, max(5, min(len(body), choose.choice([16, 64, 1 << 20]))))
        body[at:at + 1] = choose.choice([b"\\0", b"\\xff", choose.randbytes(1)])
    body = bytes(body)
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    try:
        found = deleted_positions(
            decode_vector(blob, "v"), DeletionVector("v", 0, len(blob), None), "f", 10_000_000
        )
        assert (found[1:] > found[:-1]).all()
    except ReadError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_damage_ends_the_process(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE.replace("{seed}", str(seed))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 100 < int(done.stdout) < 400
