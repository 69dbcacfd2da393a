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
