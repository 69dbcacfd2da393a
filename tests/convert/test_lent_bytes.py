"""Columns of bytes that are lent, and how they cross to another process."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.convert import Block, Converter, concat, gather
from headrace.convert.decoded import Kind
from headrace.convert.lent import LENT_TYPE, enlisted, lent_array
from headrace.convert.packing import EndToEnd, pack, unpack
from headrace.errors import ConversionError

SCHEMA = pa.schema([pa.field("data", LENT_TYPE)])
KINDS = {"data": Kind.LENT}


class Parts:
    """Bytes of this process that are lent; offsets are their places in the list."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.key = object()

    def read(self, offsets: list[int], sizes: list[int]) -> list[bytes]:
        return [self.parts[place] for place in offsets]

    def views(self, offsets: list[int], sizes: list[int]) -> list[memoryview]:
        return [memoryview(self.parts[place]) for place in offsets]


LENDERS: list[Any] = []
"""tables name lenders by number, so that somebody has to hold them"""


def table_of(parts: list[bytes | None]) -> pa.Table:
    sizes = np.array([-1 if part is None else len(part) for part in parts])
    number, lender = enlisted(Parts([part or b"" for part in parts]))
    LENDERS.append(lender)
    numbers = np.full(len(parts), number)
    return pa.table([lent_array(numbers, np.arange(len(parts)), sizes)], SCHEMA)


def block_of(parts: list[bytes | None], **options: Any) -> Block:
    return Converter(SCHEMA, kinds=KINDS, **options).convert(table_of(parts))


def values(block: Block, size: int = 3) -> list[Any]:
    return [value for batch in block.batches(size) for value in batch["data"]]


def arrived(block: Block) -> Block:
    """The block as another process sees it."""
    buffer, layout = pack([type(block).to_send([block])])
    found: Block = unpack(buffer, layout)[0]
    return found


PARTS: list[bytes | None] = [b"a", b"", b"ccc", b"dd", b"e" * 70_000, b"f", b"gg"]


@pytest.mark.parametrize("cross", [lambda block: block, arrived], ids=["here", "there"])
def test_rows_are_cut_permuted_and_joined(cross: Any) -> None:
    block = block_of(PARTS)
    assert values(cross(block)) == PARTS
    assert values(cross(block.slice(2, 3))) == PARTS[2:5]
    order = np.array([6, 0, 4, 4])
    assert values(cross(block.take(order))) == [PARTS[i] for i in order]
    other = block_of([b"x", b"yy"])
    joined = concat([block.slice(5, 2), other, block.slice(0, 1)])
    assert values(cross(joined)) == [b"f", b"gg", b"x", b"yy", b"a"]
    mixed = gather([block, other], np.array([8, 0, 7, 2]))
    assert values(cross(mixed)) == [b"yy", b"a", b"x", b"ccc"]


@pytest.mark.parametrize("cross", [lambda block: block, arrived], ids=["here", "there"])
def test_nulls_are_filled_refused_or_masked(cross: Any) -> None:
    parts = [None, b"b", None, b""]
    assert values(cross(block_of(parts, nulls={"data": b"?"}))) == [b"?", b"b", b"?", b""]
    assert values(cross(block_of([None, None], nulls={"data": b"?"}))) == [b"?", b"?"]
    (batch,) = cross(block_of(parts, nulls="mask")).batches(4)
    assert batch["data_mask"].tolist() == [True, False, True, False]
    with pytest.raises(ConversionError, match="'data'"):
        block_of(parts)


def test_bytes_that_are_laid_end_to_end_arrive_in_one_piece() -> None:
    array = np.arange(1000)
    parts = [b"one", memoryview(b"-two-")[1:4], b"", b"three"]
    value = [array, EndToEnd(parts), {"more": EndToEnd([])}, array[:3], EndToEnd([b"4"])]
    found = unpack(*pack(value))
    assert found[0].tolist() == array.tolist()
    assert found[3].tolist() == [0, 1, 2]
    assert bytes(found[1]) == b"onetwothree"
    assert (bytes(found[2]["more"]), bytes(found[4])) == (b"", b"4")
    assert bytes(pickle.loads(pickle.dumps(EndToEnd(parts)))) == b"onetwothree"


def test_what_arrived_does_not_change_with_what_is_packed_later() -> None:
    first = arrived(block_of([b"1" * 50_000] * 4))
    second = arrived(block_of([b"2" * 50_000] * 4))
    assert values(first) == [b"1" * 50_000] * 4
    assert values(second) == [b"2" * 50_000] * 4
