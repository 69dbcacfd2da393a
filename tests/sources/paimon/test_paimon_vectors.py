"""Deletion vectors: where live rows are among stored ones, and what is no vector."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from headrace import ReadError
from headrace.model import RowRange
from headrace.sources.tables._vectors import (
    DeletionVector,
    deleted_positions,
    read_vector,
    stored_range,
)
from headrace.storage import LocalStore

MAGIC = (1581511376).to_bytes(4, "big")
MAGIC_64 = (1681511377).to_bytes(4, "little")


@given(st.data())
def test_a_stored_range_holds_the_live_rows_that_are_wanted(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 60))
    deleted = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), np.int64)
    live = [row for row in range(rows) if row not in deleted.tolist()]
    if not live:
        return
    first = data.draw(st.integers(0, len(live) - 1))
    length = data.draw(st.integers(1, len(live) - first))
    found = stored_range(deleted, RowRange(first, length))
    inside = [row for row in live if found.offset <= row < found.stop]
    assert inside == live[first : first + length]
    assert (found.offset, found.stop - 1) == (inside[0], inside[-1])


def vector(path: Path, body: bytes, cardinality: int | None = None) -> DeletionVector:
    content = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    path.write_bytes(b"\x01" + content)
    # Paimon counts length and checksum of 64-bit vectors, and not of others.
    length = len(content) if body.startswith(MAGIC_64) else len(body)
    return DeletionVector(str(path), 1, length, cardinality)


@pytest.mark.parametrize("positions", [[], [0], [5, 70_000, 1_000_000], range(0, 200_000, 2)])
@pytest.mark.parametrize("bits", [32, 64])
def test_vectors_are_decoded(tmp_path: Path, positions: list[int], bits: int) -> None:
    body = MAGIC + BitMap(positions).serialize()
    if bits == 64:
        body = MAGIC_64 + BitMap64(positions).serialize()
    one = vector(tmp_path / "index", body, len(positions))
    found = deleted_positions(read_vector(LocalStore(), one), one, f"{tmp_path}/data", 2_000_000)
    assert found.tolist() == list(positions)


@pytest.mark.parametrize(
    ("body", "cardinality", "message"),
    [
        (b"what" + bytes(12), None, "it begins with"),
        (MAGIC + BitMap([1, 2]).serialize(), 3, "the manifest says 3"),
        (MAGIC + BitMap([1, 200]).serialize(), 2, "names row 200"),
        (MAGIC + b"no bitmap at all", None, "no readable deletion vector"),
    ],
    ids=["other magic", "other count", "past the end", "garbage"],
)
def test_what_is_no_vector_is_refused(
    tmp_path: Path, body: bytes, cardinality: int | None, message: str
) -> None:
    one = vector(tmp_path / "index", body, cardinality)
    with pytest.raises(ReadError, match=message):
        deleted_positions(read_vector(LocalStore(), one), one, f"{tmp_path}/data", 100)
