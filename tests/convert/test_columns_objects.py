"""Columns of bytes whose values are Python objects."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from headrace.convert import Block, Converter, concat
from headrace.convert.columns import object_array
from headrace.convert.packing import pack, unpack

VALUES = [b"", b"a" * 7, bytes(range(256)), b"\x00\x00"]


def block(output_format: str = "torch") -> Block:
    converter = Converter(pa.schema([("data", pa.binary())]), output_format)
    return converter.convert_columns([object_array(VALUES)], len(VALUES))


def values_of(result: Block) -> list[bytes]:
    return [value for batch in result.batches(3) for value in batch["data"]]


def test_batches_have_the_objects_themselves() -> None:
    [batch] = block().batches(4)
    assert all(one is other for one, other in zip(batch["data"], VALUES, strict=True))
    assert block().nbytes == sum(map(len, VALUES))


def test_slices_rows_and_joined_blocks() -> None:
    assert values_of(block().slice(1, 2)) == VALUES[1:3]
    assert values_of(block().take(np.array([3, 0, 3]))) == [VALUES[3], VALUES[0], VALUES[3]]
    in_arrow = Converter(pa.schema([("data", pa.binary())])).convert(pa.table({"data": [b"z"]}))
    assert values_of(concat([block(), in_arrow, block()])) == [*VALUES, b"z", *VALUES]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_they_cross_to_another_process(output_format: str) -> None:
    result = block(output_format)
    sent = type(result).to_send([result])
    assert sent is not None
    buffer, layout = pack(sent)
    assert buffer.memory.nbytes > sum(map(len, VALUES))
    assert values_of(unpack(buffer, layout)) == VALUES
    assert values_of(pickle.loads(pickle.dumps(block(output_format)))) == VALUES


@pytest.mark.parametrize("fill", [None, b"nothing"])
def test_large_bytes_are_moved_by_reference(fill: bytes | None) -> None:
    """Check that permuting large values, nulls among them, copies no value a second time."""
    schema = pa.schema([("data", pa.binary())])
    converter = Converter(schema, nulls={"data": fill})
    stored = [bytes([number]) * 5000 if number % 3 else None for number in range(12)]
    parts = [pa.table({"data": stored[start : start + 4]}, schema) for start in (0, 4, 8)]
    joined = concat([converter.convert(part) for part in parts])
    moved = joined.take(np.array([11, 0, 5, 5]))
    expected = [stored[11], fill, stored[5], stored[5]]
    assert values_of(moved) == expected
    assert moved.nbytes == 3 * 5000
    [before], [after] = joined.batches(12), moved.batches(4)
    assert after["data"][0] is before["data"][11]
    assert after["data"][2] is after["data"][3] is before["data"][5]
    buffer, layout = pack(type(moved).to_send([moved]))
    assert values_of(unpack(buffer, layout)) == expected
